import numpy as np

from binaries.papers.linear import initialization, scoring
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib

_PROBLEM = problem_lib.LinearProblem(5, 12, 2, noise_std=0.1, seed=6)
_REPRESENTATION = initialization.random_representation(12, 2, seed=1)
_COUNTS = (1, 2, 5, 20)


def _check(regressor, expected):
  """Compares the errors of three new clients with those one at a time."""
  errors = []
  for count in _COUNTS:
    samples, targets = _PROBLEM.new_clients(3, count)
    found = [expected(x, y) for x, y in zip(samples.x, samples.y)]
    errors.append(np.square(found - targets).sum(axis=1))
  np.testing.assert_allclose(
    scoring.new_client_errors(regressor, _PROBLEM, _COUNTS, 3),
    errors,
    rtol=1e-9,
  )


def test_exact_heads_are_least_squares_also_with_fewer_samples_than_columns():
  def expected(x, y):
    head = np.linalg.pinv(x @ _REPRESENTATION) @ y
    return _REPRESENTATION @ head

  _check(scoring.with_exact_head(_REPRESENTATION), expected)


def test_local_only_is_least_squares_also_with_few_samples():
  _check(scoring.local_only, lambda x, y: np.linalg.pinv(x) @ y)


def test_fine_tuning_is_gradient_descent():
  start = model_lib.LinearModel(_REPRESENTATION, np.array([0.3, -0.2]))

  def expected(x, y):
    representation, head = start
    for _ in range(4):
      g = x.T @ (x @ representation @ head - y) / len(y)
      representation, head = (
        representation - 0.05 * np.outer(g, head),
        head - 0.05 * representation.T @ g,
      )
    return representation @ head

  _check(scoring.fine_tuned(start, 0.05, 4), expected)


def test_the_true_representation_needs_k_samples_where_local_needs_d():
  noiseless = problem_lib.LinearProblem(5, 12, 2, seed=6)
  counts = (2, 11, 12)
  shared, local = (
    scoring.new_client_errors(regressor, noiseless, counts, 10)
    for regressor in (
      scoring.with_exact_head(noiseless.representation),
      scoring.local_only,
    )
  )

  assert shared.shape == local.shape == (3, 10)
  assert (shared < 1e-20).all()
  assert np.median(local[1]) > 1e-2
  assert (local[2] < 1e-15).all()
