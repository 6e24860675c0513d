"""FedFac: FedSplit whose partition is found by factor analysis.

Hidden units (neurons, channels, units of recurrent layers) of the layers Lambda
are shared or personal (see `fed_split`). A round:

    client:  W_k = (W^s, W_k^p);  for G epochs:  W_k <- SGD on all of it
             report the sums over its columns z_kj, one for each unit; keep W_k
    server:  R_l = correlations of the columns;  nu_l = communalities of the
             G_l principal factors that explain kappa of the variance
             unit j is shared iff nu_lj >= tau_l;  broadcast the partition
    client:  send W_k^s
    server:  W^s <- W^s + eta_g (sum_k n_k W_k^s / sum_k n_k - W^s)

The dynamic mode does so in every round. The columns are of the client's weights
after its training, as in the authors' code, or of the round's updates of them
(the paper says "updates (weights or gradients)"). All clients start the first
round from the global weights. The static mode does so once, in the first round
in which clients take part. (Algorithm 1 has clients train for this before the
first round. They would start from the same weights, so the first round's
training does the same.) A random split makes the same number of units personal,
drawn in each round or once.

A client that never took part trains its personal units, from the server's last
values, with all shared weights frozen (the paper's LocalTrain). The authors'
code trains all weights and then restores the shared ones:
new_client_training='all'. (The code starts from the model of the client scored
before, which a client cannot have.)

A server optimizer with momentum keeps moving the global values of personal
units, although their updates are 0. New clients start from these values.

For factor analysis, a client sends `factor_analysis.client_sums` of each layer,
d (d + 1) / 2 + d + 1 numbers for d units. It also sends an update as large as
the model, in which the personal units are 0. It receives the weights and the
partition. The sums are not weighted by examples, because the paper's matrix
treats the columns of all clients alike. In the static mode, the sums are 0
after the first round, but are still sent because the round is one computation.

Symbols: Lambda -> layers, tau_l -> threshold (a quantile of nu_l), kappa_l ->
explained_variance, G -> num_epochs, eta_l -> learning_rate, eta_g -> the server
optimizer's learning rate.

A unit that becomes shared takes the mean of the values that the cohort trained.
A unit that becomes personal takes the client's own last trained value, or the
global value if the client never trained. The paper describes neither. The
authors' code (github.com/ffair/FedFac) does the same, except that the personal
units of a client that never trained have their initial values. The code divides
only a layer's kernels, while its biases and normalization stay with the client:
divided='kernels'.

Deviations from the paper: the same tau and kappa hold for all layers. The
columns have no biases, as in section 4.1. Exactly as many units are personal as
lie below the quantile if all communalities differ. Among equal communalities
(all 0 if units are dead), the first units are personal, while nu_lj >= tau_l
would make all of them shared. The iteration ends early for more than 256 units
(see `factor_analysis`). The paper's runs have optimizer='adam',
learning_rate=1e-3.

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
  """A partition that the server finds in rounds and keeps.

  The server ranks the units of each layer by their communality, or at random,
  and makes a given number of the lowest ones personal.

  Attributes:
    num_personal: Number of personal units by divided layer.
    is_static: True to find the partition once, in the first round in which
      clients take part. False to find it in every round.
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

    Units that may become personal start as personal, and clients without their
    own values use the global ones. (In the dynamic mode, clients may have been
    given their own values to start from.)
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
    """A client's report: the sums over its columns, by analyzed layer.

    Args:
      columns: The values, by weight, that make up the units' columns.
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

    def find():
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

    def keep():
      return {
        name: tf.nest.map_structure(tf.identity, before[name]) for name in names
      }

    new = tf.cond(before['is_found'], keep, find) if self.is_static else find()
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

    `unchanged_elements` is the share of units on the same side as in the last
    partition (in the first one, the share of personal units, or 1 without any).
    `num_factors` is the number of common factors. `num_iterations` is the
    number of iterations that found them (see `factor_analysis.max_iterations`).
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
    """True if communalities decide which part of the layer is personal."""
    is_divided = 0 < self.num_personal[layer] < self._units[layer].number
    return is_divided and self._hparams.split in COMMUNALITIES


class PersonalElements:
  """Clients' own units of some layers of a model.

  A client trains with the global slices of the shared units (`is_shared`: by
  layer, bool `[number]`) and its own slices of the personal units. It keeps:

      values   all slices of its last training, by weight and in its shape
      is_own   bool, False for a client that never trained, which has the global
               slices

  The values include slices of shared units, which the next download replaces.
  """

  def __init__(
    self,
    model: split_model.SplitModel,
    layers: Collection[str],
    kernels_only: bool = False,
  ):
    """Prepares the division.

    Args:
      layers: Layers in which any unit may become personal.
      kernels_only: True to divide only kernels. The layers' other weights are
        then personal as a whole.
    """
    self._model = model
    # Weight to its layer and its number of blocks with a slice per unit.
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
    """The state of a client without its own units (arrays)."""
    return collections.OrderedDict(
      values=self._values_of(self._model.initial_weights),
      is_own=np.bool_(False),
    )

  def merge(
    self, global_weights: split_model.Weights, local: Any, is_shared: Any
  ) -> collections.OrderedDict:
    """All weights of a client's model, from the server and its own units."""
    merged = self._with_personal(global_weights, local['values'], is_shared)
    merged.update(
      (name, tf.where(local['is_own'], merged[name], global_weights[name]))
      for name in self._owned
    )
    return merged

  def fit(
    self, client: client_lib.Client, phase: phases.Phase, trained: str
  ) -> Any:
    """Trains the client's own units and returns its state.

    Args:
      trained: Weights that are trained: 'personal' or 'all'.
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
    """Divides the result of a client's training by the received partition.

    Args:
      trained: All weights after the training.

    Returns:
      The update and the client's new state. The update moves the server's
      shared slices to the trained ones and is 0 for personal units.
    """
    update = split_model.difference(client.received, trained)
    zeros = tf.nest.map_structure(tf.zeros_like, update)
    local = collections.OrderedDict(
      values=self._values_of(trained), is_own=tf.constant(True)
    )
    is_shared = client.algorithm['is_shared']
    return self._with_personal(update, zeros, is_shared), local

  def _values_of(self, weights):
    """The given weights that a client keeps."""
    return collections.OrderedDict(
      (name, weights[name]) for name in self._owned if name in weights
    )

  def _with_personal(self, shared, personal, is_shared):
    """`shared`, by weight, with the personal slices from `personal`."""
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
  """Hyperparameters of FedFac: local training and the partition.

  Attributes:
    mode: Frequency of the division: in each round ('dynamic') or once
      ('static').
    analysed: Input of the factor analysis: the units' 'weights' after a
      client's training, or the round's 'updates' of them.
    layers: Names of the layers that are divided, separated by commas. None uses
      the last hidden layer.
    threshold: Quantile of a layer's communalities below which units are
      personal, in [0, 1]. The value inf makes all units personal, -inf none
      (FedAvg).
    explained_variance: Share of the variance that the factors explain (kappa),
      in (0, 1]. There are as many factors as it takes of the largest
      eigenvalues to reach this share of the sum of all.
    divided: Weights of a layer that are divided: 'all', or only the 'kernels',
      which leaves the layers' other weights personal as a whole.
    split: Order of units: 'factor_analysis', 'eigenvectors' for the
      communalities of the authors' code (see
      `factor_analysis.eigenvector_squares`), or 'random' for the same number of
      personal units at random.
    new_client_training: Weights that a client trains if it never took part: the
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
    # 0.55 * 100 is slightly above 55.
    return math.ceil(self.threshold * (number - 1) - 1e-9)


@registry.method(
  'hidden units global or local, divided by factor analysis', FedFacHParams
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
    """Sends the units that are now shared and keeps the personal ones."""
    weights, metrics = client.cache
    update, local = personal.divide(client, weights)
    return client_lib.ClientResult(update, local, metrics)

  def fit_new_client(client, num_epochs):
    """LocalTrain, which does nothing before a static partition is found."""

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
