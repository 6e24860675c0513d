"""The second-order aggregation of domains' heads.

The new head of domain m, with d_im, d_m and L_im as in `domain_heads`, is

    w_m <- w_m + d_m + (H_m + r I)^-1 sum_i L_im H_im (d_im - d_m)

with H_im the Hessian of the client's mean loss on domain m at its head w_im,
H_m = sum_i L_im H_im and r = `ridge` times the largest eigenvalue of H_m. If
r = 0, this is FedDAR's sum H_m^-1 sum_i L_im H_im w_im. Otherwise, it is the
same sum with the Hessians H_im + r / (sum_i L_im) I. So a ridge does not change
what clients agree on. In a direction of curvature h, it leaves h / (h + r) of
what second order adds to the average. In a direction about which the cohort's
data say nothing, the head is the average.

The Hessians make up most of a report's norm, so a factory that clips makes
clients with large Hessians count less. Noise is amplified by up to 1 / `ridge`.

Rounding of the float32 reports is also amplified (the solve is in float64):
H_m + r I has a condition number of up to 1 + 1 / `ridge`, 1,001 by default. On
digits in shards of two classes, heads after two rounds on TFF's native context
differ by 3.0e-5 from those of the runtime in process. Initial weights that
differ in the last bit make heads differ by 2.4e-5. Both are 5e-7 with a ridge
of 0.1, and 1e-7 with the average.

For an example with features z (and a 1 appended if there is a bias), outputs
o = W z and probabilities p, the Hessian of its loss in the outputs is

    squared error (mean over N outputs)   C = 2 / N I
    two classes, one output               C = mu (1 - mu)
    N labels of two classes each          C = diag(mu (1 - mu)) / N
    N classes                             C = diag(p) - p p^T

with mu the probability of the second class. In the head, it is C (x) z z^T, of
size N times the number of features, with the features of the first output
first. L2 regularization of the head by l |w|^2 adds 2 l I.

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, equation 8.
"""

import collections
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.methods.shared import domain_heads
from tff_pfl.models import domain_models, split_model


class SecondOrder(domain_heads.WeightedAverage):
  """The minimum of the sum of the clients' second-order expansions (eq. 8)."""

  def __init__(self, model: split_model.SplitModel, ridge: float = 0.0):
    """Takes the model of one domain, with a linear head and a known loss."""
    super().__init__(model)
    expect_known_loss(model)
    self._head = domain_models.linear_head(model)
    self._ridge = ridge
    kernel = model.initial_weights[self._head.kernel]
    self._num_outputs = kernel.shape[1]
    self.initial_algorithm = collections.OrderedDict(
      effective_rank=np.zeros([model.domains.number], np.float32)
    )
    # The number of directions of each domain's head in which second order
    # decides. In the other directions, the head is the average.
    self.metrics = lambda algorithm: collections.OrderedDict(
      effective_rank=model.domains.by_name(algorithm['effective_rank'])
    )

  def report(self, old, new, features):
    """The average's report, Hessians, and Hessians times the changes."""
    report = super().report(old, new, features)
    members = domain_heads.members_of(self._model, features)
    hessians = tf.stack(
      [
        head_hessian(
          self._model,
          self._head,
          self._parts.part(new, name),
          features.x['inputs'],
          members[m],
          features.y,
          features.weight,
        )
        for m, name in enumerate(self._parts.names)
      ]
    )
    moved = self._vectors(old) - self._vectors(new)
    return collections.OrderedDict(
      **report,
      hessian=hessians,
      hessian_moved=tf.linalg.matvec(hessians, moved),
    )

  def _vectors(self, heads):
    return tf.stack(
      [
        as_vector(self._head, self._parts.part(heads, name))
        for name in self._parts.names
      ]
    )

  def update(self, report, cohort):
    """The average's update with the correction by the Hessians."""
    average, _ = super().update(report, cohort)
    is_present = report['shares'] >= cohort.least_share
    hessians = tf.where(
      is_present[:, tf.newaxis, tf.newaxis], report['hessian'], 0
    )
    steps = self._vectors(average)
    corrections, ranks = solve(
      hessians,
      report['hessian_moved'] - tf.linalg.matvec(hessians, steps),
      self._ridge,
    )
    update = {
      name: from_vector(self._head, step, self._num_outputs)
      for name, step in zip(self._parts.names, tf.unstack(steps + corrections))
    }
    return self._parts.join(update), collections.OrderedDict(
      effective_rank=ranks
    )


