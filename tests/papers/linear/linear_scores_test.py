import numpy as np
import pytest

from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from binaries.papers.linear import simulation, theorem

_PROBLEM = problem_lib.LinearProblem(5, 12, 2, noise_std=0.1, seed=6)
_REPRESENTATION = model_lib.random_representation(12, 2, seed=1)
_START = model_lib.LinearModel(_REPRESENTATION, np.array([0.3, -0.2]))
_COUNTS = (1, 2, 5, 20)


@pytest.mark.parametrize(
  'distance',
  [
    np.exp(-0.3 * np.arange(80)),
    # What comes after the distance is close enough does not count,
    np.maximum(np.exp(-0.3 * np.arange(200)), 1e-15),
    # nor do rounds at a distance near one.
    np.append(np.full(50, 0.9), 0.4 * np.exp(-0.3 * np.arange(60))),
    # One that never comes close has a rate, too.
    np.exp(-0.3 * np.arange(10)),
  ],
)
def test_the_rate_of_a_geometric_decay_is_found(distance):
  fit = simulation.fit_decay(distance)
  assert fit['rate'] == pytest.approx(0.3)
  assert fit['r_squared'] == pytest.approx(1)


def test_a_decay_that_slows_down_is_no_line_and_rounds_are_counted():
  rounds = np.arange(1, 400)
  assert simulation.fit_decay(1 / rounds**2)['r_squared'] < 0.9
  distances = np.array([0.5, 0.1, 0.2, 0.01])
  assert simulation.rounds_to(distances, 0.1) == 1
  # Where it is not reached, there are at least as many.
  assert simulation.rounds_to(distances, 1e-3) == 3


def test_rows_are_of_some_rounds_and_the_last_has_what_is_of_all():
  distance = np.exp(-np.arange(25.0))
  series = np.arange(25), distance, 2 * distance
  history = simulation.History(*series, model=None, regressors=None)
  *before, last = simulation.rows(history, {'method': 'FedRep'})
  assert [row['round'] for row in before] == [0, 10, 20]
  assert before[1]['distance'] == distance[10]
  assert (last['round'], last['gradient_norm']) == (24, 2 * distance[24])
  assert last['rounds_to_near'] == 7
  assert last['rate'] == pytest.approx(1)
  assert 'rate' not in before[0]
  assert before[0]['method'] == 'FedRep'


def test_the_theorems_rate_by_hand():
  # Orthogonal heads of length sqrt(2): W* / sqrt(2) has the singular values 1.
  heads = np.sqrt(2) * np.eye(2)
  rate = theorem.rate(0.6, heads, 0.25)
  # The factor of a round is sqrt(1 - 0.25 * 0.64 * 1 / 2).
  assert np.exp(-rate) == pytest.approx(np.sqrt(0.92))
  # Heads of one direction say nothing about the other one.
  assert theorem.rate(0.6, heads[[0, 0]], 0.25) == 0


def _exact_head(x, y):
  return _REPRESENTATION @ np.linalg.pinv(x @ _REPRESENTATION) @ y


def _fine_tuned(x, y):
  representation, head = _START
  for _ in range(4):
    g = x.T @ (x @ representation @ head - y) / len(y)
    step = 0.05 * np.outer(g, head)
    head = head - 0.05 * representation.T @ g
    representation = representation - step
  return representation @ head


@pytest.mark.parametrize(
  'regressor, expected',
  [
    # Least squares, also with fewer samples than columns.
    (simulation.with_exact_head(_REPRESENTATION), _exact_head),
    (simulation.local_only, lambda x, y: np.linalg.pinv(x) @ y),
    (simulation.fine_tuned(_START, 0.05, 4), _fine_tuned),
  ],
)
def test_new_clients_errors_are_those_one_at_a_time(regressor, expected):
  errors = []
  for count in _COUNTS:
    samples, targets = _PROBLEM.new_clients(3, count)
    actual = [expected(x, y) for x, y in zip(samples.x, samples.y)]
    errors.append(np.square(actual - targets).sum(axis=1))
  actual = simulation.new_client_errors(regressor, _PROBLEM, _COUNTS, 3)
  np.testing.assert_allclose(actual, errors, rtol=1e-9)
