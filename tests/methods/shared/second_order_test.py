import keras
import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.methods.shared import domain_heads, second_order
from tff_pfl.models import domain_models, domains, keras_bridge


def _solve(hessians, moved, ridge=0.0):
  actual = second_order.solve(tf.constant(hessians), tf.constant(moved), ridge)
  return [value.numpy() for value in actual]


def test_fewer_examples_than_features_give_the_smallest_step_that_fits():
  rng = np.random.default_rng(4)
  z, y, start = (rng.normal(size=size) for size in ([3, 5], 3, 5))
  end = np.linalg.lstsq(z, y, rcond=None)[0]
  hessian = 2 * z.T @ z
  steps, ranks = _solve(
    hessian[np.newaxis], (hessian @ (start - end))[np.newaxis]
  )
  actual = start - steps[0]
  # The nearest to the start of those that fit.
  expected = start + np.linalg.pinv(z) @ (y - z @ start)
  np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-8)
  np.testing.assert_allclose(z @ actual, y, rtol=0, atol=1e-8)
  assert ranks == [3]


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_rounding_is_not_taken_for_curvature(dtype):
  # Of rank 1: the other eigenvalues are rounding, and of both signs.
  z = np.random.default_rng(6).normal(size=[1, 30])
  hessian = (z.T @ z).astype(dtype)
  step = np.random.default_rng(7).normal(size=30).astype(dtype)
  steps, ranks = _solve(hessian[np.newaxis], (hessian @ step)[np.newaxis], 0.0)
  assert steps.dtype == dtype and ranks.dtype == np.float32
  along = (z[0] @ step) / (z[0] @ z[0]) * z[0]
  np.testing.assert_allclose(steps[0], along, rtol=0, atol=1e-4)
  assert ranks[0] == 1


