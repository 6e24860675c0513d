"""Validation examples: a part of each client's training examples.

A sweep decides by them: its runs are trained on the other part and scored on
these examples, in place of the test examples, which it never reads.
"""

from __future__ import annotations

import numpy as np

from tff_pfl import datasets

# Of a seed, the random stream that divides the training examples; the partition
# has those that are a number.
_DIVISION = b'validation'


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
