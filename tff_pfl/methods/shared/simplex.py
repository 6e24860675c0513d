"""The simplex: non-negative numbers whose sum is 1."""

import tensorflow as tf


def project(values: tf.Tensor) -> tf.Tensor:
  """The point of the simplex that is nearest to `values`.

  Args:
    values: float `[n]`.

  References:
    Duchi, Shalev-Shwartz, Singer, Chandra: Efficient Projections onto the
    l1-Ball for Learning in High Dimensions, ICML 2008, figure 1.
  """
  # Shifted values have the same projection. Among large values, rounding would
  # lose the 1.
  values -= tf.reduce_max(values)
  ordered = tf.sort(values, direction='DESCENDING')
  ranks = tf.range(1, tf.size(values) + 1)
  excess = tf.cumsum(ordered) - 1
  is_positive = ordered > excess / tf.cast(ranks, values.dtype)
  last = tf.reduce_max(tf.where(is_positive, ranks, 1))
  shift = tf.gather(excess, last - 1) / tf.cast(last, values.dtype)
  return tf.maximum(values - shift, 0)


def minimize_quadratic(
  matrix: tf.Tensor, is_free: tf.Tensor, num_steps: int
) -> tf.Tensor:
  """The point a of the simplex with the least a^T matrix a.

  It is found by projected gradient descent with Nesterov's momentum, which
  restarts if it goes uphill.

  Args:
    matrix: float `[n, n]`, positive semi-definite.
    is_free: bool `[n]`, False for numbers that are held at 0. If all are, the
      result is finite but meaningless.
    num_steps: Steps of the descent from equal numbers.

  References:
    Beck, Teboulle: A Fast Iterative Shrinkage-Thresholding Algorithm, SIAM
    Journal on Imaging Sciences 2009 (FISTA). O'Donoghue, Candes: Adaptive
    Restart for Accelerated Gradient Schemes, 2015.
  """
  free = tf.cast(is_free, matrix.dtype)
  matrix *= free * free[:, tf.newaxis]
  # An upper bound of the largest eigenvalue.
  curvature = tf.reduce_max(tf.reduce_sum(tf.abs(matrix), axis=1))

  def step(old, ahead, pace):
    moved = ahead - tf.math.divide_no_nan(
      tf.linalg.matvec(matrix, ahead), curvature
    )
    # Numbers that are not free are so low that the projection gives them 0.
    new = project(tf.where(is_free, moved, -1e6))
    is_uphill = tf.reduce_sum((ahead - new) * (new - old)) > 0
    new_pace = tf.where(is_uphill, 1.0, (1 + tf.sqrt(1 + 4 * pace**2)) / 2)
    share = tf.where(is_uphill, 0.0, (pace - 1) / new_pace)
    return new, new + tf.cast(share, new.dtype) * (new - old), new_pace

  start = tf.math.divide_no_nan(free, tf.reduce_sum(free))
  solution, _, _ = tf.while_loop(
    lambda *_: True,
    step,
    (start, start, tf.constant(1.0)),
    maximum_iterations=num_steps,
  )
  return solution