def solve(hessians: tf.Tensor, right_sides: tf.Tensor, ridge: float) -> tuple:
  """Solves `(hessian + r I) @ step = right_side` by least squares.

  The solve uses the eigenvalues h in float64. Directions in which the Hessian
  is 0 up to rounding (or negative, after added noise) get no step.

  Args:
    hessians: float `[domains, size, size]`, symmetric up to rounding.
    right_sides: float `[domains, size]`.
    ridge: Ratio of r to the largest eigenvalue, at least 0. So r has the scale
      of the rounding errors.

  Returns:
    `steps` `[domains, size]`, and the effective ranks, float32 `[domains]` in
    [0, size]: the sum of h / (h + r) over the directions with a step.
  """
  dtype, size = hessians.dtype, hessians.shape[-1]
  tolerance = size * np.finfo(dtype.as_numpy_dtype).eps
  # A mean over no clients may be NaN, which has no eigenvalues.
  hessians = tf.where(tf.math.is_finite(hessians), hessians, 0)
  hessians = tf.cast(hessians, tf.float64)
  values, vectors = tf.linalg.eigh(
    (hessians + tf.linalg.matrix_transpose(hessians)) / 2
  )
  largest = tf.maximum(values[:, -1:], 0)
  is_kept = values > tolerance * largest
  inverse = tf.where(
    is_kept, 1 / tf.where(is_kept, values + ridge * largest, 1), 0
  )
  along = tf.linalg.matvec(vectors, tf.cast(right_sides, tf.float64), True)
  steps = tf.linalg.matvec(vectors, inverse * along)
  ranks = tf.reduce_sum(inverse * values, axis=1)
  return tf.cast(steps, dtype), tf.cast(ranks, tf.float32)


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

  Each loss includes the head's regularizers.

  Args:
    model: The model, with a loss that `expect_known_loss` accepts.
    head: Names of the head's weights.
    weights: The head's weights, at which the Hessian is taken.
    features: `[rows, features]`.
    is_counted: bool `[rows]`, True for the examples in the sum. The others may
      have any features.
    y: The labels `[rows, ...]`, for a model whose training losses have class
      weights. The Hessian includes them.
    weight: Weights of the examples in the losses, `[rows]`, or `()` for none.

  Returns:
    `[size, size]`, symmetric, in the order of `as_vector`.
  """
  # The other rows may be padding with any values.
  features = tf.where(is_counted[:, tf.newaxis], features, 0.0)
  outputs, _ = model.head(weights, features)
  counted = tf.cast(is_counted, features.dtype)
  diagonal, outer = _curvature(model, outputs)
  diagonal *= counted[:, tf.newaxis]
  factors = []
  if model.training_loss is not None:
    # The factor depends only on the label. No loss is 0 at equal outputs.
    alike = tf.zeros_like(outputs)
    factors.append(
      tf.math.divide_no_nan(model.training_loss(y, alike), model.loss(y, alike))
    )
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
  if any(name in model.regularizers for name in head):
    curvature = {}
    for name, value in weights.items():
      strength = getattr(model.regularizers.get(name), 'l2', 0.0)
      curvature[name] = 2 * strength * tf.ones_like(value)
    hessian += tf.linalg.diag(
      tf.reduce_sum(counted) * as_vector(head, curvature)
    )
  if outer is None:
    return hessian
  spread = tf.reshape(
    outer[:, :, tf.newaxis] * features[:, tf.newaxis, :],
    [-1, num_outputs * num_features],
  )
  return hessian - tf.matmul(spread, spread, transpose_a=True)


def _curvature(model, outputs):
  """`(d, u)` `[rows, outputs]` of C = diag(d) - u u^T. u may be None."""
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
  """Raises `ValueError` if the loss's Hessian differs from the closed form.

  The closed form is compared with automatic differentiation.

  Args:
    model: A model with a linear head.
  """
  errors.expect(
    model.training_loss is None or not model.classifier.is_multilabel,
    'class_weight',
    'None for several labels with second_order, whose Hessians have no class '
    'weights (weighted_average takes any loss)',
    'weights',
  )
  head = domain_models.linear_head(model)
  # A GPU multiplies in TensorFloat-32, which is not close enough.
  with tf.device('CPU:0'):
    closed_form, expected = _hessians_of_one_example(model, head)
  errors.expect(
    expected is not None
    and np.allclose(closed_form, expected, rtol=1e-3, atol=1e-4),
    'model',
    'one with the cross-entropy of logits or the mean squared error as its '
    'loss and at most L1 and L2 regularizers of its head, whose Hessians '
    'second_order has (weighted_average takes any loss)',
    f'{model.name!r} with another loss or regularizer',
  )


def _hessians_of_one_example(model, head):
  """A head's Hessian in closed form, and by differentiation."""
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
    penalty = sum(
      of(changed[name])
      for name, of in model.regularizers.items()
      if name in changed
    )
    return tf.reduce_sum(model.in_training.loss(label, outputs)) + penalty

  vector = as_vector(head, weights)
  with tf.GradientTape() as outside:
    outside.watch(vector)
    with tf.GradientTape() as inside:
      inside.watch(vector)
      loss = losses(vector)
    slope = inside.gradient(loss, vector)
  expected = outside.jacobian(slope, vector)
  closed_form = head_hessian(
    model, head, weights, features, tf.constant([True]), label
  )
  return closed_form, expected
