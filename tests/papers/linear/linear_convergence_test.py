import numpy as np
import pytest

from binaries.papers.linear import convergence, simulation


@pytest.mark.parametrize(
  'distance',
  [
    np.exp(-0.3 * np.arange(80)),
    # What comes after the distance is close enough does not count,
    np.maximum(np.exp(-0.3 * np.arange(200)), 1e-15),
    # nor do rounds at a distance near one.
    np.append(np.full(50, 0.9), 0.4 * np.exp(-0.3 * np.arange(60))),
  ],
)
def test_the_rate_of_a_geometric_decay_is_found(distance):
  fit = convergence.fit_decay(distance)
  assert fit['rate'] == pytest.approx(0.3)
  assert fit['r_squared'] == pytest.approx(1)


def test_what_never_comes_close_has_a_rate_all_the_same():
  fit = convergence.fit_decay(np.exp(-0.001 * np.arange(100)))
  assert fit['rate'] == pytest.approx(0.001)


def test_a_decay_that_slows_down_is_no_line():
  rounds = np.arange(1, 400)
  assert convergence.fit_decay(1 / rounds**2)['r_squared'] < 0.9


def test_rounds_are_counted_until_a_distance_is_reached():
  distances = np.array([0.5, 0.1, 0.2, 0.01])
  assert convergence.rounds_to(distances, 0.1) == 1
  # Where it is not, there are at least as many.
  assert convergence.rounds_to(distances, 1e-3) == 3


def test_rows_are_of_some_rounds_and_the_last_has_what_is_of_all():
  distance = np.exp(-np.arange(25.0))
  history = simulation.History(
    np.arange(25), distance, 2 * distance, model=None, regressors=None
  )
  *before, last = convergence.rows(history)
  assert [row['round'] for row in before] == [0, 10, 20]
  assert before[1]['distance'] == distance[10]
  assert (last['round'], last['gradient_norm']) == (24, 2 * distance[24])
  assert (last['rounds_to_near'], last['rounds_to_close']) == (7, 14)
  assert last['rate'] == pytest.approx(1)
  assert 'rate' not in before[0]


def test_the_theorems_rate_by_hand():
  # Orthogonal heads of length sqrt(2): W* / sqrt(2) has the singular values 1.
  heads = np.sqrt(2) * np.eye(2)
  rate = convergence.theorem_rate(0.6, heads, 0.25)
  # The factor of a round is sqrt(1 - 0.25 * 0.64 * 1 / 2).
  assert np.exp(-rate) == pytest.approx(np.sqrt(0.92))
  # Heads of one direction say nothing about the other one.
  assert convergence.theorem_rate(0.6, heads[[0, 0]], 0.25) == 0
