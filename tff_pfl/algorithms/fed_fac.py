"""FedFac: FedSplit whose partition is found by factor analysis.

Hidden elements (neurons, channels, recurrent units) of the layers Lambda are
shared or personal; see `fed_split`. A round:

    client:  W_k = (W^s, W_k^p);  for G epochs:  W_k <- SGD on all of it
             report the sums over its columns z_kj, one for each element
    server:  R_l = correlations of the columns;  nu_l = communalities of the
             G_l principal factors that explain kappa of the variance
             element j is shared iff nu_lj >= tau_l;  broadcast the partition
    client:  W_k^p <- W_k^p + Delta W_k^p;  send Delta W_k^s
    server:  W^s <- W^s + eta_g sum_k n_k Delta W_k^s / sum_k n_k

The dynamic mode does so in every round, on the round's updates of the elements'
weights or (the paper leaves it open) on the weights after it; in the first
round all clients start from the global weights. The static mode does it once,
in the first round that anybody takes part in, on the weights after it.
(Algorithm 1 has clients train before the first round to that end; as they would
start from the same weights, the first round's training is that training.) A
random split personalizes as many elements, drawn in each round or once.

A client that never took part trains its personal elements, from the server's
last values of them, with all shared weights frozen (the paper's LocalTrain).

A server optimizer with momentum goes on moving the global values of personal
elements, whose updates are 0; they are where newcomers start.

What a client sends for factor analysis is `factor_analysis.client_sums` of each
layer, d (d + 1) / 2 + d + 1 numbers for d elements, next to an update as large
as the model, in which the personal elements are 0. It receives the weights and
the partition. The sums are not weighted by examples: the paper's matrix has the
columns of all clients alike. In the static mode they are 0 after the first
round, but sent all the same, as the round is one computation.

Symbols: Lambda -> layers, tau_l -> threshold (a quantile of nu_l), kappa_l ->
explained_variance, G -> num_epochs, eta_l -> learning_rate, eta_g -> the
server optimizer's learning rate.

Deviations from the paper: where it is silent, an element that turns personal
starts from the client's last own value, or from the global one if it never had
any, and one that turns shared from the server's last value; both then move by
the round's change. The same tau and kappa hold for all layers. The columns have
no biases, as in section 4.1. Exactly as many elements are personal as have a
communality below the quantile where all differ: of equal ones (all 0, where
units are dead) the first are, while by nu_lj >= tau_l all would be shared. The
iteration ends early for more than 256 elements (see `factor_analysis`). As
everywhere in this library, the default is SGD with momentum 0.5; the paper's
runs have optimizer='adam', learning_rate=1e-3.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 4, Algorithms
  1 and 2.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.algorithms import registry
from tff_pfl.algorithms.parts import found_partition, personal_elements
from tff_pfl.client import hparams as hparams_lib
from tff_pfl.client import objectives, training_loop
from tff_pfl.models import split_model
from tff_pfl.templates import client_work

MODES = ('dynamic', 'static')
ANALYSED = ('updates', 'weights')


@dataclasses.dataclass(frozen=True)
class FedFacHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedFac, besides those of local training.

  Attributes:
    mode: Whether elements are divided anew in each round ('dynamic') or once
      ('static').
    analysed: What the factor analysis works on: the round's 'updates' of the
      elements' weights, or the 'weights' after it; None for updates in the
      dynamic mode and weights in the static one.
    layers: Names of the layers that are divided, separated by commas; None for
      the last hidden layer.
    threshold: The quantile of a layer's communalities below which elements are
      personal, in [0, 1]; inf makes all personal and -inf none (FedAvg).
    explained_variance: Share of the variance that the factors explain (kappa),
      in (0, 1]: there are as many as the largest eigenvalues that make up this
      share of the sum.
    split: 'factor_analysis', or 'random' for as many personal elements at
      random.
  """

  mode: str = 'dynamic'
  analysed: Optional[str] = None
  layers: Optional[str] = None
  threshold: float = 0.5
  explained_variance: float = 0.85
  split: str = 'factor_analysis'

  def __post_init__(self):
    for name, known in (('mode', MODES), ('split', found_partition.SPLITS)):
      value = getattr(self, name)
      errors.expect_one_of(name, value, known)
    errors.expect(
      self.analysed in (None, *ANALYSED),
      'analysed',
      f'one of {", ".join(ANALYSED)}, or none',
      self.analysed,
    )
    errors.expect(
      0 <= self.threshold <= 1 or math.isinf(self.threshold),
      'threshold',
      'a quantile in [0, 1], inf or -inf',
      self.threshold,
    )
    errors.expect_share('explained_variance', self.explained_variance, '(0, 1]')
    super().__post_init__()

  @property
  def analyses_weights(self) -> bool:
    """Whether the factor analysis is of the weights, not of their updates."""
    if self.analysed is None:
      return self.mode == 'static'
    return self.analysed == 'weights'

  def num_personal(self, number: int) -> int:
    """How many of a layer's `number` elements are below the threshold."""
    if math.isinf(self.threshold):
      return number if self.threshold > 0 else 0
    # 0.55 * 100 is 55 and a little.
    return math.ceil(self.threshold * (number - 1) - 1e-9)


