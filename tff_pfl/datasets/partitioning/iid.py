"""Clients that are all alike."""

import dataclasses
from typing import ClassVar

import numpy as np

from tff_pfl.datasets.partitioning import weighted


@dataclasses.dataclass(frozen=True)
class Iid(weighted.WeightedPartitioner):
  """The same class distribution and size everywhere."""

  name: ClassVar[str] = 'iid'
  summary: ClassVar[str] = 'the same class distribution and size everywhere'
  needs_classes: ClassVar[bool] = False

  def class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Gives all the same weight."""
    del seed  # Nothing is drawn: only dealing the examples is random.
    return np.ones((num_clients, len(class_counts)))
