"""FedFac: FedSplit whose partition is found by factor analysis.

Hidden units (neurons, channels, units of recurrent layers) of the layers Lambda
are shared or personal; see `fed_split`. A round:

    client:  W_k = (W^s, W_k^p);  for G epochs:  W_k <- SGD on all of it
             report the sums over its columns z_kj, one for each unit; keep W_k
    server:  R_l = correlations of the columns;  nu_l = communalities of the
             G_l principal factors that explain kappa of the variance
             unit j is shared iff nu_lj >= tau_l;  broadcast the partition
    client:  send W_k^s
    server:  W^s <- W^s + eta_g (sum_k n_k W_k^s / sum_k n_k - W^s)

The dynamic mode does so in every round. The columns are of the weights after
the round, as in the authors' code, or of the round's updates (the paper says
"updates (weights or gradients)"). In the first round all clients start from the
global weights. The static mode does it once, in the first round that anybody
takes part in.
(Algorithm 1 has clients train before the first round to that end; as they would
start from the same weights, the first round's training is that training.) A
random split personalizes as many units, drawn in each round or once.

A client that never took part trains its personal units, from the server's last
values of them, with all shared weights frozen (the paper's LocalTrain). In the
authors' code it trains all weights, and then takes the shared ones back:
new_client_training='all'. (The code starts from the model of the client that
was scored before, which no other client has.)

A server optimizer with momentum goes on moving the global values of personal
units, whose updates are 0; they are where newcomers start.

For factor analysis a client sends `factor_analysis.client_sums` of each layer,
d (d + 1) / 2 + d + 1 numbers for d units, next to an update as large as the
model, in which the personal units are 0. It receives the weights and the
partition. The sums are not weighted by examples: the paper's matrix has the
columns of all clients alike. In the static mode they are 0 after the first
round, but sent all the same, as the round is one computation.

Symbols: Lambda -> layers, tau_l -> threshold (a quantile of nu_l), kappa_l ->
explained_variance, G -> num_epochs, eta_l -> learning_rate, eta_g -> the
server optimizer's learning rate.

A unit that turns shared takes the mean of the values that the cohort trained,
one that turns personal the client's own last trained value, or the global one
if the client never trained. The paper is silent about both. The authors' code
(github.com/ffair/FedFac) does the same, but for a client that never trained:
there its personal units have their initial values. The code divides a layer's
kernels alone, while its biases and normalization stay with the client:
divided='kernels'.

Deviations from the paper: the same tau and kappa hold for all layers. The
columns have no biases, as in section 4.1. Exactly as many units are personal as
have a communality below the quantile where all differ: of equal ones (all 0,
where units are dead) the first are, while by nu_lj >= tau_l all would be
shared. The iteration ends early for more than 256 units (see
`factor_analysis`). The paper's runs have optimizer='adam', learning_rate=1e-3.

References:
  Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized
  Optimization with Heterogeneous Data, arXiv:2312.04281, section 4, Algorithms
  1 and 2.
"""

import collections
import math
from collections.abc import Collection
from typing import Any, Literal, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.core import client as client_lib
from tff_pfl.core import client_work, objectives, personalized_process, phases
from tff_pfl.core import hparams as hparams_lib
from tff_pfl.methods import registry
from tff_pfl.methods.shared import factor_analysis
from tff_pfl.models import randomness, split_model, units

COMMUNALITIES = {
  'factor_analysis': factor_analysis.principal_factors,
  'eigenvectors': factor_analysis.eigenvector_squares,
}
SPLITS = (*COMMUNALITIES, 'random')