class _Steps:
  """The steps of a round, and what a newcomer does.

  Attributes:
    partition: How the partition is found.
    personal: What clients keep under it.
  """

  def __init__(self, model: split_model.SplitModel, hparams: FedFacHParams):
    self._model = model
    self._hparams = hparams
    numbers = {
      layer: model.elements[layer].number
      for layer in model.layers_to_divide(hparams.layers)
    }
    num_personal = {
      layer: hparams.num_personal(number) for layer, number in numbers.items()
    }
    is_static = hparams.mode == 'static'
    self.partition = found_partition.FoundPartition(
      model, num_personal, hparams.explained_variance, hparams.split, is_static
    )
    self.personal = personal_elements.PersonalElements(
      model,
      {
        # Any may become personal, unless the partition stays or none may.
        layer: count if is_static or not count else numbers[layer]
        for layer, count in num_personal.items()
      },
    )

  def model_of(self, broadcast, local):
    """All weights of a client's model."""
    return self.personal.merge(
      broadcast.global_weights, local, broadcast.algorithm['is_shared']
    )

  def train_and_report(self, broadcast, local, examples, seed):
    """ClientUpdate: the client carries the trained weights over."""
    start = self.model_of(broadcast, local)
    trained = training_loop.train(
      objectives.joint_loss(self._model),
      start,
      examples,
      self._hparams.phase(),
      seed,
      model=self._model,
    )
    columns = trained.weights
    if not self._hparams.analyses_weights:
      columns = split_model.difference(start, trained.weights)
    report = self.partition.report(broadcast.algorithm, columns)
    return client_work.ClientResult(report=report, carried=trained)

  def find_partition(self, state, unused_update, sums, unused_cohort):
    """The server's part of the first exchange."""
    return {}, self.partition.next(state, sums)

  def divide(self, broadcast, local, unused_examples, unused_seed, carried):
    """Sends what is shared now, keeps what is personal."""
    trained = training_loop.TrainResult(*carried)
    update, new_local = self.personal.trained(
      broadcast.global_weights,
      local,
      trained.weights,
      broadcast.algorithm['was_shared'],
      broadcast.algorithm['is_shared'],
    )
    return client_work.ClientResult(update, new_local, trained.metrics)

  def fit_new_client(self, broadcast, local, examples, seed, num_epochs):
    """LocalTrain; nothing as long as a static partition is to be found."""

    def fit():
      is_shared = broadcast.algorithm['is_shared']
      values = training_loop.train_part(
        self._model,
        self.personal.kept_slices(self.model_of(broadcast, local), is_shared),
        lambda part: self.model_of(
          broadcast, self.personal.all_own(part, is_shared)
        ),
        lambda weights: self.personal.kept_slices(weights, is_shared),
        examples,
        self._hparams.phase(num_epochs),
        seed,
      ).weights
      return self.personal.all_own(values, is_shared)

    if not self.partition.is_static:
      return fit()
    return tf.cond(
      broadcast.algorithm['is_found'],
      fit,
      lambda: tf.nest.map_structure(tf.identity, local),
    )


@registry.method(
  FedFacHParams,
  'hidden elements global or local, told apart by factor analysis',
)
def build_fed_fac(
  model: split_model.SplitModel, hparams: FedFacHParams
) -> client_work.ClientWork:
  """FedFac.

  Raises:
    ValueError: If a layer does not exist or cannot be divided.
  """
  steps = _Steps(model, hparams)
  has_personal = any(steps.partition.num_personal.values())
  return client_work.ClientWork(
    model,
    [
      client_work.Exchange(
        steps.train_and_report, steps.find_partition, weighting='uniform'
      ),
      client_work.Exchange(steps.divide),
    ],
    initial_global=model.initial_weights,
    initial_local=steps.personal.initial_local,
    personal_weights=steps.model_of,
    global_model=None if has_personal else lambda weights: weights,
    fit_new_client=steps.fit_new_client if has_personal else None,
    initial_algorithm=steps.partition.initial_algorithm,
    server_metrics=steps.partition.metrics,
  )
