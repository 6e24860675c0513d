"""Least squares by an orthogonal decomposition."""

from __future__ import annotations

import tensorflow as tf


def least_squares(
  matrix: tf.Tensor, right_side: tf.Tensor, ridge: float = 0.0
) -> tf.Tensor:
  """The w that minimises |matrix w - right_side|^2 / (2 m) + ridge |w|^2 / 2.

  Args:
    matrix: float64 `[m, k]`.
    right_side: float64 `[m]`.
    ridge: At least 0; 0 is plain least squares, whose solution of the least
      norm is returned where there are several, as for `m < k`.

  Returns:
    float64 `[k]`.
  """
  if ridge:
    num_columns = matrix.shape[1]
    num_rows = tf.cast(tf.shape(matrix)[0], matrix.dtype)
    # The ridge as further rows: the normal equations would square the error.
    weight = tf.sqrt(ridge * num_rows)
    matrix = tf.concat(
      [matrix, weight * tf.eye(num_columns, dtype=matrix.dtype)], axis=0
    )
    right_side = tf.pad(right_side, [[0, num_columns]])
  # `fast=True` would solve the normal equations.
  solution = tf.linalg.lstsq(matrix, right_side[:, tf.newaxis], fast=False)
  return tf.squeeze(solution, axis=-1)
