"""A partition of hidden units that the server finds, from sums over clients.

In each round, or once, the server ranks the units of every layer by their
communality (see `factor_analysis`) and makes those with the least personal, a
given number of each layer. As a comparison, it can rank them at random.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.core import personalized_process
from tff_pfl.methods.shared import factor_analysis
from tff_pfl.models import randomness, split_model, units

COMMUNALITIES = {
  'factor_analysis': factor_analysis.principal_factors,
  'eigenvectors': factor_analysis.eigenvector_squares,
}
SPLITS = (*COMMUNALITIES, 'random')


@dataclasses.dataclass(frozen=True)
class FoundPartition:
  """A partition that is found in rounds and kept by the server.

  Attributes:
    model: The process' model.
    num_personal: Number of personal units by divided layer.
    explained_variance: Share of the variance that common factors explain, in
      (0, 1].
    split: One of `SPLITS`.
    is_static: True to find it once, in the first round that anybody takes part
      in; False for every round.
  """

  model: split_model.SplitModel
  num_personal: Mapping[str, int]
  explained_variance: float
  split: str
  is_static: bool

  @property
  def initial_algorithm(self) -> collections.OrderedDict:
    """The server's state before there is a partition.

    Units that may become personal are: clients without own values of them use
    the global ones. (Where a partition is found in every round, clients may
    have been given own values to start from.)
    """
    is_shared = collections.OrderedDict(
      (layer, np.full(self.model.units[layer].number, count == 0))
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
            units.as_vectors(self.model.units[layer], columns)
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

    def found():
      seed = randomness.server_seed(state.seed, state.round_number)
      new = {
        name: collections.OrderedDict()
        for name in ('is_shared', 'num_factors', 'num_iterations')
      }
      for index, (layer, count) in enumerate(self.num_personal.items()):
        number = self.model.units[layer].number
        if self._is_analysed(layer):
          ranked, *numbers = COMMUNALITIES[self.split](
            factor_analysis.correlations(sums[layer]), self.explained_variance
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
        name: tf.nest.map_structure(tf.identity, before[name])
        for name in ('is_shared', 'num_factors', 'num_iterations')
      }

    new = (
      tf.cond(before['is_found'], kept, found) if self.is_static else found()
    )
    return collections.OrderedDict(
      is_shared=new['is_shared'],
      was_shared=before['is_shared'],
      num_factors=new['num_factors'],
      num_iterations=new['num_iterations'],
      is_found=tf.constant(True),
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
    number = self.model.units[layer].number
    return self.split in COMMUNALITIES and 0 < self.num_personal[layer] < number
