"""The linear model x -> <B w, x>: its loss, its gradients, descent on it.

With M domains the head, or both parts, may have a first axis with one entry for
each domain: an example of domain z is then predicted by w_z (and B_z). What is
of the regressors B w has the shape `[d]`, and `[M, d]` with domains.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from binaries.papers.linear import problem as problem_lib
from tff_pfl import errors

# A loop inside of a client's work takes long to make for many clients at once.
_MAX_UNROLLED_STEPS = 4


class LinearModel(NamedTuple):
  """A two-layer linear model.

  Attributes:
    representation: float64 `[d, k]`, B; `[M, d, k]` with one for each domain.
    head: float64 `[k]`, w; `[M, k]` with one for each domain.
  """

  representation: Any
  head: Any


def check_model(model: LinearModel, name: str) -> LinearModel:
  """Returns a model without domains as NumPy arrays, or raises `ValueError`."""
  errors.expect_type(model, LinearModel, name, 'a LinearModel')
  model = LinearModel(*(np.asarray(part, np.float64) for part in model))
  shapes = (model.representation.shape, model.head.shape)
  errors.expect(
    len(shapes[0]) == 2
    and shapes[0][0] >= shapes[0][1] >= 1
    and shapes[1] == shapes[0][1:],
    name,
    'a model of the shapes [d, k] with d >= k >= 1 and [k]',
    shapes,
  )
  errors.expect(
    all(np.isfinite(part).all() for part in model),
    name,
    'finite',
    'a number that is not',
  )
  return model


def select(model: LinearModel, names: Sequence[str]) -> Any:
  """Parts of a model by name."""
  return collections.OrderedDict((n, getattr(model, n)) for n in names)


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
  gradients_fn: Callable[..., LinearModel] = gradients,
) -> LinearModel:
  """Full-batch gradient steps on the representation and the head together.

  Args:
    model: Where to start.
    samples: Those of one client.
    learning_rate: Positive.
    num_steps: At least 0.
    gradients_fn: `(model, samples) -> gradients`, by default those of `loss`.
  """

  def step(model):
    gradient = gradients_fn(model, samples)
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
