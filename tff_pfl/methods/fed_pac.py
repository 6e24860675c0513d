"""FedPAC: aligned features, and heads mixed from the cohort's heads.

theta is the global body, phi_i client i's own head, z features, C the global
class means of features, and p_i^c the share of class c among client i's
examples:

    1. client:  h_i^c = p_i^c mean_{y=c} z at theta  (0 without examples of c)
                V_i = (mean |z|^2 - |h_i|^2) / n_i
                phi_i <- SGD(phi_i; theta frozen)           for num_head_epochs
       server:  collects (h_j, V_j, phi_j) of the cohort and sends them to it
    2. client:  theta_i <- SGD on f_i + lambda mean_j d(z_j, C_{y_j})
                           from theta, phi_i frozen         for num_body_epochs
                a_i = argmin over the simplex of
                      sum_j a_j^2 V_j + |h_i - sum_j a_j h_j|^2
                phi_i <- sum_j a_ij phi_j
       server:  theta <- sum_i n_i theta_i / sum_i n_i
                C^c <- mean of the cohort's examples of c at the theta_i

d is the mean squared difference over feature values. Without `combines_heads`
and with lambda = 0, this is FedRep. Before it is scored, a client that never
took part fits its head, from the initial one, on the frozen body.

Symbols: lambda -> pull_strength, C -> `algorithm['means']`, E ->
num_body_epochs.

Deviations from the paper: its server solves each client's program and sends the
client its head. Here, the server sends the collected values to the cohort, and
each client solves its own program, with the same result. So clients see each
other's heads and class means, a round has two exchanges, and the server keeps
none of these values between rounds. Aggregation must be a plain mean, because
the collected values would be neither private nor secure. 300 steps of projected
gradient descent solve the program (the authors' code: an exact solver, weights
under 0.001 set to 0). Classes without a global mean add nothing to the loss.
The authors' weight decay (5e-4) is off by default. Written from the paper's
abstract and the authors' code.

References:
  Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and
  Classifier Collaboration, ICLR 2023, Algorithm 1. Code:
  github.com/JianXu95/FedPAC.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work, gather, objectives
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import class_means, simplex
from tff_pfl.models import weight_partition

# The mixture is then exact to some digits for up to about 30 clients. For 100
# clients, its objective is less than 1% above the minimum.
_NUM_MIXTURE_STEPS = 300


@fields.dataclass
class FedPacHParams(hparams_lib.HeadAndBodyHParams):
  """Hyperparameters of FedPAC, with epochs and rates from the authors' code.

  Attributes:
    pull_strength: Strength of the pull of features toward the mean of their
      class (lambda), at least 0.
    combines_heads: True to mix a client's head from the cohort's heads.
    max_cohort_size: Largest number of clients in a cohort, at least 1. The
      server's state has room for this many heads.
  """

  num_head_epochs: fields.Epochs = 1
  num_body_epochs: fields.Epochs = 5
  head_learning_rate: fields.Positive = 0.1
  pull_strength: fields.NonNegative = 1.0
  combines_heads: bool = True
  max_cohort_size: fields.Size = 32


def _report(features, means, head):
  """A client's message: its presence, its h, V and head."""
  rows = class_means.flat(features.x)
  squares = tf.where(features.is_example, tf.reduce_sum(rows**2, axis=1), 0)
  number = tf.cast(tf.maximum(features.num_examples, 1), rows.dtype)
  spread = tf.reduce_sum(squares) / number - tf.reduce_sum(means**2)
  return collections.OrderedDict(
    is_present=tf.ones([]), means=means, variance=spread / number, head=head
  )


def _empty_report(slots, means, head):
  """Messages of `slots` clients before they arrive, all zeros."""
  message = collections.OrderedDict(
    is_present=np.float32(0),
    means=means,
    variance=means.dtype.type(0),
    head=head,
  )
  return tf.nest.map_structure(
    lambda value: np.zeros([slots, *value.shape], value.dtype), message
  )


def _mixed(own, cohort):
  """A client's new head, mixed from the messages of the cohort.

  The mixture minimizes the bias that other clients' heads have for the client,
  and the variance of all heads.
  """
  distances = class_means.flat(cohort['means'] - own['means'])
  bias = tf.matmul(distances, distances, transpose_b=True)
  mixture = simplex.minimize_quadratic(
    bias + tf.linalg.diag(tf.maximum(cohort['variance'], 0)),
    # Clients that attack with the opposite sign are also present.
    tf.not_equal(cohort['is_present'], 0),
    _NUM_MIXTURE_STEPS,
  )
  return collections.OrderedDict(
    (name, tf.tensordot(tf.cast(mixture, heads.dtype), heads, 1))
    for name, heads in cohort['head'].items()
  )


@registry.method(
  "global body with aligned features, local head mixed from the cohort's heads",
  FedPacHParams,
  needs_classes=True,
  unsupported=('domain_model', 'reweight_domains'),
)
def fed_pac(model, hparams):
  """FedPAC for classifiers whose body has weights."""
  classes = class_means.ClassMeans(model, 'fed_pac')
  partition = weight_partition.WeightPartition.by_layer(
    model, model.head_layers
  )

  def fit_head(client, num_epochs=None, **options):
    phase = hparams.head_phase(num_epochs)
    return client.fit_head(client.local, phase, **options).weights

  def train_head(client):
    """Step 1, with the client's message."""
    features = client.features()
    head = fit_head(client, stream=0, features=features)
    message = _report(features, classes.report(features)['sums'], head)
    return client_lib.ClientResult(report=message, cache=message)

  def collect(state, unused_update, report, unused_cohort):
    return {}, collections.OrderedDict(state.algorithm, cohort=report)

  def train_body(client):
    """Step 2."""
    own = client.cache
    head = own['head']
    penalty = classes.pull(client.algorithm, hparams.pull_strength)
    loss = objectives.body_loss(model, head, penalty=penalty)
    trained = client.sgd(loss, client.received, hparams.body_phase(), stream=1)
    if hparams.combines_heads:
      head = _mixed(own, client.algorithm['cohort'])
    report = classes.report(client.features(trained.weights))
    return client.result(trained, local=head, report=report)

  def align(state, update, report, cohort):
    new = classes.update(state.algorithm, report, cohort)
    return update, collections.OrderedDict({**state.algorithm, **new})

  def train(client):
    cache = train_head(client).cache
    return train_body(dataclasses.replace(client, cache=cache))

  initial = classes.initial_algorithm
  exchanges = [client_work.Exchange(train, align)]
  if hparams.combines_heads:
    slots = hparams.max_cohort_size
    exchanges = [
      client_work.Exchange(
        train_head, collect, aggregator=gather.StackFactory(slots)
      ),
      client_work.Exchange(train_body, align),
    ]
    head = partition.local_part(model.initial_weights)
    initial['cohort'] = _empty_report(slots, initial['means'], head)
  return client_work.partitioned_weights_work(
    model,
    partition,
    *exchanges,
    fit_new_client=fit_head,
    initial_algorithm=initial,
    transient=['cohort'] if hparams.combines_heads else [],
  )
