"""The linear model x -> <B w, x>: loss, gradients, descent, least squares.

With M domains the head, or both parts, may have a first axis with one entry for
each domain: an example of domain z is then predicted by w_z (and B_z). What is
of the regressors B w has the shape `[d]`, and `[M, d]` with domains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from binaries.papers.linear import problem as problem_lib

# For its rules: without them clients cannot compute as one program.
from tff_pfl.client import vectorization  # noqa: F401

# A loop inside of a client's work takes long to make for many clients at once.
_MAX_UNROLLED_STEPS = 4
# Eigenvalues of a sum of squares, relative to the largest, that are rounding.
_RELATIVE_ZERO = 1e-13


class LinearModel(NamedTuple):
  """A two-layer linear model.

  Attributes:
    representation: float64 `[d, k]`, B; `[M, d, k]` with one for each domain.
    head: float64 `[k]`, w; `[M, k]` with one for each domain.
  """

  representation: Any
  head: Any


def select(model: LinearModel, names: Sequence[str]) -> dict[str, Any]:
  """Parts of a model by name."""
  return {name: getattr(model, name) for name in names}


def membership(samples: problem_lib.DomainSamples, num_domains: int) -> Any:
  """float64 `[m, num_domains]`: 1 where a sample is of the domain, 0 else."""
  return tf.one_hot(samples.domain, num_domains, dtype=tf.float64)


def _residual(model, samples):
  """`[m]`; with domains `[m, M]`, with 0 for the domains that are not its."""
  regressors = tf.linalg.matvec(model.representation, model.head)
  if len(regressors.shape) == 1:
    return tf.linalg.matvec(samples.x, regressors) - samples.y
  residual = (
    tf.matmul(samples.x, regressors, transpose_b=True)
    - samples.y[:, tf.newaxis]
  )
  return residual * membership(samples, regressors.shape[0])


def _num_samples(samples):
  return tf.cast(tf.shape(samples.y)[0], tf.float64)


def loss(model: LinearModel, samples: problem_lib.Samples) -> tf.Tensor:
  """f(B, w) = |X B w - y|^2 / (2 m), of one client's samples."""
  squares = tf.square(_residual(model, samples))
  return tf.reduce_sum(squares) / (2 * _num_samples(samples))


def regressor_gradient(
  model: LinearModel, samples: problem_lib.Samples
) -> tf.Tensor:
  """The gradient of |X B w - y|^2 / 2 for the regressors, not for the parts.

  Returns:
    float64 `[d]`, X^T (X B w - y); with domains `[M, d]`, where row z is of the
    samples of domain z alone.
  """
  residual = _residual(model, samples)
  if len(residual.shape) == 1:
    return tf.linalg.matvec(samples.x, residual, transpose_a=True)
  return tf.matmul(residual, samples.x, transpose_a=True)


def part_gradients(model: LinearModel, g: tf.Tensor) -> LinearModel:
  """The gradients for B and w, of a function whose gradient for B w is g.

  They are g w^T and B^T g. A representation that all domains share gets the sum
  over the domains.

  Args:
    g: float64, of the shape of its regressors.
  """
  outer = g[..., tf.newaxis] * model.head[..., tf.newaxis, :]
  if len(outer.shape) > len(model.representation.shape):
    outer = tf.reduce_sum(outer, axis=0)
  return LinearModel(
    representation=outer,
    head=tf.linalg.matvec(model.representation, g, transpose_a=True),
  )


def gradients(model: LinearModel, samples: problem_lib.Samples) -> LinearModel:
  """The gradients of `loss`."""
  return part_gradients(
    model, regressor_gradient(model, samples) / _num_samples(samples)
  )


def descend(
  model: LinearModel,
  samples: problem_lib.Samples,
  learning_rate: float,
  num_steps: int,
) -> LinearModel:
  """Full-batch gradient steps on the representation and the head together."""

  def step(model):
    gradient = gradients(model, samples)
    return tf.nest.map_structure(
      lambda value, slope: value - learning_rate * slope, model, gradient
    )

  return repeat(step, model, num_steps)


def repeat(
  step: Callable[[LinearModel], LinearModel], model: LinearModel, num_steps: int
) -> LinearModel:
  """Applies `step` to a model `num_steps` times."""
  if num_steps <= _MAX_UNROLLED_STEPS:
    for _ in range(num_steps):
      model = step(model)
    return model
  parts = tf.while_loop(
    lambda *_: True,
    lambda *parts: tuple(step(LinearModel(*parts))),
    tuple(model),
    maximum_iterations=num_steps,
  )
  return LinearModel(*parts)


def orthonormalize(matrix: tf.Tensor) -> tf.Tensor:
  """The Q of `matrix` = Q R whose R has a non-negative diagonal.

  That Q is unique and changes little when the matrix does, so that the heads
  that clients keep from one round to the next go on fitting it.
  """
  q, r = tf.linalg.qr(matrix)
  signs = tf.where(tf.linalg.diag_part(r) < 0, -1.0, 1.0)
  return q * tf.cast(signs, q.dtype)[tf.newaxis]


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
