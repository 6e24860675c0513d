import numpy as np
import pytest

from binaries.papers.linear import initialization, new_client
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
    new_client.head_errors(_REPRESENTATION, _PROBLEM, _COUNTS, num_clients=3),
    _expected(regressor),
    rtol=1e-10,
  )


def test_local_only_errors_equal_numpy_also_with_few_samples():
  np.testing.assert_allclose(
    new_client.local_only_errors(_PROBLEM, _COUNTS, num_clients=3),
    _expected(lambda x, y: np.linalg.pinv(x) @ y),
    rtol=1e-9,
  )


def test_ridge_shrinks_the_head():
  def regressor(x, y):
    features = x @ _REPRESENTATION
    gram = features.T @ features / len(y) + 0.5 * np.eye(2)
    return _REPRESENTATION @ np.linalg.solve(gram, features.T @ y / len(y))

  np.testing.assert_allclose(
    new_client.head_errors(
      _REPRESENTATION, _PROBLEM, _COUNTS, num_clients=3, ridge=0.5
    ),
    _expected(regressor),
    rtol=1e-10,
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
    new_client.fine_tuning_errors(
      start, _PROBLEM, _COUNTS, learning_rate=0.05, num_steps=4, num_clients=3
    ),
    _expected(regressor),
    rtol=1e-12,
  )


def test_the_true_representation_needs_k_samples_where_local_needs_d():
  noiseless = problem_lib.make_problem(5, 12, 2, seed=6)
  counts = (2, 11, 12)
  shared = new_client.head_errors(noiseless.representation, noiseless, counts)
  local = new_client.local_only_errors(noiseless, counts)

  assert shared.shape == local.shape == (3, 10)
  assert (shared < 1e-20).all()
  assert (local[1] > 1e-3).all()
  assert (local[2] < 1e-15).all()


@pytest.mark.parametrize(
  'call, message',
  [
    (
      lambda: new_client.head_errors(np.ones((4, 2)), _PROBLEM, [1]),
      'a matrix of 12 rows',
    ),
    (lambda: new_client.local_only_errors(_PROBLEM, []), '`sample_counts`'),
    (lambda: new_client.local_only_errors(_PROBLEM, [0]), '`num_samples`'),
    (
      lambda: new_client.local_only_errors(_PROBLEM, [1], num_clients=0),
      '`num_clients`',
    ),
    (
      lambda: new_client.local_only_errors(_PROBLEM, [1], ridge=-1),
      '`ridge`',
    ),
    (
      lambda: new_client.fine_tuning_errors(
        model_lib.LinearModel(np.ones((4, 2)), np.ones(2)),
        _PROBLEM,
        [1],
        learning_rate=0.1,
      ),
      'a matrix of 12 rows',
    ),
    (
      lambda: new_client.fine_tuning_errors(
        model_lib.LinearModel(_REPRESENTATION, np.ones(2)),
        _PROBLEM,
        [1],
        learning_rate=0,
      ),
      '`learning_rate`',
    ),
  ],
)
def test_impossible_arguments_are_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()
