"""Tests of test examples held out of the clients' own."""

import numpy as np
import pytest

from tests.datasets.partitioning import rules
from tff_pfl.datasets import partitioning


def test_hold_out_is_stratified_disjoint_and_complete():
  labels = rules.labels([100, 50, 30, 7])
  clients = rules.partition('iid', labels, None, 3).train_indices
  parts = partitioning.hold_out(clients, labels, 0.25, seed=0)
  for client, train, test in zip(clients, *parts):
    np.testing.assert_array_equal(
      np.sort(np.concatenate([train, test])), np.sort(client)
    )
    assert len(test) == round(0.25 * len(client))
    exact = np.bincount(labels[client], minlength=4) * len(test) / len(client)
    counts = np.bincount(labels[test], minlength=4)
    assert np.abs(counts - exact).max() < 1


@pytest.mark.parametrize(
  'size, fraction, num_test',
  [(0, 0.5, 0), (1, 0.9, 0), (2, 0.1, 1), (2, 0.99, 1), (10, 0.0, 0)],
)
def test_hold_out_of_tiny_clients(size, fraction, num_test):
  indices = [np.arange(size), np.arange(size, size + 10)]
  labels = np.zeros(size + 10, int)
  parts = partitioning.hold_out(indices, labels, fraction, seed=0)
  assert len(parts.test_indices[0]) == num_test
  assert len(parts.train_indices[0]) == size - num_test


def test_hold_out_is_stratified_by_domain():
  labels, domain = rules.labels([100, 50]), np.arange(150) % 7
  clients = rules.partition('iid', labels, None, 3).train_indices
  parts = partitioning.hold_out(clients, labels, 0.25, seed=0, domain=domain)
  for client, test in zip(clients, parts.test_indices):
    exact = np.bincount(domain[client], minlength=7) * len(test) / len(client)
    counts = np.bincount(domain[test], minlength=7)
    assert np.abs(counts - exact).max() < 1
