"""Tests of means and deviations by a federated sum."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl.datasets.sources import standardization


def _clients(seed=0, sizes=(5, 0, 1, 40), num_columns=3):
  rng = np.random.default_rng(seed)
  clients = [
    rng.normal(1000 * i, 1 + i, (size, num_columns))
    for i, size in enumerate(sizes)
  ]
  for client in clients:
    client[rng.random(client.shape) < 0.2] = np.nan
  return clients


def test_the_federated_sum_gives_the_moments_of_the_pooled_values():
  clients = _clients()
  pooled = np.concatenate(clients)
  means, deviations = standardization.federated_moments(clients)
  np.testing.assert_allclose(means, np.nanmean(pooled, axis=0), rtol=1e-12)
  np.testing.assert_allclose(deviations, np.nanstd(pooled, axis=0), rtol=1e-9)
  standard = standardization.standardized(pooled, means, deviations)
  assert standard.dtype == np.float32
  is_missing = np.isnan(pooled)
  assert is_missing.any() and not standard[is_missing].any()
  present = np.where(is_missing, np.nan, standard)
  np.testing.assert_allclose(np.nanmean(present, axis=0), 0, atol=1e-6)
  np.testing.assert_allclose(np.nanstd(present, axis=0), 1, rtol=1e-6)


def test_the_sum_is_a_computation_that_sends_sums_alone(runtime):
  clients = _clients()
  computation = standardization.build_sums(3)
  result_type = computation.type_signature.result
  assert result_type.placement is tff.SERVER
  counts, sums, squares = computation(clients)
  pooled = np.concatenate(clients)
  np.testing.assert_array_equal(counts, (~np.isnan(pooled)).sum(axis=0))
  np.testing.assert_allclose(sums, np.nansum(pooled, axis=0))
  np.testing.assert_allclose(squares, np.nansum(pooled**2, axis=0))


def test_columns_without_spread_or_values_become_zero():
  values = np.array([[0.1, np.nan, 1e6], [0.1, np.nan, 1e6 + 1]] * 3)
  values[0, 0] = np.nan
  moments = standardization.federated_moments([values[:2], values[2:]])
  np.testing.assert_allclose(moments[0], [0.1, 0, 1e6 + 0.5])
  np.testing.assert_allclose(moments[1], [1, 1, 0.5], rtol=1e-4)
  standard = standardization.standardized(values, *moments)
  np.testing.assert_allclose(standard[:, :2], 0, atol=1e-12)
  np.testing.assert_allclose(standard[:, 2], [-1, 1] * 3, rtol=1e-4)


def test_clients_without_values_at_all_have_no_moments():
  moments = standardization.federated_moments([np.zeros((4, 0))] * 2)
  assert standardization.standardized(np.zeros((3, 0)), *moments).shape == (
    3,
    0,
  )


def test_numbers_too_large_to_square_are_an_error():
  with pytest.raises(ValueError, match='`values`.*column 1'):
    standardization.federated_moments([np.array([[1, 1e200], [2, 3]])])