class FoundPartition:
  """A partition that is found in rounds and kept by the server.

  The server ranks the units of every layer by their communality, or at random,
  and makes those with the least personal, a given number of each layer.

  Attributes:
    num_personal: Number of personal units by divided layer.
    is_static: True to find it once, in the first round that anybody takes part
      in; False for every round.
  """

  def __init__(self, model: split_model.SplitModel, hparams: Any):
    """Takes the process' model and `FedFacHParams`."""
    self._units, self._hparams = model.units, hparams
    self.num_personal = {
      layer: hparams.num_personal(model.units[layer].number)
      for layer in model.layers_to_divide(hparams.layers)
    }
    self.is_static = hparams.mode == 'static'

  @property
  def initial_algorithm(self) -> collections.OrderedDict:
    """The server's state before there is a partition.

    Units that may become personal are: clients without own values of them use
    the global ones. (Where a partition is found in every round, clients may
    have been given own values to start from.)
    """
    is_shared = collections.OrderedDict(
      (layer, np.full(self._units[layer].number, count == 0))
      for layer, count in self.num_personal.items()
    )
    zeros = collections.OrderedDict.fromkeys(self.num_personal, np.int32(0))
    return collections.OrderedDict(
      is_shared=is_shared,
      was_shared=is_shared,
      num_factors=zeros,
      num_iterations=zeros,
      is_found=np.bool_(False),
    )

  def report(
    self, algorithm: Any, columns: split_model.Weights
  ) -> collections.OrderedDict:
    """A client's report: the sums over its columns, by analysed layer.

    Args:
      columns: The values by weight that the units' columns are made of.
    """

    def sums():
      return collections.OrderedDict(
        (
          layer,
          factor_analysis.client_sums(
            units.as_vectors(self._units[layer], columns)
          ),
        )
        for layer in self.num_personal
        if self._is_analysed(layer)
      )

    if not self.is_static:
      return sums()
    return tf.cond(
      algorithm['is_found'],
      lambda: tf.nest.map_structure(tf.zeros_like, sums()),
      sums,
    )

  def next(
    self, state: personalized_process.ServerState, sums: Any
  ) -> collections.OrderedDict:
    """The server's next state, from the mean of the clients' reports."""
    before = state.algorithm
    names = ('is_shared', 'num_factors', 'num_iterations')

    def found():
      seed = randomness.server_seed(state.seed, state.round_number)
      new = {name: collections.OrderedDict() for name in names}
      for index, (layer, count) in enumerate(self.num_personal.items()):
        number = self._units[layer].number
        if self._is_analysed(layer):
          ranked, *numbers = COMMUNALITIES[self._hparams.split](
            factor_analysis.correlations(sums[layer]),
            self._hparams.explained_variance,
          )
        else:
          ranked = randomness.permutations(
            randomness.fold_in(seed, index), 1, number, number
          )[0]
          numbers = [tf.constant(0)] * 2
        is_shared = ~factor_analysis.least(ranked, count)
        for name, value in zip(new, (is_shared, *numbers)):
          new[name][layer] = value
      return new

    def kept():
      return {
        name: tf.nest.map_structure(tf.identity, before[name]) for name in names
      }

    new = (
      tf.cond(before['is_found'], kept, found) if self.is_static else found()
    )
    return collections.OrderedDict(
      {
        **before,
        **new,
        'was_shared': before['is_shared'],
        'is_found': tf.constant(True),
      }
    )

  def metrics(self, algorithm: Any) -> collections.OrderedDict:
    """A round's metrics of each layer.

    `unchanged_elements`, the share of units on the same side as in the last
    partition (for the first one, the share of personal ones); `num_factors`,
    the number of common factors; and `num_iterations`, the iterations that
    found them, see `factor_analysis.max_iterations`.
    """
    unchanged = tf.nest.map_structure(
      lambda now, before: tf.reduce_mean(
        tf.cast(tf.equal(now, before), tf.float32)
      ),
      algorithm['is_shared'],
      algorithm['was_shared'],
    )
    return collections.OrderedDict(
      unchanged_elements=unchanged,
      num_factors=algorithm['num_factors'],
      num_iterations=algorithm['num_iterations'],
    )

  def _is_analysed(self, layer):
    """True if a part of the layer is personal, by communalities."""
    is_divided = 0 < self.num_personal[layer] < self._units[layer].number
    return is_divided and self._hparams.split in COMMUNALITIES


