import numpy as np
import pytest

from binaries.papers.linear import domain_problem
from tests.papers.linear import arrays


def _make(num_clients=6, **kwargs):
  return domain_problem.DomainProblem(
    num_clients, 5, 2, 3, **{'samples_per_client': 4, 'seed': 3, **kwargs}
  )


def test_labels_are_of_the_heads_of_the_samples_domains():
  problem = _make(samples_per_client=400, concentration=5.0, noise_std=0.5)
  x, y, domain = (value.numpy() for value in problem.samples())
  noise = y - np.einsum('nld,nld->nl', x, problem.truth.targets[domain])

  assert x.shape == (6, 400, 5) and y.shape == domain.shape == (6, 400)
  assert domain.dtype == np.int32
  assert set(domain.ravel()) == {0, 1, 2}
  assert noise.std() == pytest.approx(0.5, rel=0.05)
  np.testing.assert_allclose(np.cov(x.reshape(-1, 5).T), np.eye(5), atol=0.15)


def test_domains_come_in_the_shares_of_the_clients_mixtures():
  problem = _make(samples_per_client=20000, concentration=2.0)

  np.testing.assert_allclose(
    arrays.domain_counts(problem) / 20000, problem.mixtures, atol=0.02
  )


def test_mixtures_have_the_priors_mean_and_the_concentrations_spread():
  prior = (0.6, 0.3, 0.1)
  mixtures = _make(4000, prior=prior, concentration=0.4).mixtures

  np.testing.assert_allclose(mixtures.mean(axis=0), prior, atol=0.02)
  # A Dirichlet variable has the variance p (1 - p) / (alpha + 1).
  np.testing.assert_allclose(
    mixtures.var(axis=0), np.multiply(prior, [0.4, 0.7, 0.9]) / 1.4, rtol=0.1
  )


def test_small_and_large_concentrations_are_the_extremes():
  pure = _make(200, concentration=1e-4).mixtures
  same = _make(200, concentration=1e6).mixtures

  np.testing.assert_allclose(pure.max(axis=1), 1)
  assert set(pure.argmax(axis=1)) == {0, 1, 2}
  np.testing.assert_allclose(same, 1 / 3, atol=0.01)


def test_a_domain_of_probability_zero_is_never_drawn():
  problem = _make(2, samples_per_client=1000)
  # In place of those that are drawn.
  vars(problem)['mixtures'] = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
  counts = arrays.domain_counts(problem)

  assert counts[0, 0] == 0 and (counts[0, 1:] > 400).all()
  assert counts[1].tolist() == [1000, 0, 0]


def test_test_samples_are_others_and_have_no_noise():
  problem = _make(noise_std=0.5)
  x, y, domain = (value.numpy() for value in problem.test_samples(4))

  assert not np.isclose(x, problem.samples().x).any()
  np.testing.assert_allclose(
    y, np.einsum('nld,nld->nl', x, problem.truth.targets[domain])
  )


def test_the_seed_determines_the_problem():
  first, again, other = (_make(seed=seed) for seed in (1, 1, 2))

  np.testing.assert_array_equal(first.mixtures, again.mixtures)
  np.testing.assert_array_equal(first.samples().y, again.samples().y)
  assert not np.isclose(first.mixtures, other.mixtures).any()
  assert not np.isclose(first.samples().x, other.samples().x).any()
