import numpy as np
import pandas as pd
import pytest

from tff_pfl.datasets import partitioning
from tff_pfl.datasets.partitioning import natural

_IDS = [f'writer_{i}' for i in range(20)]


def _choose(num_clients, seed=0):
  return natural.choose_clients(_IDS, num_clients, 'writers', seed)


def test_so_many_clients_are_chosen_in_their_order():
  chosen = _choose(7)
  assert len(set(chosen)) == 7
  assert chosen == sorted(chosen, key=_IDS.index)
  assert _choose(20) == _IDS
  assert len({tuple(_choose(7, seed)) for seed in range(10)}) == 10
  # More may be chosen with the same seed.
  assert set(chosen) < set(_choose(12))


def _by_key(keys, keys_test=None):
  y_test = None if keys_test is None else np.zeros(len(keys_test))
  pool = partitioning.Pool(np.zeros(len(keys)), y_test)
  return partitioning.by_key(pool, keys, keys_test)


def test_each_key_is_a_client_in_sorted_order():
  parts, ids = _by_key(['b', 'a', 'b', 'c'], ['d', 'b'])
  assert ids == ['a', 'b', 'c', 'd']
  assert [i.tolist() for i in parts.train_indices] == [[1], [0, 2], [3], []]
  assert [i.tolist() for i in parts.test_indices] == [[], [1], [], [0]]


@pytest.mark.parametrize(
  'keys, ids',
  [
    (np.array([10, 9, 10]), ['9', '10']),
    (np.array([b'\xff', b'a']), ['a', '\\xff']),
    *(
      (form(['b', 'a']), ['a', 'b'])
      for form in (
        pd.Series,
        pd.Categorical,
        lambda keys: pd.Series(keys, dtype=object),
        lambda keys: np.array(keys, bytes),
        lambda keys: np.array(keys, np.dtypes.StringDType()),
      )
    ),
  ],
  ids=range(7),
)
def test_keys_come_in_many_forms(keys, ids):
  assert _by_key(keys)[1] == ids


@pytest.mark.parametrize(
  'call, match',
  [
    (lambda: _choose(21), 'at most 20, the number of writers in the data, fou'),
    (lambda: _by_key([0.5, 1.0]), '`keys` to be 2 integers or strings'),
    (lambda: _by_key([[1], [2]]), '`keys` to be 2 integers or strings'),
    (lambda: _by_key(np.ma.array([1, 2], mask=[0, 1])), '`keys` to be 2 int'),
    (lambda: _by_key([1, 2], ['a']), '`keys_test` to be of the kind of `keys`'),
  ],
)
def test_what_cannot_be_had_is_an_error(call, match):
  with pytest.raises(ValueError, match=match):
    call()