def test_ridge_and_effective_ranks_by_hand():
  hessians = np.stack([np.diag([8.0, 2.0, 0.0]), np.zeros([3, 3])])
  right_sides = np.array([[8.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
  steps, ranks = _solve(hessians, right_sides, 0.25)
  # The largest eigenvalue is 8: 2 is added to those that are not 0.
  np.testing.assert_allclose(steps, [[0.8, 0.5, 0.0], [0.0, 0.0, 0.0]])
  np.testing.assert_allclose(ranks, [8 / 10 + 2 / 4, 0.0])
  steps, ranks = _solve(hessians, right_sides, 0.0)
  np.testing.assert_allclose(steps, [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
  np.testing.assert_allclose(ranks, [2.0, 0.0])


def test_what_noise_makes_negative_gets_no_step():
  hessian = np.diag([2.0, -1.0, 1.0])
  steps, ranks = _solve(hessian[np.newaxis], np.ones([1, 3]), 0.0)
  np.testing.assert_allclose(steps, [[0.5, 0.0, 1.0]])
  assert ranks == [2.0]
  steps, ranks = _solve(-np.eye(3)[np.newaxis], np.ones([1, 3]), 0.0)
  assert not np.any(steps) and ranks == [0.0]


def test_mean_over_nobody_is_no_error():
  # Some aggregators give 0 / 0 for a cohort of which nobody is accepted.
  nan = np.full([2, 3, 3], np.nan)
  steps, _ = _solve(nan, nan[:, 0], 0.0)
  assert np.isnan(steps).all()


def test_second_order_needs_a_loss_whose_curvature_is_known():
  model = domain_models.with_domains(
    _model('mae', 1, dtype='float32'), domains.Domains(('a', 'b'), (20, 19))
  )
  domain_heads.WeightedAverage(model)
  with pytest.raises(ValueError, match='weighted_average takes any loss'):
    second_order.SecondOrder(model)


_NUM_EXAMPLES, _NUM_FEATURES = 9, 4
# A loss, its number of outputs, and labels of it.
_LOSSES = {
  'softmax': (
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    3,
    np.int32(3),
  ),
  'one_hot': (keras.losses.CategoricalCrossentropy(from_logits=True), 3, None),
  'logistic': (
    keras.losses.BinaryCrossentropy(from_logits=True),
    1,
    np.int32(2),
  ),
  'labels': (keras.losses.BinaryCrossentropy(from_logits=True), 3, np.int32(2)),
  'squared_error': ('mse', 1, None),
  'squared_errors': ('mse', 3, None),
}


def _model(
  loss,
  num_outputs,
  use_bias=True,
  dtype='float64',
  regularizer=None,
  **options,
):
  # In float64, so that nothing but the formulas is compared.
  network = keras.Sequential(
    [
      keras.layers.Input([_NUM_FEATURES], dtype=dtype),
      keras.layers.Dense(
        num_outputs,
        use_bias=use_bias,
        kernel_regularizer=regularizer,
        name='head',
        dtype=dtype,
      ),
    ]
  )
  return keras_bridge.from_keras(
    network, head_layers=['head'], loss=loss, metrics=[], **options
  )


def _labels(model, num_outputs, num_labels, rng):
  if num_labels is not None:
    shape = [_NUM_EXAMPLES, *model.element_spec['y'].shape]
    return rng.integers(0, num_labels, shape).astype(np.int32)
  if model.classifier is not None:
    classes = rng.integers(0, num_outputs, _NUM_EXAMPLES)
    return np.eye(num_outputs, dtype=np.float32)[classes]
  y = rng.normal(size=[_NUM_EXAMPLES, num_outputs]).astype(np.float32)
  return y[:, 0] if num_outputs == 1 else y


def _weights(model, rng):
  return {
    name: tf.constant(rng.normal(size=value.shape))
    for name, value in model.initial_weights.items()
  }


def _by_differentiation(model, head, weights, features, y, weight=1.0):
  """The Hessian of the sum of losses and penalties, as in `as_vector`."""
  vector = second_order.as_vector(head, weights)
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(vector)
    with tf.GradientTape() as inner:
      inner.watch(vector)
      changed = second_order.from_vector(
        head, vector, model.initial_weights[head.kernel].shape[1]
      )
      outputs, _ = model.head(changed, features)
      losses = model.in_training.loss(tf.constant(y), outputs)
      loss = tf.reduce_sum(weight * losses)
      for name, regularizer in model.regularizers.items():
        loss += len(y) * regularizer(changed[name])
    slope = inner.gradient(loss, vector)
  # For so few numbers a loop takes less time than to trace a vectorized one.
  return outer.jacobian(slope, vector, experimental_use_pfor=False)


@pytest.mark.parametrize(
  ('name', 'use_bias', 'regularizer'),
  [
    ('one_hot', False, None),
    *((name, True, None) for name in _LOSSES),
    ('softmax', True, keras.regularizers.L1L2(0.5, 0.25)),
  ],
)
def test_closed_form_is_what_differentiation_gives(name, use_bias, regularizer):
  loss, num_outputs, num_labels = _LOSSES[name]
  rng = np.random.default_rng(1)
  model = _model(loss, num_outputs, use_bias, regularizer=regularizer)
  head = domain_models.linear_head(model)
  assert (head.bias is not None) == use_bias
  weights = _weights(model, rng)
  features = tf.constant(rng.normal(size=[_NUM_EXAMPLES, _NUM_FEATURES]))
  y = _labels(model, num_outputs, num_labels, rng)
  is_counted = tf.range(_NUM_EXAMPLES) % 3 > 0
  # What others are does not matter.
  padded = tf.where(is_counted[:, tf.newaxis], features, np.nan)
  actual = second_order.head_hessian(model, head, weights, padded, is_counted)
  expected = _by_differentiation(
    model, head, weights, features[is_counted], y[is_counted]
  )
  size = num_outputs * (_NUM_FEATURES + use_bias)
  assert actual.shape == (size, size)
  np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-10)
  np.testing.assert_allclose(actual, np.transpose(actual), rtol=0, atol=1e-13)
  assert np.max(np.abs(actual)) > 0.1
  second_order.expect_known_loss(model)


@pytest.mark.parametrize('name', ['softmax', 'one_hot', 'logistic'])
def test_classes_and_examples_may_have_weights(name):
  loss, num_outputs, num_labels = _LOSSES[name]
  rng = np.random.default_rng(2)
  model = _model(loss, num_outputs, class_weight={0: 0.3, 1: 5.0})
  head = domain_models.linear_head(model)
  weights = _weights(model, rng)
  features = tf.constant(rng.normal(size=[_NUM_EXAMPLES, _NUM_FEATURES]))
  y = _labels(model, num_outputs, num_labels, rng)
  actual = second_order.head_hessian(
    model, head, weights, features, tf.fill([_NUM_EXAMPLES], True), y
  )
  expected = _by_differentiation(model, head, weights, features, y)
  # Weights of classes are float32.
  np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)
  weight = tf.constant(rng.exponential(size=_NUM_EXAMPLES))
  actual = second_order.head_hessian(
    model, head, weights, features, tf.fill([_NUM_EXAMPLES], True), y, weight
  )
  expected = _by_differentiation(model, head, weights, features, y, weight)
  np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)
  second_order.expect_known_loss(model)
  labels = _model(_LOSSES['labels'][0], 3, class_weight={1: 2.0})
  with pytest.raises(ValueError, match='`class_weight`.*second_order'):
    second_order.expect_known_loss(labels)


@pytest.mark.parametrize('use_bias', [True, False])
def test_vector_holds_the_first_outputs_weights_first_and_back(use_bias):
  model = _model('mse', 3, use_bias)
  head = domain_models.linear_head(model)
  weights = _weights(model, np.random.default_rng(3))
  vector = second_order.as_vector(head, weights)
  first = list(weights['head/kernel'][:, 0].numpy())
  if use_bias:
    first.append(float(weights['head/bias'][0]))
  np.testing.assert_array_equal(vector[: len(first)], first)
  back = second_order.from_vector(head, vector, 3)
  assert list(back) == list(weights)
  for name, value in weights.items():
    np.testing.assert_array_equal(back[name], value)


def _half_squared_error(y_true, y_pred):
  return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1) / 2


@pytest.mark.parametrize(
  ('loss', 'num_outputs', 'regularizer'),
  [
    ('huber', 3, None),
    ('hinge', 1, None),
    (_half_squared_error, 1, None),
    ('mse', 1, lambda kernel: tf.reduce_sum(kernel**4)),
  ],
)
def test_other_losses_are_refused(loss, num_outputs, regularizer):
  model = _model(loss, num_outputs, dtype='float32', regularizer=regularizer)
  with pytest.raises(
    ValueError, match='`model`.*loss.*second_order.*weighted_average'
  ):
    second_order.expect_known_loss(model)
