"""Least squares, of a matrix or of its normal equations."""

from __future__ import annotations

import tensorflow as tf

# For its rule: without it many clients cannot solve as one program.
from tff_pfl.client import vectorization  # noqa: F401

# Eigenvalues of a sum of squares, relative to the largest, that are rounding.
_RELATIVE_ZERO = 1e-13


def least_squares(
  matrix: tf.Tensor, right_side: tf.Tensor, ridge: float = 0.0
) -> tf.Tensor:
  """The w that minimizes |matrix w - right_side|^2 / (2 m) + ridge |w|^2 / 2.

  Args:
    matrix: float64 `[..., m, k]`; without a ridge rows of zeros change nothing.
    right_side: float64 `[..., m]`.
    ridge: At least 0; 0 is plain least squares, whose solution of the least
      norm is returned where there are several, as for `m < k`.

  Returns:
    float64 `[..., k]`.
  """
  if ridge:
    num_rows = tf.cast(tf.shape(matrix)[-2], matrix.dtype)
    # The ridge as further rows: the normal equations would square the error.
    rows = tf.sqrt(ridge * num_rows) * tf.eye(
      matrix.shape[-1],
      batch_shape=tf.shape(matrix)[:-2],
      dtype=matrix.dtype,
    )
    matrix = tf.concat([matrix, rows], axis=-2)
    right_side = tf.concat([right_side, tf.zeros_like(rows[..., 0])], axis=-1)
  # `fast=True` would solve the normal equations.
  solution = tf.linalg.lstsq(matrix, right_side[..., tf.newaxis], fast=False)
  return tf.squeeze(solution, axis=-1)


def solve_normal_equations(gram: tf.Tensor, moments: tf.Tensor) -> tf.Tensor:
  """The w of the least norm with gram w = moments.

  For whoever has only the sums: `least_squares` of the rows that gram and
  moments are sums of has the same solution, with half of its error's digits.

  Args:
    gram: float64 `[..., k, k]`, symmetric and positive semidefinite, such as a
      sum of z z^T. Eigenvalues below 1e-13 times the largest count as 0.
    moments: float64 `[..., k]`, in its range, such as the sum of y z.

  Returns:
    float64 `[..., k]`; zeros for a gram of zeros.
  """
  values, vectors = tf.linalg.eigh(gram)
  # Eigenvalues ascend.
  is_zero = values <= _RELATIVE_ZERO * values[..., -1:]
  coordinates = tf.linalg.matvec(vectors, moments, transpose_a=True)
  divisors = tf.where(is_zero, tf.zeros_like(values), values)
  return tf.linalg.matvec(vectors, tf.math.divide_no_nan(coordinates, divisors))
