"""Other divisions of the clients' examples than that of the data set.

A sweep decides by validation examples, a part of each client's training
examples: its runs are trained on the other part and scored on these, in place
of the test examples, which it never reads. In cross-validation each fold of a
client's examples is its test set once; a sweep there is of the first fold,
whose training examples the other folds test.
"""

from __future__ import annotations

import numpy as np

from tff_pfl import datasets
from tff_pfl.datasets import examples as examples_lib

# Of a seed, the random streams that divide the training examples, and all; the
# partition has those that are a number.
_DIVISION, _FOLDS = b'validation', b'folds'


class _PartsOfTraining:
  """Either part of the clients' training examples."""

  def __init__(
    self, data: datasets.FederatedDataset, fraction: float, seed: int
  ):
    self._data = data
    self._fraction = fraction
    self._seed = seed
    # Of the random streams, which also clients of a subset have.
    self._positions = {c: i for i, c in enumerate(data.client_ids)}

  def __call__(self, client_id: str, split: str) -> datasets.Examples:
    examples = self._data.train(client_id)
    available, gap = len(examples), self._data.num_overlapping
    # Both parts have at least one.
    num_held_out = min(
      max(round(self._fraction * available), 1), available - gap - 1
    )
    if num_held_out < 1:
      num_held_out = gap = 0
    if self._data.num_overlapping:
      # The last ones are held out: at random, each would have its neighbors,
      # which are nearly the same, among those that are trained on.
      order = np.arange(available)[::-1]
    else:
      seed = [self._seed, *_DIVISION, self._positions[client_id]]
      order = np.random.default_rng(seed).permutation(available)
    held_out = split == 'test'
    chosen = order[:num_held_out] if held_out else order[num_held_out + gap :]
    return examples.select(np.sort(chosen))


def validation_view(
  data: datasets.FederatedDataset, fraction: float, seed: int
) -> datasets.FederatedDataset:
  """A dataset whose test examples are a part of the training examples.

  Args:
    data: Data of the clients, whose test examples are never read.
    fraction: Part of each client's training examples, in (0, 1); at least
      one example, and one is left, where a client has two or more. A client
      with a single one is trained on it and not scored. Of examples that
      overlap (`num_overlapping`) it is the last ones, and those that overlap
      with them are in neither part; a client with too few for that is trained
      on all and not scored.
    seed: Seed of the division, non-negative.

  Returns:
    The same clients; `train` has the rest of their training examples.
  """
  return data.replaced(load=_PartsOfTraining(data, fraction, seed))


class _Folds:
  """The examples of a fold, and all others."""

  def __init__(
    self, data: datasets.FederatedDataset, fold: int, num_folds: int, seed: int
  ):
    self._data = data
    self._fold = fold
    self._num_folds = num_folds
    self._seed = seed
    self._positions = {c: i for i, c in enumerate(data.client_ids)}

  def __call__(self, client_id: str, split: str) -> datasets.Examples:
    examples = examples_lib.joined(
      [self._data.train(client_id), self._data.test(client_id)]
    )
    positions, gap = np.arange(len(examples)), self._data.num_overlapping
    if gap:
      # At random, each would have its neighbors, which are nearly the same,
      # among those that are trained on.
      tested = np.array_split(positions, self._num_folds)[self._fold]
    else:
      seed = [self._seed, *_FOLDS, self._positions[client_id]]
      tested = self._drawn(examples, np.random.default_rng(seed))
    if split == 'test':
      return examples.select(np.sort(tested))
    near = tested[:, np.newaxis] + np.arange(-gap, gap + 1)
    return examples.select(np.setdiff1d(positions, near))

  def _drawn(self, examples, rng):
    """The positions of a fold, stratified by domain and class."""
    strata = np.zeros([2, len(examples)], np.int64)
    if examples.y.ndim == 1 and np.issubdtype(examples.y.dtype, np.integer):
      strata[0] = examples.y
    if examples.domain is not None:
      strata[1] = examples.domain
    # Sorted by domain and class and at random within these: equidistant ones
    # are a stratified sample.
    order = np.lexsort((rng.random(len(examples)), *strata))
    # Not always the same folds have an example more.
    first = (self._fold + rng.integers(self._num_folds)) % self._num_folds
    return order[first :: self._num_folds]


def fold_view(
  data: datasets.FederatedDataset, fold: int, num_folds: int, seed: int
) -> datasets.FederatedDataset:
  """A dataset whose test examples are a fold of all examples of each client.

  Over the folds each example is tested once.

  Args:
    data: Data of the clients, whose training and test examples are pooled.
    fold: Number of the fold, from 0 on.
    num_folds: Number of folds, at least 2. Of a client with fewer examples some
      folds have none, and it is not scored there. Folds are stratified by
      domain and class; of examples that overlap (`num_overlapping`) they are
      ranges, and those that overlap with a range are not trained on.
    seed: Seed of the division, non-negative; the same for all folds.

  Returns:
    The same clients; `train` has the examples of the other folds.
  """
  return data.replaced(load=_Folds(data, fold, num_folds, seed))
