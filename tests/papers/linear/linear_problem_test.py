import numpy as np
import pytest

from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib


def _make(**kwargs):
  return problem_lib.LinearProblem(6, 5, 2, **{'seed': 3, **kwargs})


def test_ground_truth_is_orthonormal_with_heads_of_length_sqrt_k():
  problem = _make()

  gram = problem.representation.T @ problem.representation
  np.testing.assert_allclose(gram, np.eye(2), atol=1e-14)
  np.testing.assert_allclose(
    np.linalg.norm(problem.heads, axis=1), np.full(6, np.sqrt(2))
  )
  assert (problem.num_clients, problem.dimension, problem.rank) == (6, 5, 2)


def test_gaussian_heads_have_unit_variance():
  problem = problem_lib.LinearProblem(4000, 3, 2, head_distribution='gaussian')

  np.testing.assert_allclose(np.cov(problem.heads.T), np.eye(2), atol=0.1)
  assert np.linalg.norm(problem.heads, axis=1).std() > 0.3


def test_population_design_has_the_population_loss_and_its_gradients():
  problem = _make()
  samples = problem.samples()
  rng = np.random.default_rng(0)
  model = model_lib.LinearModel(
    rng.standard_normal((5, 2)), rng.standard_normal(2)
  )
  client = problem_lib.LinearSamples(samples.x[0], samples.y[1])
  difference = model.representation @ model.head - problem.targets[1]

  gradient = model_lib.gradients(model, client)

  np.testing.assert_allclose(
    model_lib.loss(model, client), 0.5 * difference @ difference
  )
  np.testing.assert_allclose(
    gradient.representation, np.outer(difference, model.head)
  )
  np.testing.assert_allclose(gradient.head, model.representation.T @ difference)


def test_samples_are_standard_normal_with_noisy_labels():
  problem = _make(samples_per_client=5000, noise_std=0.5)
  x, y = (value.numpy() for value in problem.samples())

  assert x.shape == (6, 5000, 5) and y.shape == (6, 5000)
  assert x.dtype == y.dtype == np.float64
  np.testing.assert_allclose(np.cov(x[0].T), np.eye(5), atol=0.1)
  noise = y - np.einsum('nmd,nd->nm', x, problem.targets)
  assert abs(noise.std() - 0.5) < 0.02
  assert abs(np.corrcoef(x[0, :, 0], x[1, :, 0])[0, 1]) < 0.06


def test_the_seed_determines_the_problem():
  first, again, other = (
    _make(samples_per_client=4, seed=seed) for seed in (1, 1, 2)
  )

  np.testing.assert_array_equal(first.heads, again.heads)
  np.testing.assert_array_equal(first.samples().x, again.samples().x)
  assert not np.isclose(first.representation, other.representation).any()
  assert not np.isclose(first.heads, other.heads).any()
  assert not np.isclose(first.samples().x, other.samples().x).any()


def test_new_client_shares_the_representation_and_no_head():
  problem = _make(noise_std=0.0)
  client = problem.new_client(3, index=1)
  head = problem.representation.T @ client.target

  np.testing.assert_allclose(problem.representation @ head, client.target)
  assert np.linalg.norm(head) == pytest.approx(np.sqrt(2))
  assert np.abs(problem.heads - head).max(axis=1).min() > 1e-3
  np.testing.assert_allclose(client.y, client.x @ client.target)
  assert not np.isclose(client.target, problem.new_client(3).target).any()


def test_fewer_samples_of_a_new_client_are_the_first_of_more():
  problem = _make(noise_std=0.3)
  few, many = (problem.new_client(count, index=2) for count in (2, 9))

  np.testing.assert_array_equal(few.x, many.x[:2])
  np.testing.assert_allclose(few.y, many.y[:2], rtol=1e-14)


def test_population_problem_gives_new_clients_noise():
  client = _make(noise_std=0.1).new_client(2000)

  assert np.std(client.y - client.x @ client.target) == pytest.approx(
    0.1, rel=0.1
  )
