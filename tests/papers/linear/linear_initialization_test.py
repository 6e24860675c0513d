import numpy as np
import pytest

from binaries.papers.linear import initialization
from binaries.papers.linear import problem as problem_lib
from tff_pfl.evaluation import representation as representation_lib

distance = representation_lib.principal_angle_distance


def test_random_representation_is_orthonormal_and_seeded():
  first, again, other = (
    initialization.random_representation(8, 3, seed) for seed in (1, 1, 2)
  )

  np.testing.assert_allclose(first.T @ first, np.eye(3), atol=1e-14)
  np.testing.assert_array_equal(first, again)
  assert distance(first, other) > 0.1
  ground_truth = problem_lib.LinearProblem(2, 8, 3, seed=1).representation
  assert distance(first, ground_truth) > 0.1


@pytest.mark.parametrize('wanted', [0.0, 1e-6, 0.5, 1.0])
def test_representation_at_a_distance_has_it_in_each_direction(wanted):
  given = initialization.random_representation(9, 3)
  result = initialization.representation_at_distance(given, wanted, seed=4)

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

  result = initialization.method_of_moments(problem)

  np.testing.assert_allclose(result.T @ result, np.eye(2), atol=1e-14)
  assert distance(result, expected) < 1e-13


def test_method_of_moments_finds_the_representation_from_many_samples():
  few, many = (
    problem_lib.LinearProblem(200, 10, 2, samples_per_client=count)
    for count in (10, 1000)
  )

  assert (
    distance(initialization.method_of_moments(many), many.representation) < 0.05
  )
  assert (
    0.1
    < distance(initialization.method_of_moments(few), few.representation)
    < 0.6
  )
