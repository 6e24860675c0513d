"""Tests of one client per key."""

import numpy as np
import pytest

from tff_pfl.datasets import partitioning


def test_by_key_makes_a_client_of_each_key_in_sorted_order():
  rule = partitioning.ByKey(['b', 'a', 'b', 'c'], ['d', 'b'])
  parts = rule.partition(partitioning.Pool(np.zeros(4), np.zeros(2)))
  assert rule.client_ids(4) == ['a', 'b', 'c', 'd']
  assert [i.tolist() for i in parts.train_indices] == [[1], [0, 2], [3], []]
  assert [i.tolist() for i in parts.test_indices] == [[], [1], [], [0]]


def test_by_key_sorts_integers_as_numbers():
  rule = partitioning.ByKey(np.array([10, 9, 10]))
  assert rule.client_ids(2) == ['9', '10']


@pytest.mark.parametrize(
  'keys, test_keys, match',
  [
    ([0.5, 1.0], None, '`keys` to be integers or strings'),
    ([[1], [2]], None, '`keys` to be integers or strings'),
    ([], None, '`keys` to be integers or strings'),
    ([1, 2], ['a'], '`test_keys` to be of the kind of `keys`'),
  ],
)
def test_by_key_refuses_keys_of_the_wrong_kind(keys, test_keys, match):
  with pytest.raises(ValueError, match=match):
    partitioning.ByKey(keys, test_keys)


def test_by_key_needs_one_key_per_example():
  with pytest.raises(ValueError, match='`keys` to be 3 keys.*found 2'):
    partitioning.ByKey([1, 2]).partition(partitioning.Pool(np.zeros(3)))
  with pytest.raises(ValueError, match='`test_keys` to be 1 keys.*found 0'):
    partitioning.ByKey([1, 2]).partition(
      partitioning.Pool(np.zeros(2), np.zeros(1))
    )


def test_by_key_refuses_another_number_of_clients():
  with pytest.raises(ValueError, match='distinct keys, 2, found 5'):
    partitioning.ByKey([1, 2]).partition(partitioning.Pool(np.zeros(2)), 5)
