"""Rules that are a claim of each client on each class."""

import abc

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing


class WeightedPartitioner(base.CountingPartitioner):
  """A rule that divides every class in proportion to the clients' claims."""

  @abc.abstractmethod
  def _class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Returns each client's claim on each class.

    Args:
      class_counts: Training examples of each class, `[num_classes]`, int.

    Returns:
      Non-negative float64 array `[num_clients, num_classes]`.

    Raises:
      ValueError: The rule cannot be met with these clients and classes.
    """

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    weights = self._class_weights(num_clients, pool, seed)
    all_counts = pool + test_pool
    left_out = (all_counts > 0) & (weights.sum(axis=0) <= 0)
    if left_out.any():
      logging.warning(
        'Partition %s of %d clients has no place for the classes %s: their'
        ' %d examples are left out.',
        self.spec,
        num_clients,
        np.flatnonzero(left_out).tolist(),
        all_counts[left_out].sum(),
      )
    counts = dealing.apportion(pool, weights, train_rng)
    shares = np.where(pool > 0, counts, weights)
    return counts, dealing.apportion(test_pool, shares, test_rng)


def classes_present(
  class_counts: np.ndarray, wanted: int, name: str
) -> np.ndarray:
  """Returns the classes that have examples; `ValueError` if below `wanted`.

  Args:
    class_counts: Training examples of each class, `[num_classes]`.
    wanted: The value of a parameter, a number of classes.
    name: What that parameter is called.
  """
  present = np.flatnonzero(class_counts)
  errors.expect(
    wanted <= len(present),
    name,
    f'at most {len(present)}, the number of classes with training examples',
    wanted,
  )
  return present
