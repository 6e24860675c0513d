"""FedRoD: a generic head on balanced risk, a personal head on empirical risk.

On client i with n_c examples of class c, z = f(x; theta) are the features,
g = W_g z the generic head's outputs and p = W_p z the personal head's:

    client:  for E epochs of mini-batches, all at once:
               theta, W_g <- SGD on cross-entropy(y, g + gamma log(n_1 ... n_C))
               W_p        <- SGD on cross-entropy(y, g + p), theta, W_g frozen
    server:  theta, W_g <- sum_i n_i (theta_i, W_g,i) / sum_i n_i

A client predicts with g + p, or with g if it has no data. The shift by the
class counts (balanced softmax) leaves the frequencies of a client's classes to
its personal head. So clients with different classes train a generic model for
all classes alike. Without the shift (gamma = 0), the generic model is FedAvg's.

Both heads are linear, so a personal model is the model itself with W_g + W_p as
its head. A client that never took part fits W_p with the rest frozen.

Symbols: theta -> the body, psi (W_g) -> the model's head, phi (W_p) -> the
local weights, gamma -> balance_exponent, E -> num_epochs, eta -> learning_rate.

Deviations from the paper: the variant in which a hypernetwork makes the
personal head from the client's class counts is left out, as are the other
balanced losses that the paper compares. It is not checked against the paper
that W_p starts at 0 and is trained along with the rest.

References:
  Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image
  Classification, ICLR 2022 (Fed-RoD, linear).
  Ren et al.: Balanced Meta-Softmax for Long-Tailed Visual Recognition, NeurIPS
  2020.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client_work, example_tensors, objectives
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import domain_models, split_model


@fields.dataclass
class FedRodHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedRoD: local training and the balanced risk.

  Attributes:
    balance_exponent: Power of a client's class counts in the balanced softmax
      of body and generic head (gamma), at least 0. If 0, the loss is the plain
      one.
  """

  balance_exponent: fields.NonNegative = 1.0


def class_shift(
  model: split_model.SplitModel, examples: example_tensors.ExampleTensors
) -> tf.Tensor:
  """Outputs whose probabilities are the client's class frequencies."""
  classes = tf.one_hot(
    tf.cast(examples.y, tf.int32), model.classifier.num_classes
  )
  # A class without examples has an output that stands for minus infinity.
  counts = tf.reduce_sum(
    tf.where(examples.is_example[:, tf.newaxis], classes, 0), 0
  )
  return model.classifier.outputs_of(
    counts / tf.maximum(tf.reduce_sum(counts), 1)
  )


def _summed(shared, personal):
  """The model's weights with the sum of both heads as its head."""
  sums = {name: shared[name] + value for name, value in personal.items()}
  return split_model.select({**shared, **sums}, shared)


def _sum_metric(metric):
  """The metric of the sum of both heads."""
  return lambda y, outputs: metric(y, outputs[1])


@registry.method(
  'generic head on the balanced risk, personal head on top',
  FedRodHParams,
  needs_classes=True,
  unsupported=('reweight_domains',),
)
def fed_rod(model, hparams):
  """FedRoD for models whose head is one linear layer."""
  domain_models.linear_head(model)
  head = model.weight_names(model.head_layers)

  def own(weights):
    """The personal head, whose weights train as `personal/...`."""
    return collections.OrderedDict((n, weights[f'personal/{n}']) for n in head)

  def outputs(weights, x, mode):
    """Outputs of the generic head and of both heads, and new statistics."""
    features, statistics = model.body(weights, x, mode)
    generic, _ = model.head(weights, features, mode)
    frozen = {name: tf.stop_gradient(weights[name]) for name in head}
    both, _ = model.head(
      _summed(frozen, own(weights)), tf.stop_gradient(features), mode
    )
    return (generic, both), statistics

  def train(client):
    shift = hparams.balance_exponent * class_shift(model, client.examples)
    in_training = model.in_training

    def both_risks(y, outputs):
      """The personal risk, with the gradient of the sum of both risks."""
      balanced = in_training.loss(y, outputs[0] + shift)
      own_risk = in_training.loss(y, outputs[1])
      return own_risk + balanced - tf.stop_gradient(balanced)

    two_headed = dataclasses.replace(
      in_training,
      loss=both_risks,
      metrics={name: _sum_metric(m) for name, m in model.metrics.items()},
      counted=model.counted and _sum_metric(model.counted),
    )
    personal = {f'personal/{name}': client.local[name] for name in head}
    trained = client.sgd(
      objectives.prediction_loss(two_headed, outputs),
      {**client.received, **personal},
      hparams.phase(),
    )
    return client.result(trained, local=own(trained.weights))

  def fit_new_client(client, num_epochs):
    def forward(personal, features, mode):
      return model.head(_summed(client.received, personal), features, mode)

    phase = hparams.phase(num_epochs)
    return client.fit_head(client.local, phase, forward=forward).weights

  exchange = client_work.Exchange(train)
  return client_work.global_weights_work(
    model,
    exchange,
    initial_local=collections.OrderedDict(
      (name, np.zeros_like(model.initial_weights[name])) for name in head
    ),
    personal_weights=lambda broadcast, personal: _summed(
      broadcast.global_weights, personal
    ),
    fit_new_client=fit_new_client,
    exchanges_when_forgetting=[exchange],
  )
