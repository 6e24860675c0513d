"""Clients of the same classes everywhere: of equal sizes, or of drawn ones."""

import dataclasses
from typing import ClassVar

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import dealing, weighted


@dataclasses.dataclass(frozen=True)
class Iid(weighted.WeightedPartitioner):
  """The same class distribution and size everywhere."""

  name: ClassVar[str] = 'iid'
  summary: ClassVar[str] = 'the same class distribution and size everywhere'
  needs_classes: ClassVar[bool] = False

  def _class_weights(self, num_clients, class_counts, seed):
    return np.ones((num_clients, len(class_counts)))


@dataclasses.dataclass(frozen=True)
class LognormalSizes(weighted.WeightedPartitioner):
  """The same classes everywhere, sizes in proportion to lognormal draws.

  Attributes:
    sigma: Standard deviation of the logarithm of the sizes, at least 0; 0 gives
      `Iid`.
  """

  sigma: float

  name: ClassVar[str] = 'lognormal'
  summary: ClassVar[str] = (
    'the same class distribution everywhere, sizes in proportion to draws'
    ' from lognormal(0, sigma)'
  )
  needs_classes: ClassVar[bool] = False

  def __post_init__(self):
    errors.expect_non_negative('sigma', self.sigma)

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    log_sizes = rng.normal(0, self.sigma, num_clients)
    # Relative to the largest, lest a large sigma overflow.
    sizes = np.exp(log_sizes - log_sizes.max())
    return np.tile(sizes[:, np.newaxis], (1, len(class_counts)))
