import numpy as np
import pytest

from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib


def _make(**kwargs):
  return problem_lib.LinearProblem(6, 5, 2, **{'seed': 3, **kwargs})


def _with_domains(num_clients=6, **changes):
  options = {'num_domains': 3, 'samples_per_client': 4, 'seed': 3, **changes}
  return problem_lib.LinearProblem(num_clients, 5, 2, **options)


@pytest.mark.parametrize(
  'problem, num_heads', [(_make(), 6), (_with_domains(), 3)]
)
def test_heads_and_representation_have_orthonormal_columns(problem, num_heads):
  gram = problem.representation.T @ problem.representation
  np.testing.assert_allclose(gram, np.eye(2), atol=1e-14)
  # Times the square root of their number, so that a head's square is 2 on
  # average.
  assert problem.heads.shape == (num_heads, 2)
  gram = problem.heads.T @ problem.heads
  np.testing.assert_allclose(gram, num_heads * np.eye(2), atol=1e-13)


def test_gaussian_heads_have_unit_variance_and_normalized_ones_one_length():
  problem = problem_lib.LinearProblem(4000, 3, 2, head_distribution='gaussian')
  np.testing.assert_allclose(np.cov(problem.heads.T), np.eye(2), atol=0.1)
  assert np.linalg.norm(problem.heads, axis=1).std() > 0.3
  options = {'head_distribution': 'normalized', 'seed': 1}
  problem = problem_lib.LinearProblem(50, 5, 3, **options)
  _, targets = problem.new_clients(40, 2)
  for vectors in (problem.heads, targets):
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.sqrt(3))
  # In all directions.
  np.testing.assert_allclose(np.cov(problem.heads.T), np.eye(3), atol=0.5)


def test_population_design_has_the_population_loss_and_its_gradients():
  problem = _make()
  samples = problem.samples()
  rng = np.random.default_rng(0)
  parts = rng.standard_normal((5, 2)), rng.standard_normal((6, 2))
  model = model_lib.LinearModel(*parts)
  theta = model_lib.regressors(model)
  difference = theta - problem.targets
  gradient, losses = model_lib.gradients(model, samples), difference**2 / 2
  actual = model_lib.losses(theta, samples)
  np.testing.assert_allclose(actual, losses.sum(axis=1))
  np.testing.assert_allclose(
    gradient.representation, np.einsum('ci,cj->cij', difference, model.head)
  )
  np.testing.assert_allclose(gradient.head, difference @ model.representation)


@pytest.mark.parametrize('num_domains', [None, 3])
def test_samples_are_standard_normal_with_noisy_labels(num_domains):
  sizes = {'samples_per_client': 5000, 'num_domains': num_domains}
  problem = _make(noise_std=0.5, concentration=5.0, **sizes)
  x, y, domain = problem.samples()
  own = np.arange(6)[:, np.newaxis] if domain is None else domain
  assert x.shape == (6, 5000, 5) and y.shape == (6, 5000)
  assert x.dtype == y.dtype == np.float64
  np.testing.assert_allclose(np.cov(x[0].T), np.eye(5), atol=0.1)
  noise = y - (x * problem.targets[own]).sum(axis=-1)
  assert abs(noise.std() - 0.5) < 0.02
  assert abs(np.corrcoef(x[0, :, 0], x[1, :, 0])[0, 1]) < 0.06


def test_the_seed_determines_the_problem():
  first, again, other = (_with_domains(seed=seed) for seed in (1, 1, 2))
  np.testing.assert_array_equal(first.heads, again.heads)
  np.testing.assert_array_equal(first.samples().y, again.samples().y)
  np.testing.assert_array_equal(first.mixtures, again.mixtures)
  for name in ('representation', 'heads', 'mixtures'):
    assert not np.isclose(getattr(first, name), getattr(other, name)).any()
  assert not np.isclose(first.samples().x, other.samples().x).any()


def test_mixtures_have_the_priors_mean_and_the_concentrations_spread():
  prior = (0.6, 0.3, 0.1)
  mixtures = _with_domains(4000, prior=prior, concentration=0.4).mixtures
  np.testing.assert_allclose(mixtures.mean(axis=0), prior, atol=0.02)
  # A Dirichlet variable has the variance p (1 - p) / (alpha + 1).
  variances = np.multiply(prior, [0.4, 0.7, 0.9]) / 1.4
  np.testing.assert_allclose(mixtures.var(axis=0), variances, rtol=0.1)
  # The extremes are one domain each, and the same mixture for all.
  pure, same = (
    _with_domains(200, concentration=c).mixtures for c in (1e-4, 1e6)
  )
  np.testing.assert_allclose(pure.max(axis=1), 1)
  assert set(pure.argmax(axis=1)) == {0, 1, 2}
  np.testing.assert_allclose(same, 1 / 3, atol=0.01)


def test_test_samples_are_others_and_have_no_noise():
  problem = _with_domains(noise_std=0.5)
  x, y, domain = problem.test_samples(4)
  assert not np.isclose(x, problem.samples().x).any()
  np.testing.assert_allclose(y, (x * problem.targets[domain]).sum(axis=-1))


def test_new_clients_share_the_representation_and_no_head():
  options = {'noise_std': 0.1, 'head_distribution': 'gaussian', 'seed': 3}
  problem = problem_lib.LinearProblem(40, 5, 2, **options)
  few, (many, targets) = (problem.new_clients(4, n) for n in (2, 2000))
  heads = targets @ problem.representation
  np.testing.assert_allclose(heads @ problem.representation.T, targets)
  everyone = np.concatenate([problem.heads, heads])
  assert len(np.unique(everyone.round(3), axis=0)) == 40 + 4
  # Fewer samples are the first of more.
  np.testing.assert_array_equal(few[0].x, many.x[:, :2])
  np.testing.assert_allclose(few[0].y, many.y[:, :2], rtol=1e-14)
  noise = many.y - np.einsum('nmd,nd->nm', many.x, targets)
  assert np.std(noise) == pytest.approx(0.1, rel=0.1)


def test_domains_come_in_the_shares_of_the_clients_mixtures():
  problem = _with_domains(3, samples_per_client=20000, concentration=2.0)
  # In place of those that are drawn.
  problem.mixtures[:2] = [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]]
  domain = problem.samples().domain
  shares = (domain[..., np.newaxis] == np.arange(3)).mean(axis=1)
  assert shares[0, 0] == 0
  assert shares[1].tolist() == [1, 0, 0]
  np.testing.assert_allclose(shares, problem.mixtures, atol=0.02)
