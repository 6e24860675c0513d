"""L2GD: personal models that are pulled toward their mean in random rounds.

    F(x) = 1/n sum_i f_i(x_i) + lambda / (2 n) sum_i |x_i - mean(x)|^2

    server:  with probability 1 - p, a local round; with p, an aggregation round
    local:        x_i <- x_i - eta / (n (1 - p)) gradient f_i(x_i)
    aggregation:  x_i <- x_i - eta lambda / (n p) (x_i - mean_t)
    server:  mean_{t+1} = the mean of the cohort's x_i

A local round is E epochs (or K steps) of mini-batches, as in the experiments of
FedRep's paper (L2GD's own is one step, `num_steps=1`). A client is scored with
its x_i. If p = 0, the method is local training. The largest lambda allowed,
n p / eta, makes an aggregation round replace the models by the mean.

Symbols: p -> aggregation_probability, lambda -> coupling_strength, eta / n ->
learning_rate (the factor of a client's own gradient, except for 1 / (1 - p)),
E -> num_epochs, K -> num_steps.

Deviations from the paper: clients report their models after every round, so the
server already has the mean when an aggregation round begins. (The paper sends
the models when the coin changes, which saves messages and gives the same
models.) If a cohort is only part of the clients, the mean is over the last
cohort. A client whose first round is an aggregation round is pulled toward it
from the initial weights. The server's model is the mean only with the default
server optimizer. Clients have equal weights, as in the paper. Momentum stays
within a round (`momentum=0` is the paper's).

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
  """Hyperparameters of L2GD: local rounds and aggregation rounds.

  Attributes:
    learning_rate: Learning rate of a local step, before it is divided by 1 -
      aggregation_probability.
    optimizer: The clients' optimizer: sgd or adam, with `learning_rate`.
    aggregation_probability: Probability of an aggregation round (p), in [0, 1).
    coupling_strength: Strength of the pull toward the mean model (lambda), at
      least 0.
  """

  optimizer: Literal['sgd', 'adam'] = 'sgd'
  aggregation_probability: fields.ShareBelowOne = 0.2
  coupling_strength: fields.NonNegative = 10.0

  def __post_init__(self):
    super().__post_init__()
    errors.expect(
      # This leaves room for rounding.
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
  'personal models, pulled toward their mean in random rounds', L2gdHParams
)
def l2gd(model, hparams):
  """L2GD."""
  loss = objectives.joint_loss(model)

  def train_personal(client, personal, num_epochs=None):
    rate = hparams.learning_rate / (1 - hparams.aggregation_probability)
    phase = hparams.phase(num_epochs, rate)
    return client.sgd(loss, personal, phase)

  def pull_to_mean(client):
    # The pull also contains the learning rate.
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
