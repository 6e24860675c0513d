import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets import partitioning
from tff_pfl.datasets.partitioning import DomainMixture

_POOLS = (400, 300, 200, 100)
_TEST_POOLS = (40, 30, 20, 10)


def _ids(pools, seed=0):
  ids = np.repeat(np.arange(len(pools), dtype=np.int32), pools)
  return np.random.default_rng(seed).permutation(ids)


def _partition(rule, num_clients, pools=_POOLS, test_pools=_TEST_POOLS, seed=0):
  """Returns the partition and the clients' domain counts of both splits."""
  domain, domain_test = _ids(pools), _ids(test_pools)
  pool = partitioning.Pool(
    np.zeros(len(domain), np.int32),
    np.zeros(len(domain_test), np.int32),
    domain=domain,
    domain_test=domain_test,
    domain_names='abcd'[: len(pools)],
  )
  parts = rule.partition(pool, num_clients, seed)
  counts = [
    np.array([np.bincount(ids[i], minlength=len(pools)) for i in indices])
    for ids, indices in zip((domain, domain_test), parts)
  ]
  return (parts, *counts)


@pytest.mark.parametrize('concentration', [1e-300, 1, 1e9])
@pytest.mark.parametrize('prior', ['data', (1, 0, 2, 3)])
@pytest.mark.parametrize('size', [33, None])
def test_sizes_are_exact_and_no_example_is_dealt_twice(
  concentration, prior, size
):
  rule = DomainMixture(concentration, size, prior)
  parts, counts, test_counts = _partition(rule, 20, seed=3)
  assert (counts.sum(axis=1) == (size or 50)).all()
  dealt = np.concatenate(parts.train_indices)
  assert len(np.unique(dealt)) == len(dealt)
  assert sorted(np.concatenate(parts.test_indices)) == list(range(100))
  assert test_counts.sum(axis=0).tolist() == list(_TEST_POOLS)


@pytest.mark.parametrize(
  'prior, expected',
  [
    ('data', (20, 15, 10, 5)),
    ('uniform', (12.5,) * 4),
    ((0, 3, 1, 1), (0, 30, 10, 10)),
  ],
)
def test_large_concentration_gives_every_client_the_prior(prior, expected):
  _, counts, _ = _partition(DomainMixture(1e9, 50, prior), 8)
  assert np.abs(counts - expected).max() < 1


def test_mixtures_have_the_mean_and_variance_of_the_dirichlet_distribution():
  concentration, prior = 0.7, np.array([0.4, 0.3, 0.2, 0.1])
  rule = DomainMixture(concentration, 100, prior)
  _, counts, _ = _partition(rule, 4000, (400_000,) * 4, _TEST_POOLS)
  shares = counts / 100
  variance = prior * (1 - prior) / (concentration + 1)
  np.testing.assert_allclose(shares.mean(axis=0), prior, atol=0.02)
  np.testing.assert_allclose(shares.var(axis=0), variance, atol=0.01)


def test_no_client_is_starved_where_all_want_one_scarce_domain():
  rule = DomainMixture(1e9, 40, (1, 0, 0, 0))
  _, counts, _ = _partition(rule, 20)
  assert counts[:, 0].tolist() == [20] * 20
  assert (counts[:, 1:].min(axis=0) > 0).all()


def test_test_examples_follow_the_training_examples_of_their_domain():
  _, counts, test_counts = _partition(
    DomainMixture(0.5), 10, test_pools=(200, 150, 100, 50)
  )
  assert np.abs(test_counts - counts / 2).max() < 1


def test_test_examples_of_a_domain_nobody_trains_on_follow_the_mixtures():
  rule = DomainMixture(1e9, 10, (1, 1, 2))
  _, counts, test_counts = _partition(rule, 4, (40, 40, 0), (8, 8, 8))
  assert counts[:, 2].tolist() == [0] * 4
  assert test_counts[:, 2].tolist() == [2] * 4
  # Also of one that no mixture has, as the prior is that of the data.
  _, _, test_counts = _partition(DomainMixture(1.0), 4, (40, 40, 0), (8, 8, 8))
  assert test_counts[:, 2].tolist() == [2] * 4


@pytest.mark.parametrize(
  'rule, num_clients, match',
  [
    (DomainMixture(0.5, 11), 100, 'at most 10, as 100 clients share 1000'),
    (DomainMixture(0.5), 1001, '`num_clients` to be at most 1000'),
    (DomainMixture(0.5, 10, (1, 2)), 2, '`prior` to be 4 numbers'),
  ],
)
def test_mixtures_that_cannot_be_had_are_one_line_errors(
  rule, num_clients, match
):
  with shared.one_line_error(match):
    _partition(rule, num_clients)
