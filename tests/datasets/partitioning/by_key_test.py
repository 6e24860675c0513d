"""Tests of one client per key."""

import numpy as np
import pytest

from tff_pfl.datasets import partitioning


def _by_key(keys, keys_test=None, num_train=None, num_test=None):
  num_train = len(keys) if num_train is None else num_train
  if keys_test is not None and num_test is None:
    num_test = len(keys_test)
  y_test = None if num_test is None else np.zeros(num_test)
  pool = partitioning.Pool(np.zeros(num_train), y_test)
  return partitioning.by_key(pool, keys, keys_test)


def test_each_key_is_a_client_in_sorted_order():
  parts, ids = _by_key(['b', 'a', 'b', 'c'], ['d', 'b'])
  assert ids == ['a', 'b', 'c', 'd']
  assert [i.tolist() for i in parts.train_indices] == [[1], [0, 2], [3], []]
  assert [i.tolist() for i in parts.test_indices] == [[], [1], [], [0]]


def test_integers_are_sorted_as_numbers():
  assert _by_key(np.array([10, 9, 10]))[1] == ['9', '10']


@pytest.mark.parametrize(
  'arguments, match',
  [
    (([0.5, 1.0],), '`keys` to be 2 integers or strings'),
    (([[1], [2]],), '`keys` to be 2 integers or strings'),
    (([1, 2], ['a']), '`keys_test` to be of the kind of `keys`'),
    (([1, 2], None, 3), r'`keys` to be 3 .*shape \(2,\)'),
    (([1, 2], None, 2, 1), r'`keys_test` to be 1 .*shape \(0,\)'),
  ],
)
def test_wrong_keys_are_errors(arguments, match):
  with pytest.raises(ValueError, match=match):
    _by_key(*arguments)
