"""Rules that are a claim of each client on each class."""

import abc

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing


class WeightedPartitioner(base.Partitioner):
  """A rule that divides every class in proportion to the clients' claims."""

  @abc.abstractmethod
  def class_weights(
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

  def partition(
    self, pool: base.Pool, num_clients: int, seed: int = 0
  ) -> base.Partition:
    """Deals every class in proportion to the weights; see the base class."""
    y, y_test, num_classes = self._class_labels(pool)
    base.expect_enough(len(y), num_clients)
    class_counts, test_class_counts = (
      np.bincount(part, minlength=num_classes) for part in (y, y_test)
    )
    weights = self.class_weights(num_clients, class_counts, seed)
    all_counts = class_counts + test_class_counts
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
    train_rng = dealing.make_rng(seed, dealing.TRAIN)
    test_rng = dealing.make_rng(seed, dealing.TEST)
    train_counts = dealing.apportion(class_counts, weights, train_rng)
    test_counts = dealing.apportion(
      test_class_counts,
      np.where(class_counts > 0, train_counts, weights),
      test_rng,
    )
    return base.Partition(
      dealing.deal(y, train_counts, train_rng),
      dealing.deal(y_test, test_counts, test_rng),
    )


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
