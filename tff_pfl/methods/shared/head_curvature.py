"""Hessians of a linear head's loss, in closed form.

With features z (a 1 appended where there is a bias), outputs o = W z and p the
probabilities, the Hessian of an example's loss in the outputs is

    squared error (mean over N outputs)   C = 2 / N I
    two classes, one output               C = mu (1 - mu)
    N labels of two classes each          C = diag(mu (1 - mu)) / N
    N classes                             C = diag(p) - p p^T

and in the head, C (x) z z^T, of size N times the number of features, with the
features of the first output first.
"""

import collections
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import domain_models, split_model


def as_vector(
  head: domain_models.LinearHead, weights: split_model.Weights
) -> tf.Tensor:
  """A head's weights `[outputs * features]`, the first output's first."""
  kernel = weights[head.kernel]
  if head.bias is not None:
    kernel = tf.concat([kernel, weights[head.bias][tf.newaxis]], axis=0)
  return tf.reshape(tf.transpose(kernel), [-1])


def from_vector(
  head: domain_models.LinearHead, vector: tf.Tensor, num_outputs: int
) -> collections.OrderedDict:
  """A head's weights from their vector, the inverse of `as_vector`."""
  kernel = tf.transpose(tf.reshape(vector, [num_outputs, -1]))
  weights = collections.OrderedDict()
  weights[head.kernel] = kernel if head.bias is None else kernel[:-1]
  if head.bias is not None:
    weights[head.bias] = kernel[-1]
  return weights


def head_hessian(
  model: split_model.SplitModel,
  head: domain_models.LinearHead,
  weights: split_model.Weights,
  features: tf.Tensor,
  is_counted: tf.Tensor,
  y: Optional[tf.Tensor] = None,
  weight: Any = (),
) -> tf.Tensor:
  """The Hessian of the sum of examples' losses in a linear head.

  Args:
    model: The model, with a loss that `expect_known_loss` accepts.
    head: Names of the head's weights.
    weights: The head's weights, at which the Hessian is taken.
    features: `[rows, features]`.
    is_counted: bool `[rows]`, True for the examples of the sum; the others may
      have any features.
    y: The labels `[rows, ...]`, for a model whose classes have weights in
      training, which then are in the losses.
    weight: Weights of the examples in the losses, `[rows]`; `()` for none.

  Returns:
    `[size, size]`, symmetric, in the order of `as_vector`.
  """
  # The others may be padding, and anything.
  features = tf.where(is_counted[:, tf.newaxis], features, 0.0)
  outputs, _ = model.head(weights, features)
  counted = tf.cast(is_counted, features.dtype)
  diagonal, outer = _curvature(model, outputs)
  diagonal *= counted[:, tf.newaxis]
  factors = []
  if model.training_loss is not None:
    factors.append(_training_weights(model, y, outputs))
  if not isinstance(weight, tuple):
    factors.append(tf.cast(weight, features.dtype))
  for factor in factors:
    diagonal *= factor[:, tf.newaxis]
    outer = outer if outer is None else outer * tf.sqrt(factor)[:, tf.newaxis]
  if head.bias is not None:
    features = tf.concat([features, counted[:, tf.newaxis]], axis=1)
  num_features, num_outputs = features.shape[1], outputs.shape[1]
  blocks = tf.einsum('na,ni,nj->aij', diagonal, features, features)
  hessian = tf.reshape(
    tf.einsum('ab,aij->aibj', tf.eye(num_outputs, dtype=blocks.dtype), blocks),
    [num_outputs * num_features] * 2,
  )
  if outer is None:
    return hessian
  spread = tf.reshape(
    outer[:, :, tf.newaxis] * features[:, tf.newaxis, :],
    [-1, num_outputs * num_features],
  )
  return hessian - tf.matmul(spread, spread, transpose_a=True)


def _training_weights(model, y, outputs):
  """Factors of the examples' losses in training, `[rows]`."""
  # It depends on the label alone; where all classes are alike no loss is 0.
  alike = tf.zeros_like(outputs)
  return tf.math.divide_no_nan(
    model.training_loss(y, alike), model.loss(y, alike)
  )


def _curvature(model, outputs):
  """`(d, u)` `[rows, outputs]` of C = diag(d) - u u^T; u may be None."""
  num_outputs = outputs.shape[-1]
  if model.classifier is None:
    return tf.fill(
      tf.shape(outputs), tf.cast(2, outputs.dtype) / num_outputs
    ), None
  probabilities = tf.cast(
    model.classifier.probabilities(outputs), outputs.dtype
  )
  if probabilities.shape.rank > outputs.shape.rank or num_outputs == 1:
    probability = tf.reshape(probabilities[..., 1], tf.shape(outputs))
    return probability * (1 - probability) / num_outputs, None
  return probabilities, probabilities


def expect_known_loss(model: split_model.SplitModel) -> None:
  """Raises `ValueError` if the loss has another Hessian than the closed form.

  The closed form is compared with automatic differentiation.

  Args:
    model: A model with a linear head.
  """
  errors.expect(
    model.training_loss is None or not model.classifier.is_multilabel,
    'class_weight',
    'None for several labels with second_order, whose Hessians are without '
    '(weighted_average takes any loss)',
    'weights',
  )
  head = domain_models.linear_head(model)
  # A GPU multiplies in TensorFloat-32, which is not close enough.
  with tf.device('CPU:0'):
    found, expected = _hessians_of_one_example(model, head)
  errors.expect(
    expected is not None and np.allclose(found, expected, rtol=1e-3, atol=1e-4),
    'model',
    'one with the cross-entropy of logits or the mean squared error as its '
    'loss, whose Hessians second_order has (weighted_average takes any loss)',
    f'{model.name!r} with another',
  )


def _hessians_of_one_example(model, head):
  """The closed form of a head's Hessian, and that of differentiation."""
  kernel = model.initial_weights[head.kernel]
  shape, dtype = kernel.shape, kernel.dtype
  rng = np.random.default_rng(0)
  features = tf.constant(rng.normal(size=[1, shape[0]]), dtype)
  weights = {
    name: tf.constant(rng.normal(size=model.initial_weights[name].shape), dtype)
    for name in head
    if name is not None
  }
  y = model.element_spec['y']
  label = tf.cast(tf.ones([1, *y.shape]), y.dtype)

  def losses(vector):
    changed = from_vector(head, vector, shape[1])
    outputs, _ = model.head(changed, features)
    return tf.reduce_sum(model.in_training.loss(label, outputs))

  vector = as_vector(head, weights)
  with tf.GradientTape() as outside:
    outside.watch(vector)
    with tf.GradientTape() as inside:
      inside.watch(vector)
      loss = losses(vector)
    slope = inside.gradient(loss, vector)
  expected = outside.jacobian(slope, vector)
  found = head_hessian(
    model, head, weights, features, tf.constant([True]), label
  )
  return found, expected