class PersonalElements:
  """Clients' own units of some layers of a model.

  A client trains with the global slices of the shared units (`is_shared`: by
  layer, bool `[number]`) and its own slices of the personal units. It keeps, in
  the shapes of the layers' weights:

      values   by weight, all slices of its last training
      is_own   bool, False for a client that never trained: it has the global
               ones

  It keeps the slices of shared units as well, which the next download replaces.
  """

  def __init__(
    self,
    model: split_model.SplitModel,
    layers: Collection[str],
    kernels_only: bool = False,
  ):
    """Prepares the division.

    Args:
      layers: The layers of which any unit may become personal.
      kernels_only: True to divide kernels alone; the layers' other weights are
        personal as a whole.
    """
    self._model = model
    # By weight, its layer and its number of blocks with a slice per unit.
    self._owned = {
      name: (layer, model.units[layer].gates[name])
      for name in model.initial_weights
      for layer in layers
      if name in model.units[layer].gates
    }
    self._undivided = {
      name
      for name, (layer, _) in self._owned.items()
      if kernels_only and name not in model.units[layer].kernels
    }

  @property
  def initial_local(self) -> collections.OrderedDict:
    """The state of a client without own units (arrays)."""
    return collections.OrderedDict(
      values=self._values_of(self._model.initial_weights),
      is_own=np.bool_(False),
    )

  def merge(
    self, global_weights: split_model.Weights, local: Any, is_shared: Any
  ) -> collections.OrderedDict:
    """All weights of a client's model: the server's and its own units'."""
    merged = self._with_personal(global_weights, local['values'], is_shared)
    merged.update(
      (name, tf.where(local['is_own'], merged[name], global_weights[name]))
      for name in self._owned
    )
    return merged

  def fit(
    self, client: client_lib.Client, phase: phases.Phase, trained: str
  ) -> Any:
    """Trains the client's own units; returns its state.

    Args:
      trained: Weights that move: the 'personal' ones, or 'all'.
    """
    is_shared = client.algorithm['is_shared']
    start = self.merge(client.received, client.local, is_shared)
    if trained == 'all':
      loss = objectives.joint_loss(self._model)
      values = self._values_of(client.sgd(loss, start, phase).weights)
    else:
      values = client.fit_part(
        self._values_of(start),
        lambda own: self._with_personal(client.received, own, is_shared),
        self._values_of,
        phase,
      ).weights
    return collections.OrderedDict(values=values, is_own=tf.constant(True))

  def divide(
    self, client: client_lib.Client, trained: split_model.Weights
  ) -> tuple:
    """Divides the result of a client's training by the partition received.

    Args:
      trained: All weights after the training.

    Returns:
      The update, which takes the server's shared slices to the trained ones and
      is 0 for personal units, and the client's new state.
    """
    update = split_model.difference(client.received, trained)
    zeros = tf.nest.map_structure(tf.zeros_like, update)
    local = collections.OrderedDict(
      values=self._values_of(trained), is_own=tf.constant(True)
    )
    is_shared = client.algorithm['is_shared']
    return self._with_personal(update, zeros, is_shared), local

  def _values_of(self, weights):
    """Those of some weights that a client keeps."""
    return collections.OrderedDict(
      (name, weights[name]) for name in self._owned if name in weights
    )

  def _with_personal(self, shared, personal, is_shared):
    """`shared`, by weight, with the personal units' slices of `personal`."""
    merged = collections.OrderedDict(shared)
    for name, (layer, gates) in self._owned.items():
      merged[name] = personal[name]
      if name not in self._undivided:
        merged[name] = tf.where(
          tf.tile(is_shared[layer], [gates]), shared[name], personal[name]
        )
    return merged


def _check_threshold(value):
  errors.expect(
    0 <= value <= 1 or math.isinf(value),
    'threshold',
    'a quantile in [0, 1], inf or -inf',
    value,
  )


