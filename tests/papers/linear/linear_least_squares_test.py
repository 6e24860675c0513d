import numpy as np
import pytest

from binaries.papers.linear.least_squares import (
  least_squares,
  solve_normal_equations,
)


def _stacked(seed=0, num_rows=6):
  rng = np.random.default_rng(seed)
  return rng.standard_normal((4, num_rows, 3)), rng.standard_normal(
    (4, num_rows)
  )


@pytest.mark.parametrize('ridge', [0.0, 0.3])
def test_stacked_problems_are_solved_one_by_one(ridge):
  matrices, right_sides = _stacked()

  np.testing.assert_allclose(
    least_squares(matrices, right_sides, ridge),
    [
      least_squares(matrix, right_side, ridge)
      for matrix, right_side in zip(matrices, right_sides)
    ],
    rtol=1e-13,
  )


def test_rows_of_zeros_change_nothing():
  matrices, right_sides = _stacked(num_rows=5)
  matrices[0, 1:] = right_sides[0, 1:] = 0
  matrices[1], right_sides[1] = 0, 0
  result = least_squares(matrices, right_sides).numpy()

  np.testing.assert_allclose(
    result[0],
    np.linalg.lstsq(matrices[0, :1], right_sides[0, :1], rcond=None)[0],
    rtol=1e-13,
  )
  np.testing.assert_array_equal(result[1], np.zeros(3))


def test_sums_have_the_solution_of_their_rows():
  matrices, right_sides = _stacked()
  gram = np.einsum('pja,pjb->pab', matrices, matrices)
  moments = np.einsum('pja,pj->pa', matrices, right_sides)

  np.testing.assert_allclose(
    solve_normal_equations(gram, moments),
    least_squares(matrices, right_sides),
    rtol=1e-10,
  )


def test_sums_of_fewer_rows_than_columns_have_the_shortest_solution():
  matrices, right_sides = _stacked(num_rows=2)
  gram = np.einsum('pja,pjb->pab', matrices, matrices)
  moments = np.einsum('pja,pj->pa', matrices, right_sides)

  np.testing.assert_allclose(
    solve_normal_equations(gram, moments),
    [
      np.linalg.lstsq(matrix, right_side, rcond=None)[0]
      for matrix, right_side in zip(matrices, right_sides)
    ],
    rtol=1e-8,
    atol=1e-12,
  )


def test_the_solution_of_no_rows_is_zero():
  result = solve_normal_equations(np.zeros((2, 3, 3)), np.zeros((2, 3)))

  np.testing.assert_array_equal(result, np.zeros((2, 3)))


def test_the_scale_of_the_sums_does_not_matter():
  matrices, right_sides = _stacked(num_rows=2)
  gram = np.einsum('pja,pjb->pab', matrices, matrices)
  moments = np.einsum('pja,pj->pa', matrices, right_sides)

  np.testing.assert_allclose(
    solve_normal_equations(1e-9 * gram, 1e-9 * moments),
    solve_normal_equations(gram, moments),
    rtol=1e-8,
    atol=1e-12,
  )
