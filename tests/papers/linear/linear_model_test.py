import numpy as np
import pytest

from binaries.papers import representation as representation_lib
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib

distance = representation_lib.principal_angle_distance


def _random_samples(num_samples, dimension, num_domains=None):
  rng, shape = np.random.default_rng(0), (4, num_samples)
  domain = num_domains and rng.integers(num_domains, size=shape)
  x = rng.standard_normal((*shape, dimension))
  return problem_lib.Samples(x, rng.standard_normal(shape), domain)


def _random_models(*shape):
  rng = np.random.default_rng(1)
  representation = rng.standard_normal((*shape, 4, 2))
  return model_lib.LinearModel(representation, rng.standard_normal((*shape, 2)))


@pytest.mark.parametrize('num_domains', [None, 3])
def test_gradients_are_slopes_of_the_losses(num_domains):
  """Each element's against a difference quotient, exact for a parabola."""
  samples = _random_samples(7, 4, num_domains=num_domains)
  models = _random_models(4, *([] if num_domains is None else [num_domains]))

  def losses(models):
    return model_lib.losses(model_lib.regressors(models), samples)

  g = model_lib.regressor_gradients(model_lib.regressors(models), samples)
  slopes = model_lib.part_gradients(models, g)
  for name, part in models._asdict().items():
    quotients = np.zeros_like(part)
    for index in np.ndindex(part.shape[1:]):
      step = np.zeros_like(part)
      step[(slice(None), *index)] = 0.5
      up, down = (
        losses(models._replace(**{name: moved}))
        for moved in (part + step, part - step)
      )
      quotients[(slice(None), *index)] = up - down
    np.testing.assert_allclose(getattr(slopes, name), quotients, atol=1e-12)


def test_orthonormal_factor_keeps_span_and_signs():
  matrix = np.random.default_rng(2).standard_normal((6, 3))
  q = model_lib.orthonormalize(matrix)
  r = q.T @ matrix
  np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-14)
  np.testing.assert_allclose(q @ r, matrix, atol=1e-14)
  np.testing.assert_allclose(np.tril(r, -1), 0, atol=1e-14)
  assert (np.diag(r) > 0).all()
  # An orthonormal matrix is its own factor.
  np.testing.assert_allclose(model_lib.orthonormalize(-q), -q, atol=1e-14)


def test_ridge_is_of_the_mean_loss():
  x, y, _ = _random_samples(8, 3)
  actual = model_lib.least_squares(x, y, 0.3)
  for one, a, b in zip(actual, x, y):
    expected = np.linalg.solve(a.T @ a / 8 + 0.3 * np.eye(3), a.T @ b / 8)
    np.testing.assert_allclose(one, expected, rtol=1e-12)


@pytest.mark.parametrize('num_samples', [2, 8])
def test_least_squares_has_the_least_norm_of_too_few_samples(num_samples):
  x, y, _ = _random_samples(num_samples, 5)
  # A client whose rows are zeros but for one, and one with nothing.
  x[0, 1], y[0, 1], x[1], y[1] = 0, 0, 0, 0
  actual = model_lib.least_squares(x, y)
  expected = [np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(x, y)]
  np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize('num_samples, scale', [(0, 1), (2, 1e-9), (6, 1)])
def test_sums_have_the_shortest_solution_of_their_rows(num_samples, scale):
  x, y, _ = _random_samples(num_samples, 3)
  squares = scale * np.einsum('pja,pjb->pab', x, x)
  products = scale * np.einsum('pja,pj->pa', x, y)
  actual = model_lib.solve_normal_equations(squares, products)
  expected = [np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(x, y)]
  np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-12)


def test_random_representation_is_orthonormal_and_seeded():
  first, again, other = (
    model_lib.random_representation(8, 3, seed) for seed in (1, 1, 2)
  )
  np.testing.assert_allclose(first.T @ first, np.eye(3), atol=1e-14)
  np.testing.assert_array_equal(first, again)
  assert distance(first, other) > 0.1
  ground_truth = problem_lib.LinearProblem(2, 8, 3, seed=1).representation
  assert distance(first, ground_truth) > 0.1


@pytest.mark.parametrize('wanted', [1e-6, 1.0])
def test_representation_at_a_distance_has_it_in_each_direction(wanted):
  given = model_lib.random_representation(9, 3)
  result = model_lib.representation_at_distance(given, wanted, seed=4)
  np.testing.assert_allclose(result.T @ result, np.eye(3), atol=1e-14)
  assert distance(result, given) == pytest.approx(wanted, abs=1e-15)
  cosines = np.linalg.svd(given.T @ result, compute_uv=False)
  np.testing.assert_allclose(cosines, np.sqrt(1 - wanted**2), atol=1e-14)


def test_method_of_moments_equals_the_closed_form():
  problem = problem_lib.LinearProblem(
    5, 6, 2, samples_per_client=7, noise_std=0.1
  )
  x, y, _ = problem.samples()
  moments = np.einsum('im,imd,ime->de', y**2, x, x) / (5 * 7)
  expected = np.linalg.eigh(moments)[1][:, -2:]
  result = model_lib.method_of_moments(problem)
  np.testing.assert_allclose(result.T @ result, np.eye(2), atol=1e-14)
  assert distance(result, expected) < 1e-13
