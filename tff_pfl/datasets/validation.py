"""Other divisions of the clients' examples than that of the data set.

A sweep decides by validation examples, a part of each client's training
examples: its runs are trained on the other part and scored on these, in place
of the test examples, which it never reads. In cross-validation each fold of a
client's examples is its test set once; a sweep there is of the first fold,
whose training examples the other folds test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tff_pfl import datasets
from tff_pfl.datasets import examples as examples_lib

# Of a seed, the random streams that divide the training examples, and all; the
# partition has those that are a number.
_DIVISION, _FOLDS = b'validation', b'folds'


class _Division:
  """A loader of clients' examples, some of which are held out for tests."""

  def __init__(
    self,
    data: datasets.FederatedDataset,
    read: Callable[[str], datasets.Examples],
    hold_out: Callable[..., np.ndarray],
    stream: list[int],
  ):
    """Takes the clients' examples.

    Args:
      data: Data of the clients.
      read: Function from a client's id to the examples to divide.
      hold_out: Function from these, their number of overlapping neighbors and a
        random generator to the positions of the test examples.
      stream: Seed of the generators, without the client's own part.
    """
    self._read = read
    self._hold_out = hold_out
    self._gap = data.num_overlapping
    self._stream = stream
    # Of the random streams, which also clients of a subset have.
    self._positions = {c: i for i, c in enumerate(data.client_ids)}

  def __call__(self, client_id: str, split: str) -> datasets.Examples:
    examples = self._read(client_id)
    rng = np.random.default_rng([*self._stream, self._positions[client_id]])
    tested = np.sort(self._hold_out(examples, self._gap, rng))
    if split == 'test':
      return examples.select(tested)
    near = tested[:, np.newaxis] + np.arange(-self._gap, self._gap + 1)
    return examples.select(np.setdiff1d(np.arange(len(examples)), near))


def _part(fraction, examples, gap, rng):
  """The positions of a part of a client's examples."""
  available = len(examples)
  # Both parts have at least one.
  count = max(min(max(round(fraction * available), 1), available - gap - 1), 0)
  if gap:
    # The last ones: at random, each would have its neighbors, which are nearly
    # the same, among those that are trained on.
    return np.arange(available - count, available)
  return rng.permutation(available)[:count]


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
  hold_out = functools.partial(_part, fraction)
  return data.replaced(
    load=_Division(data, data.train, hold_out, [seed, *_DIVISION])
  )


def _all_examples(data, client_id):
  return examples_lib.joined([data.train(client_id), data.test(client_id)])


def _fold(fold, num_folds, examples, gap, rng):
  """The positions of a fold, stratified by domain and class."""
  if gap:
    # A range, as the neighbors are nearly the same.
    return np.array_split(np.arange(len(examples)), num_folds)[fold]
  strata = np.zeros([2, len(examples)], np.int64)
  if examples.y.ndim == 1 and np.issubdtype(examples.y.dtype, np.integer):
    strata[0] = examples.y
  if examples.domain is not None:
    strata[1] = examples.domain
  # Sorted by domain and class and at random within these: equidistant ones
  # are a stratified sample.
  order = np.lexsort((rng.random(len(examples)), *strata))
  # Not always the same folds have an example more.
  first = (fold + rng.integers(num_folds)) % num_folds
  return order[first::num_folds]


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
  read = functools.partial(_all_examples, data)
  hold_out = functools.partial(_fold, fold, num_folds)
  return data.replaced(load=_Division(data, read, hold_out, [seed, *_FOLDS]))
