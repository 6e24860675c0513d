"""SCAFFOLD: FedAvg with control variates against the drift of clients.

    client:  y <- x;  K times:  y <- y - eta_l (gradient(y) - c_i + c)
             c_i+ = c_i - c + (x - y) / (K eta_l)                  (option II)
    server:  x <- x + eta_g mean(y - x)
             c <- c + |S| / N mean(c_i+ - c_i)

c is the mean of the clients' c_i. A client is scored with x. Its c_i never
leaves it. Only the changes of c_i are sent, through the same aggregator as the
updates.

Symbols: eta_l -> learning_rate, K -> num_steps or the steps of num_epochs,
eta_g -> the learning rate of the server's optimizer, N -> total_clients, c ->
`control`.

Deviations from the paper: N is optional. If N is given, c counts clients that
never took part as zeros, as in the paper. Otherwise, c is the exact mean over
the clients that took part. A client that takes part for the first time then
uses c as its c_i: it makes plain steps, so that the corrections c - c_i add up
to zero over all clients, as in the paper. Clients have equal weights, as in the
paper. If `client_weighting='num_examples'`, both means are weighted, which is
right only if all clients take part in every round. An aggregator that clips or
adds noise also does so to the changes of c_i. The server's c is then no longer
the mean of the clients' c_i, and the paper's proofs do not hold.

References:
  Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic
  Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1.
"""

import collections
from typing import Literal, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work, objectives, phases
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.models import split_model


@fields.dataclass
class ScaffoldHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of SCAFFOLD: local training by plain SGD.

  Attributes:
    momentum: Momentum of the clients' SGD, which must be 0.
    optimizer: The clients' optimizer, which must be sgd.
    total_clients: Exact number of all clients (N). Any other number makes c
      wrong. None takes c over the clients that have taken part.
  """

  momentum: fields.number(float, ge=0, le=0) = 0.0
  optimizer: Literal['sgd'] = 'sgd'
  total_clients: Optional[fields.Count] = None


def _combine(function, *weights):
  """Applies a function weight by weight."""
  return collections.OrderedDict(
    (name, function(*(w[name] for w in weights))) for name in weights[0]
  )


@registry.method(
  'FedAvg with control variates against client drift', ScaffoldHParams
)
def scaffold(model, hparams):
  """SCAFFOLD."""
  loss = objectives.joint_loss(model)
  zeros = collections.OrderedDict(
    (name, np.zeros_like(value))
    for name, value in model.initial_weights.items()
    if name not in model.statistics
  )

  def train(client):
    x, c = client.received, client.algorithm['control']
    own = client.local['control']
    c_i = own
    if hparams.total_clients is None:
      is_known = client.local['is_known'] > 0
      c_i = _combine(lambda mine, mean: tf.where(is_known, mine, mean), own, c)
    y, metrics = client.sgd(
      objectives.shifted(loss, _combine(tf.subtract, c, c_i)),
      x,
      hparams.phase(),
    )
    num_steps = phases.count_steps(client.examples, hparams.phase())
    # K eta_l
    step_total = tf.cast(num_steps, tf.float32) * client.rate(
      hparams.learning_rate
    )
    update = split_model.difference(x, y)
    new_c_i = _combine(
      # A client without examples makes no step and is left out.
      lambda c_i, c, moved: (
        c_i - c + tf.math.divide_no_nan(moved, tf.cast(step_total, moved.dtype))
      ),
      c_i,
      c,
      update,
    )
    return client_lib.ClientResult(
      update=update,
      local=collections.OrderedDict(control=new_c_i, is_known=tf.ones([])),
      metrics=metrics,
      report=collections.OrderedDict(
        change=_combine(tf.subtract, new_c_i, own),
        is_new=1 - client.local['is_known'],
      ),
    )

  def move_control(state, update, report, cohort):
    num_clients = tf.cast(cohort.num_clients, tf.float32)
    before = state.algorithm['num_clients']
    after = before
    if hparams.total_clients is None:
      after = before + num_clients * report['is_new']

    def step(c, change):
      total = tf.cast(before, c.dtype) * c
      total += tf.cast(num_clients, c.dtype) * change
      return total / tf.maximum(tf.cast(after, c.dtype), 1)

    control = _combine(step, state.algorithm['control'], report['change'])
    return update, collections.OrderedDict(control=control, num_clients=after)

  return client_work.global_weights_work(
    model,
    client_work.Exchange(train, move_control),
    initial_local=collections.OrderedDict(
      control=zeros, is_known=np.float32(0)
    ),
    default_weighting='uniform',
    initial_algorithm=collections.OrderedDict(
      control=zeros, num_clients=np.float32(hparams.total_clients or 0)
    ),
  )