@fields.dataclass
class FedFacHParams(hparams_lib.LocalTrainingHParams):
  """Hyperparameters of FedFac, besides those of local training.

  Attributes:
    mode: Division of units anew in each round ('dynamic') or once ('static').
    analysed: Input of the factor analysis: the units' 'weights' after the
      round, or the round's 'updates' of them.
    layers: Names of the layers that are divided, separated by commas; None for
      the last hidden layer.
    threshold: Quantile of a layer's communalities below which units are
      personal, in [0, 1]; inf makes all personal and -inf none (FedAvg).
    explained_variance: Share of the variance that the factors explain (kappa),
      in (0, 1]: there are as many as the largest eigenvalues that make up this
      share of the sum.
    divided: Weights of a layer that are divided: 'all', or the 'kernels', whose
      layers' other weights are personal as a whole.
    split: Order of units: 'factor_analysis'; 'eigenvectors' for the
      communalities of the authors' code, see
      `factor_analysis.eigenvector_squares`; or 'random' for as many personal
      units at random.
    new_client_training: Weights that a client trains that never took part: the
      'personal' ones, or 'all', of which it keeps the personal ones.
  """

  mode: Literal['dynamic', 'static'] = 'dynamic'
  analysed: Literal['weights', 'updates'] = 'weights'
  layers: Optional[str] = None
  threshold: fields.checked(float, _check_threshold) = 0.5
  explained_variance: fields.PositiveShare = 0.85
  divided: Literal['all', 'kernels'] = 'all'
  split: fields.one_of(SPLITS) = 'factor_analysis'
  new_client_training: Literal['personal', 'all'] = 'personal'

  def num_personal(self, number: int) -> int:
    """Number of units below the threshold in a layer of `number` units."""
    if math.isinf(self.threshold):
      return number if self.threshold > 0 else 0
    # 0.55 * 100 is 55 and a little.
    return math.ceil(self.threshold * (number - 1) - 1e-9)


@registry.method(
  'hidden units global or local, told apart by factor analysis', FedFacHParams
)
def fed_fac(model, hparams):
  """FedFac."""
  partition = FoundPartition(model, hparams)
  layers = [layer for layer, count in partition.num_personal.items() if count]
  personal = PersonalElements(
    model, layers, kernels_only=hparams.divided == 'kernels'
  )

  def model_of(broadcast, local):
    return personal.merge(
      broadcast.global_weights, local, broadcast.algorithm['is_shared']
    )

  def train_and_report(client):
    """ClientUpdate: the client keeps the trained weights for `divide`."""
    start = model_of(client.broadcast, client.local)
    trained = client.sgd(objectives.joint_loss(model), start, hparams.phase())
    columns = trained.weights
    if hparams.analysed == 'updates':
      columns = split_model.difference(start, trained.weights)
    report = partition.report(client.algorithm, columns)
    return client_lib.ClientResult(report=report, cache=trained)

  def find_partition(state, unused_update, sums, unused_cohort):
    return {}, partition.next(state, sums)

  def divide(client):
    """Sends the units that are shared now, keeps the personal ones."""
    weights, metrics = client.cache
    update, local = personal.divide(client, weights)
    return client_lib.ClientResult(update, local, metrics)

  def fit_new_client(client, num_epochs):
    """LocalTrain; no training before a static partition is found."""

    def fit():
      phase = hparams.phase(num_epochs)
      return personal.fit(client, phase, hparams.new_client_training)

    if not partition.is_static:
      return fit()
    return tf.cond(
      client.algorithm['is_found'],
      fit,
      lambda: tf.nest.map_structure(tf.identity, client.local),
    )

  return client_work.global_weights_work(
    model,
    client_work.Exchange(train_and_report, find_partition, 'uniform'),
    client_work.Exchange(divide),
    initial_local=personal.initial_local,
    personal_weights=model_of,
    global_model=None if layers else lambda weights: weights,
    fit_new_client=fit_new_client if layers else None,
    initial_algorithm=partition.initial_algorithm,
    server_metrics=partition.metrics,
  )
