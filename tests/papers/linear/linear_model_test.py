import numpy as np
import pytest
import tensorflow as tf

from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib

# One sample x = (1, 2), y = 3, of the model B = (1, 1)^T, w = (2): the
# prediction is 6, the residual 3.
_MODEL = model_lib.LinearModel(np.ones((2, 1)), np.array([2.0]))
_SAMPLES = problem_lib.LinearSamples(np.array([[1.0, 2.0]]), np.array([3.0]))


def _random_samples(num_samples, dimension, seed=0):
  rng = np.random.default_rng(seed)
  return problem_lib.LinearSamples(
    rng.standard_normal((num_samples, dimension)),
    rng.standard_normal(num_samples),
  )


def test_loss_and_gradients_of_one_sample_by_hand():
  gradient = model_lib.gradients(_MODEL, _SAMPLES)

  assert model_lib.loss(_MODEL, _SAMPLES).numpy() == 4.5
  np.testing.assert_array_equal(gradient.representation, [[6.0], [12.0]])
  np.testing.assert_array_equal(gradient.head, [9.0])


def test_gradients_are_those_of_automatic_differentiation():
  samples = _random_samples(7, 4)
  rng = np.random.default_rng(1)
  model = model_lib.LinearModel(
    tf.constant(rng.standard_normal((4, 2))),
    tf.constant(rng.standard_normal(2)),
  )
  with tf.GradientTape() as tape:
    tape.watch(model)
    loss = model_lib.loss(model, samples)

  for ours, automatic in zip(
    model_lib.gradients(model, samples), tape.gradient(loss, list(model))
  ):
    np.testing.assert_allclose(ours, automatic, rtol=1e-13)


@pytest.mark.parametrize('num_steps', [0, 1, 3])
def test_descent_takes_the_given_number_of_steps(num_steps):
  samples = _random_samples(5, 2)
  expected = _MODEL
  for _ in range(num_steps):
    slope = model_lib.gradients(expected, samples)
    expected = model_lib.LinearModel(
      expected.representation - 0.1 * slope.representation.numpy(),
      expected.head - 0.1 * slope.head.numpy(),
    )

  result = model_lib.descend(_MODEL, samples, 0.1, num_steps)

  np.testing.assert_allclose(
    result.representation, expected.representation, rtol=1e-14
  )
  np.testing.assert_allclose(result.head, expected.head, rtol=1e-14)


def test_orthonormal_factor_keeps_span_and_signs():
  matrix = np.random.default_rng(2).standard_normal((6, 3))
  q = model_lib.orthonormalize(matrix).numpy()
  r = q.T @ matrix

  np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-14)
  np.testing.assert_allclose(q @ r, matrix, atol=1e-14)
  np.testing.assert_allclose(np.tril(r, -1), 0, atol=1e-14)
  assert (np.diag(r) > 0).all()


def test_orthonormal_matrix_is_its_own_factor():
  q = np.linalg.qr(np.random.default_rng(2).standard_normal((6, 3)))[0]

  np.testing.assert_allclose(model_lib.orthonormalize(-q), -q, atol=1e-14)


def test_least_squares_solves_the_normal_equations():
  samples = _random_samples(8, 3)
  solution = model_lib.least_squares(samples.x, samples.y)

  np.testing.assert_allclose(
    samples.x.T @ (samples.x @ solution.numpy() - samples.y), 0, atol=1e-13
  )


def test_ridge_is_of_the_mean_loss():
  samples = _random_samples(8, 3)
  expected = np.linalg.solve(
    samples.x.T @ samples.x / 8 + 0.3 * np.eye(3), samples.x.T @ samples.y / 8
  )

  np.testing.assert_allclose(
    model_lib.least_squares(samples.x, samples.y, 0.3), expected, rtol=1e-12
  )


def test_least_squares_of_too_few_samples_has_the_least_norm():
  samples = _random_samples(2, 5)

  np.testing.assert_allclose(
    model_lib.least_squares(samples.x, samples.y),
    np.linalg.pinv(samples.x) @ samples.y,
    rtol=1e-12,
  )


@pytest.mark.parametrize('ridge', [0.0, 0.2])
def test_least_squares_of_many_clients_as_one_program(ridge):
  clients = [_random_samples(6, 3, seed) for seed in range(4)]
  stacked = problem_lib.LinearSamples(*map(np.stack, zip(*clients)))

  batched = tf.vectorized_map(
    lambda samples: model_lib.least_squares(samples.x, samples.y, ridge),
    stacked,
    fallback_to_while_loop=False,
  )

  for row, client in zip(batched, clients):
    np.testing.assert_allclose(
      row, model_lib.least_squares(client.x, client.y, ridge), rtol=1e-12
    )


def _stacked(seed=0, num_rows=6):
  rng = np.random.default_rng(seed)
  return rng.standard_normal((4, num_rows, 3)), rng.standard_normal(
    (4, num_rows)
  )


def _sums(matrices, right_sides):
  return (
    np.einsum('pja,pjb->pab', matrices, matrices),
    np.einsum('pja,pj->pa', matrices, right_sides),
  )


def test_rows_of_zeros_change_nothing():
  matrices, right_sides = _stacked(num_rows=5)
  matrices[0, 1:] = right_sides[0, 1:] = 0
  matrices[1], right_sides[1] = 0, 0
  result = model_lib.least_squares(matrices, right_sides).numpy()

  np.testing.assert_allclose(
    result[0],
    np.linalg.lstsq(matrices[0, :1], right_sides[0, :1], rcond=None)[0],
    rtol=1e-13,
  )
  np.testing.assert_array_equal(result[1], np.zeros(3))


def test_sums_have_the_solution_of_their_rows():
  matrices, right_sides = _stacked()
  gram, moments = _sums(matrices, right_sides)

  np.testing.assert_allclose(
    model_lib.solve_normal_equations(gram, moments),
    model_lib.least_squares(matrices, right_sides),
    rtol=1e-10,
  )


def test_sums_of_fewer_rows_than_columns_have_the_shortest_solution():
  matrices, right_sides = _stacked(num_rows=2)
  gram, moments = _sums(matrices, right_sides)

  np.testing.assert_allclose(
    model_lib.solve_normal_equations(gram, moments),
    [
      np.linalg.lstsq(matrix, right_side, rcond=None)[0]
      for matrix, right_side in zip(matrices, right_sides)
    ],
    rtol=1e-8,
    atol=1e-12,
  )


def test_the_solution_of_no_rows_is_zero():
  result = model_lib.solve_normal_equations(
    np.zeros((2, 3, 3)), np.zeros((2, 3))
  )

  np.testing.assert_array_equal(result, np.zeros((2, 3)))


def test_the_scale_of_the_sums_does_not_matter():
  matrices, right_sides = _stacked(num_rows=2)
  gram, moments = _sums(matrices, right_sides)

  np.testing.assert_allclose(
    model_lib.solve_normal_equations(1e-9 * gram, 1e-9 * moments),
    model_lib.solve_normal_equations(gram, moments),
    rtol=1e-8,
    atol=1e-12,
  )
