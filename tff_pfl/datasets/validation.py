"""Divisions of clients' examples for validation and cross-validation.

A sweep decides by validation examples, a part of each client's training
examples. Its runs train on the other part and are scored on the validation
examples. It never reads the test examples. In cross-validation, each fold of a
client's examples is its test set once. A sweep then uses the first fold, whose
training examples are the test examples of the other folds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from tff_pfl import datasets
from tff_pfl.datasets import examples as examples_lib

# Random streams of a seed that divide the training examples and all examples.
# The partition uses streams that are a single number.
_DIVISION, _FOLDS = b'validation', b'folds'


@dataclasses.dataclass(eq=False)
class _Division:
  """Loads clients' examples, some of which are held out for tests.

  Attributes:
    data: Data of the clients.
    read: Function of a client id that returns the examples to divide.
    hold_out: Function of these examples, their number of overlapping neighbors
      and a random generator that returns the test positions.
    stream: Seed of the generators, without the client's own part.
  """

  data: datasets.FederatedDataset
  read: Callable[[str], datasets.Examples]
  hold_out: Callable[..., np.ndarray]
  stream: list[int]

  @functools.cached_property
  def _positions(self):
    # Clients of a subset keep these positions, and so their random streams.
    return {c: i for i, c in enumerate(self.data.client_ids)}

  def __call__(self, client_id: str, split: str) -> datasets.Examples:
    examples, gap = self.read(client_id), self.data.num_overlapping
    rng = np.random.default_rng([*self.stream, self._positions[client_id]])
    tested = np.sort(self.hold_out(examples, gap, rng))
    if split == 'test':
      return examples.select(tested)
    near = tested[:, np.newaxis] + np.arange(-gap, gap + 1)
    return examples.select(np.setdiff1d(np.arange(len(examples)), near))


def _part(fraction, examples, gap, rng):
  """Returns the positions of the held-out part of a client's examples."""
  available = len(examples)
  # Each part has at least one example if there are enough.
  count = max(min(max(round(fraction * available), 1), available - gap - 1), 0)
  if gap:
    # The last ones: random ones would have neighbors, which are nearly the
    # same, among the training examples.
    return np.arange(available - count, available)
  return rng.permutation(available)[:count]


def validation_view(
  data: datasets.FederatedDataset, fraction: float, seed: int
) -> datasets.FederatedDataset:
  """Returns a dataset whose test examples are held-out training examples.

  Args:
    data: Data of the clients, whose test examples are never read.
    fraction: Fraction of each client's training examples to hold out, in
      (0, 1). Each part has at least one example if the client has two or more.
      A client with one example trains on it and is not scored. If examples
      overlap (`num_overlapping`), the last ones are held out, and examples that
      overlap with them are in neither part. A client with too few examples for
      that trains on all of them and is not scored.
    seed: Seed of the division, non-negative.

  Returns:
    The same clients, whose `train` has the remaining training examples.
  """
  hold_out = functools.partial(_part, fraction)
  return data.replaced(
    load=_Division(data, data.train, hold_out, [seed, *_DIVISION])
  )


def _all_examples(data, client_id):
  return examples_lib.joined([data.train(client_id), data.test(client_id)])


def _fold(fold, num_folds, examples, gap, rng):
  """Returns the positions of a fold, stratified by domain and class."""
  if gap:
    # A range, as neighbors are nearly the same.
    return np.array_split(np.arange(len(examples)), num_folds)[fold]
  strata = np.zeros([2, len(examples)], np.int64)
  if examples.y.ndim == 1 and np.issubdtype(examples.y.dtype, np.integer):
    strata[0] = examples.y
  if examples.domain is not None:
    strata[1] = examples.domain
  # Sorted by domain and class, in random order within each: equidistant
  # examples are a stratified sample.
  order = np.lexsort((rng.random(len(examples)), *strata))
  # The folds that have one example more differ between clients.
  first = (fold + rng.integers(num_folds)) % num_folds
  return order[first::num_folds]


def fold_view(
  data: datasets.FederatedDataset, fold: int, num_folds: int, seed: int
) -> datasets.FederatedDataset:
  """Returns a dataset whose test examples are a fold of a client's examples.

  Each example is a test example in exactly one fold.

  Args:
    data: Data of the clients, whose training and test examples are pooled.
    fold: Number of the fold, starting at 0.
    num_folds: Number of folds, at least 2. A client with fewer examples has
      none in some folds and is not scored there. Folds are stratified by domain
      and class. If examples overlap (`num_overlapping`), folds are ranges, and
      examples that overlap with a range are not trained on.
    seed: Seed of the division, non-negative and the same for all folds.

  Returns:
    The same clients, whose `train` has the examples of the other folds.
  """
  read = functools.partial(_all_examples, data)
  hold_out = functools.partial(_fold, fold, num_folds)
  return data.replaced(load=_Division(data, read, hold_out, [seed, *_FOLDS]))
