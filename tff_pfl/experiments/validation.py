"""Validation examples: a part of each client's training examples.

What a sweep decides by: its runs are trained on the one part and scored on the
other, which takes the place of the test examples. Nothing of it ever reads
these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from tff_pfl import datasets

# Of a seed, the random stream that divides the training examples; the partition
# has those that are a number.
_DIVISION = b'validation'


class _PartOfTraining(datasets.ExampleSource):
  """Either part of the clients' training examples."""

  def __init__(
    self,
    data: datasets.FederatedDataset,
    fraction: float,
    seed: int,
    held_out: bool,
  ):
    self._data = data
    self.in_memory = data.in_memory
    self._fraction = fraction
    self._seed = seed
    self._held_out = held_out

  def examples(self, position: int) -> datasets.Examples:
    examples = self._data.train(self._data.client_ids[position])
    kept = self._indices(position)
    return examples.select(kept)

  def content(self, position: int) -> Iterator[bytes]:
    yield repr((self._fraction, self._seed, self._held_out)).encode()
    yield from self._data.train_content(self._data.client_ids[position])

  def labels(self, position: int) -> np.ndarray:
    return self.examples(position).y

  def num_examples(self, position: int) -> int:
    return len(self._indices(position))

  def domains(self, position: int) -> Optional[np.ndarray]:
    if self._data.domain_names is None:
      return None
    domains = self._data.train_domains(self._data.client_ids[position])
    return domains[self._indices(position)]

  def _indices(self, position):
    """Where this part's examples are, in the order of the whole."""
    available = self._data.num_train_examples(self._data.client_ids[position])
    gap = self._data.num_overlapping
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
      rng = np.random.default_rng([self._seed, *_DIVISION, position])
      order = rng.permutation(available)
    if self._held_out:
      return np.sort(order[:num_held_out])
    return np.sort(order[num_held_out + gap :])


def validation_view(
  data: datasets.FederatedDataset, fraction: float, seed: int
) -> datasets.FederatedDataset:
  """A dataset whose test examples are a part of the training examples.

  Args:
    data: The clients. Their test examples are never read.
    fraction: The part of each client's training examples, in (0, 1); at least
      one example, and one is left, where a client has two or more. A client
      with a single one is trained on it and not scored. Of examples that
      overlap (`num_overlapping`) it is the last ones, and those that overlap
      with them are in neither part; a client with too few for that is trained
      on all and not scored.
    seed: Seed of the division, non-negative.

  Returns:
    The same clients; `train` is what is left of their training examples.
  """
  return datasets.FederatedDataset(
    name=data.name,
    client_ids=data.client_ids,
    element_spec=data.element_spec,
    num_classes=data.num_classes,
    train=_PartOfTraining(data, fraction, seed, held_out=False),
    test=_PartOfTraining(data, fraction, seed, held_out=True),
    domain_names=data.domain_names,
  )
