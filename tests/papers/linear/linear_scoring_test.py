import numpy as np

from binaries.papers.linear import initialization, scoring
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib

_PROBLEM = problem_lib.make_problem(5, 12, 2, noise_std=0.1, seed=6)
_REPRESENTATION = initialization.random_representation(12, 2, seed=1)
_COUNTS = (1, 2, 5, 20)


def _error(regressor, client):
  return ((regressor - client.target) ** 2).sum()


def _expected(regressor_of):
  """Errors of three new clients, from NumPy."""
  return [
    [
      _error(regressor_of(client.x, client.y), client)
      for client in (_PROBLEM.new_client(count, i) for i in range(3))
    ]
    for count in _COUNTS
  ]


def test_head_errors_equal_numpy_also_with_fewer_samples_than_columns():
  def regressor(x, y):
    head = np.linalg.pinv(x @ _REPRESENTATION) @ y
    return _REPRESENTATION @ head

  np.testing.assert_allclose(
    scoring.head_errors(_REPRESENTATION, _PROBLEM, _COUNTS, num_clients=3),
    _expected(regressor),
    rtol=1e-10,
  )


def test_local_only_errors_equal_numpy_also_with_few_samples():
  np.testing.assert_allclose(
    scoring.local_only_errors(_PROBLEM, _COUNTS, num_clients=3),
    _expected(lambda x, y: np.linalg.pinv(x) @ y),
    rtol=1e-9,
  )


def test_fine_tuning_errors_equal_numpy():
  start = model_lib.LinearModel(_REPRESENTATION, np.array([0.3, -0.2]))

  def regressor(x, y):
    representation, head = start
    for _ in range(4):
      g = x.T @ (x @ representation @ head - y) / len(y)
      representation, head = (
        representation - 0.05 * np.outer(g, head),
        head - 0.05 * representation.T @ g,
      )
    return representation @ head

  np.testing.assert_allclose(
    scoring.fine_tuning_errors(
      start, _PROBLEM, _COUNTS, learning_rate=0.05, num_steps=4, num_clients=3
    ),
    _expected(regressor),
    rtol=1e-12,
  )


def test_the_true_representation_needs_k_samples_where_local_needs_d():
  noiseless = problem_lib.make_problem(5, 12, 2, seed=6)
  counts = (2, 11, 12)
  shared = scoring.head_errors(
    noiseless.representation, noiseless, counts, num_clients=10
  )
  local = scoring.local_only_errors(noiseless, counts, num_clients=10)

  assert shared.shape == local.shape == (3, 10)
  assert (shared < 1e-20).all()
  assert (local[1] > 1e-3).all()
  assert (local[2] < 1e-15).all()
