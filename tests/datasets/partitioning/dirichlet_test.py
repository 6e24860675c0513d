"""Tests of Dirichlet draws."""

import pytest

from tests.datasets.partitioning import rules


def test_dirichlet_concentration_sets_how_unequal_clients_are():
  train = rules.labels([1000] * 10)
  spread = {}
  for concentration in (0.1, 1000.0):
    parts = rules.partition(f'dirichlet:{concentration}', train, None, 10)
    counts = rules.counts(parts.train_indices, train, 10)
    spread[concentration] = (counts.max(axis=1) / counts.sum(axis=1)).mean()
  assert spread[0.1] > 0.3
  assert spread[1000.0] < 0.12


def test_dirichlet_redraws_until_every_client_has_min_examples():
  train = rules.labels([100] * 10)
  parts = rules.partition('dirichlet:0.2:25', train, None, 10)
  assert min(len(i) for i in parts.train_indices) >= 25
  free = rules.partition('dirichlet:0.2:0', train, None, 10)
  assert min(len(i) for i in free.train_indices) < 25


def test_dirichlet_that_never_meets_min_examples_is_an_error():
  with pytest.raises(ValueError, match='at least 99 of 1000.*fail 100 times'):
    rules.partition('dirichlet:0.01:99', rules.labels([100] * 10), None, 10)


def test_dirichlet_min_examples_beyond_the_data_is_an_error():
  with pytest.raises(ValueError, match='`min_examples` to be at most 2'):
    rules.partition('dirichlet:1:3', rules.labels([10, 10]), None, 10)
