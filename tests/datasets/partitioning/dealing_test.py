"""Tests of whole numbers of examples in given proportions."""

import numpy as np

from tff_pfl.datasets.partitioning import dealing


def test_apportion_rounds_by_largest_remainder():
  rng = np.random.default_rng(0)
  weights = np.array([[0.5], [0.3], [0.2]])
  # Exact shares of 9: 4.5, 2.7, 1.8; the two largest remainders round up.
  counts = dealing.apportion(np.array([9]), weights, rng)
  assert counts.ravel().tolist() == [4, 3, 2]


def test_apportion_makes_up_for_rounding_in_the_next_class():
  rng = np.random.default_rng(0)
  weights = np.array([[0.6, 0.6], [0.4, 0.4]])
  counts = dealing.apportion(np.array([1, 1]), weights, rng)
  # Client 0 wins the first class (0.6), client 1 the second (0.4 + 0.4 owed).
  assert counts.tolist() == [[1, 0], [0, 1]]
