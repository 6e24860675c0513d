"""Tests of data sets whose clients are given."""

import pytest

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


@pytest.mark.parametrize(
  'num_clients, match',
  [
    (21, 'at most 20, the number of writers in the data, found 21'),
    (0, 'an integer at least 1, found 0'),
    (2.5, 'an integer at least 1, found 2.5'),
  ],
)
def test_numbers_that_cannot_be_had_are_errors(num_clients, match):
  with pytest.raises(ValueError, match=match):
    _choose(num_clients)
