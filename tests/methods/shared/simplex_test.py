import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

from tff_pfl.methods.shared import simplex


def test_of_variances_alone_weights_are_their_inverses():
  matrix = tf.linalg.diag([1.0, 2.0, 5.0, 4.0])
  is_free = tf.constant([True, True, False, True])
  actual = simplex.minimize_quadratic(matrix, is_free, 100)
  np.testing.assert_allclose(
    actual, np.array([4, 2, 0, 1]) / 7, rtol=1e-5, atol=1e-7
  )
  assert np.all(np.isfinite(simplex.minimize_quadratic(matrix, [False] * 4, 9)))


def test_the_least_value_is_that_of_non_negative_least_squares():
  root = np.random.default_rng(1).normal(size=[33, 30])
  minimize = tf.function(simplex.minimize_quadratic)
  actual = minimize(tf.constant(root.T @ root), [True] * 30, 300).numpy()
  weight = 1e4
  expected, _ = scipy.optimize.nnls(
    np.vstack([root, np.full([1, 30], weight)]),
    np.append(np.zeros(33), weight),
  )
  np.testing.assert_allclose(actual, expected / expected.sum(), atol=1e-4)


@pytest.mark.parametrize(
  ('values', 'expected'),
  [
    ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    ([1.0, 1.0], [0.5, 0.5]),
    ([3.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
    ([0.9, 0.5, -7.0], [0.7, 0.3, 0.0]),
    ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
    ([-5.0], [1.0]),
    # Far from it, where 1 is less than float32 can tell apart.
    ([1e8, 1e8, 0.0], [0.5, 0.5, 0.0]),
    ([1e9, 0.0], [1.0, 0.0]),
  ],
)
def test_projection_by_hand(values, expected):
  actual = simplex.project(tf.constant(values))
  np.testing.assert_allclose(actual, expected, atol=1e-6)
