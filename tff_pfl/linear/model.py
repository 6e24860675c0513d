"""The linear model x -> <B w, x>: its loss, its gradients, descent on it."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.linear import problem as problem_lib

# A loop inside of a client's work takes long to make for many clients at once.
_MAX_UNROLLED_STEPS = 4


class LinearModel(NamedTuple):
  """A two-layer linear model.

  Attributes:
    representation: float64 `[d, k]`, B.
    head: float64 `[k]`, w.
  """

  representation: Any
  head: Any


def check_model(model: LinearModel, name: str) -> LinearModel:
  """Returns a model as NumPy arrays, or raises `ValueError`."""
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


def _residual(model, samples):
  regressor = tf.linalg.matvec(model.representation, model.head)
  return tf.linalg.matvec(samples.x, regressor) - samples.y


def _num_samples(samples):
  return tf.cast(tf.shape(samples.y)[0], tf.float64)


def loss(model: LinearModel, samples: problem_lib.LinearSamples) -> tf.Tensor:
  """f(B, w) = |X B w - y|^2 / (2 m), of one client's samples."""
  squares = tf.square(_residual(model, samples))
  return tf.reduce_sum(squares) / (2 * _num_samples(samples))


def gradients(
  model: LinearModel, samples: problem_lib.LinearSamples
) -> LinearModel:
  """The gradients of `loss`.

  With g = X^T (X B w - y) / m they are g w^T for B and B^T g for w.
  """
  residual = _residual(model, samples)
  g = tf.linalg.matvec(samples.x, residual, transpose_a=True) / _num_samples(
    samples
  )
  return LinearModel(
    representation=g[:, tf.newaxis] * model.head[tf.newaxis],
    head=tf.linalg.matvec(model.representation, g, transpose_a=True),
  )


def descend(
  model: LinearModel,
  samples: problem_lib.LinearSamples,
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
