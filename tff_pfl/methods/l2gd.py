"""L2GD: personal models that are drawn to their mean when a coin says so.

    F(x) = 1/n sum_i f_i(x_i) + lambda / (2 n) sum_i |x_i - mean(x)|^2

    server:  with probability 1 - p, a local round; with p, an aggregation round
    local:        x_i <- x_i - eta / (n (1 - p)) gradient f_i(x_i)
    aggregation:  x_i <- x_i - eta lambda / (n p) (x_i - mean_t)
    server:  mean_{t+1} = the mean of the cohort's x_i

A local round is E epochs (or K steps) of mini-batches, as in the experiments of
FedRep's paper; with `num_steps=1` it is L2GD's own. A client is scored with its
x_i. With p = 0 the method is local training; with a large lambda an aggregation
round replaces the models by their mean.

Symbols: p -> aggregation_probability, lambda -> coupling_strength, eta / n ->
learning_rate (the factor of a client's own gradient, but for 1 / (1 - p)), E ->
num_epochs, K -> num_steps.

Deviations from the paper: clients report their models after every round, so the
mean that an aggregation round needs is at the server when it begins (the paper
sends them when the coin changes, which saves messages and gives the same
models). With a cohort smaller than all clients the mean is that of the last
cohort, and a client whose first round is an aggregation round is drawn to it
from the initial weights. It is no mean with another server optimizer than the
default. Clients weigh alike, as in the paper. Momentum is within a round
(`momentum=0` is the paper's).

References:
  Hanzely, Richtarik: Federated Learning of a Mixture of Global and Local
  Models, arXiv:2002.05516, Algorithm 1.
"""

import collections
from typing import Literal

import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.core import objectives, training_loop
from tff_pfl.methods import registry
from tff_pfl.methods.shared import personal_copies
from tff_pfl.models import randomness


@fields.dataclass
class L2gdHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of L2GD: of local rounds, and of aggregation rounds.

  Attributes:
    learning_rate: Learning rate of a local step, before it is divided by 1 - p.
    optimizer: The clients' optimizer: sgd or adam, whose rate is set here.
    aggregation_probability: Share of aggregation rounds (p), in [0, 1).
    coupling_strength: Strength of the pull to the mean model (lambda), at least
      0.
  """

  optimizer: Literal['sgd', 'adam'] = 'sgd'
  aggregation_probability: fields.ShareBelowOne = 0.2
  coupling_strength: fields.NonNegative = 10.0

  def __post_init__(self):
    super().__post_init__()
    errors.expect(
      # With room for rounding.
      self.pull < 1 + 1e-9,
      'learning_rate * coupling_strength / aggregation_probability',
      'at most 1, or an aggregation round would go beyond the mean',
      self.pull,
    )

  @property
  def pull(self) -> float:
    """The share of the way to the mean in an aggregation round."""
    if not self.aggregation_probability:
      return 0.0
    return (
      self.learning_rate * self.coupling_strength
    ) / self.aggregation_probability


def is_aggregation_round(
  broadcast: client_lib.Broadcast, hparams: L2gdHParams
) -> tf.Tensor:
  """The server's coin: bool, the same on every client of a round."""
  if not hparams.aggregation_probability:
    return tf.constant(False)
  seed = randomness.server_seed(broadcast.seed, broadcast.round_number)
  tails = 1 - hparams.aggregation_probability
  return randomness.keep_mask(seed, [], tails)


@registry.method(
  'personal models, drawn to their mean at random rounds', L2gdHParams
)
def l2gd(model, hparams):
  """L2GD."""
  loss = objectives.joint_loss(model)

  def train_personal(client, personal, num_epochs=None):
    rate = hparams.learning_rate / (1 - hparams.aggregation_probability)
    phase = hparams.phase(num_epochs, rate)
    return client.sgd(loss, personal, phase)

  def pull_to_mean(client):
    # Its step has the learning rate, too.
    pull, mean = client.rate(hparams.pull), client.received
    pulled = collections.OrderedDict(
      (name, value - tf.cast(pull, value.dtype) * (value - mean[name]))
      for name, value in client.local.items()
    )
    return training_loop.TrainResult(pulled, objectives.zero_metrics(model))

  def train(client):
    new = tf.cond(
      is_aggregation_round(client.broadcast, hparams),
      lambda: pull_to_mean(client),
      lambda: train_personal(client, client.local),
    )
    return client.result(new, local=new.weights)

  return personal_copies.personal_copies_work(
    model, train, train_personal, default_weighting='uniform'
  )
