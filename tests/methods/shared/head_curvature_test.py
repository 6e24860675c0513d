import keras
import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.methods.shared import head_curvature
from tff_pfl.models import domain_models, keras_bridge

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


def _model(loss, num_outputs, use_bias=True, dtype='float64', **options):
  # In float64, so that nothing but the formulas is compared.
  network = keras.Sequential(
    [
      keras.layers.Input([_NUM_FEATURES], dtype=dtype),
      keras.layers.Dense(
        num_outputs, use_bias=use_bias, name='head', dtype=dtype
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
  """The Hessian of the sum of losses, in the order of `as_vector`."""
  vector = head_curvature.as_vector(head, weights)
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(vector)
    with tf.GradientTape() as inner:
      inner.watch(vector)
      outputs, _ = model.head(
        head_curvature.from_vector(
          head, vector, model.initial_weights[head.kernel].shape[1]
        ),
        features,
      )
      losses = model.in_training.loss(tf.constant(y), outputs)
      loss = tf.reduce_sum(weight * losses)
    slope = inner.gradient(loss, vector)
  # For so few numbers a loop takes less time than to trace a vectorized one.
  return outer.jacobian(slope, vector, experimental_use_pfor=False)


@pytest.mark.parametrize(
  ('name', 'use_bias'),
  [('one_hot', False), *((name, True) for name in _LOSSES)],
)
def test_closed_form_is_what_differentiation_gives(name, use_bias):
  loss, num_outputs, num_labels = _LOSSES[name]
  rng = np.random.default_rng(1)
  model = _model(loss, num_outputs, use_bias)
  head = domain_models.linear_head(model)
  assert (head.bias is not None) == use_bias
  weights = _weights(model, rng)
  features = tf.constant(rng.normal(size=[_NUM_EXAMPLES, _NUM_FEATURES]))
  y = _labels(model, num_outputs, num_labels, rng)
  is_counted = tf.range(_NUM_EXAMPLES) % 3 > 0
  # What others are does not matter.
  padded = tf.where(is_counted[:, tf.newaxis], features, np.nan)
  found = head_curvature.head_hessian(model, head, weights, padded, is_counted)
  expected = _by_differentiation(
    model, head, weights, features[is_counted], y[is_counted]
  )
  size = num_outputs * (_NUM_FEATURES + use_bias)
  assert found.shape == (size, size)
  np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
  np.testing.assert_allclose(found, np.transpose(found), rtol=0, atol=1e-13)
  assert np.max(np.abs(found)) > 0.1
  head_curvature.expect_known_loss(model)


@pytest.mark.parametrize('name', ['softmax', 'one_hot', 'logistic'])
def test_classes_and_examples_may_have_weights(name):
  loss, num_outputs, num_labels = _LOSSES[name]
  rng = np.random.default_rng(2)
  model = _model(loss, num_outputs, class_weight={0: 0.3, 1: 5.0})
  head = domain_models.linear_head(model)
  weights = _weights(model, rng)
  features = tf.constant(rng.normal(size=[_NUM_EXAMPLES, _NUM_FEATURES]))
  y = _labels(model, num_outputs, num_labels, rng)
  found = head_curvature.head_hessian(
    model, head, weights, features, tf.fill([_NUM_EXAMPLES], True), y
  )
  expected = _by_differentiation(model, head, weights, features, y)
  # Weights of classes are float32.
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
  weight = tf.constant(rng.exponential(size=_NUM_EXAMPLES))
  found = head_curvature.head_hessian(
    model, head, weights, features, tf.fill([_NUM_EXAMPLES], True), y, weight
  )
  expected = _by_differentiation(model, head, weights, features, y, weight)
  np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
  head_curvature.expect_known_loss(model)
  labels = _model(_LOSSES['labels'][0], 3, class_weight={1: 2.0})
  with pytest.raises(ValueError, match='`class_weight`.*second_order'):
    head_curvature.expect_known_loss(labels)


@pytest.mark.parametrize('use_bias', [True, False])
def test_vector_holds_the_first_outputs_weights_first_and_back(use_bias):
  model = _model('mse', 3, use_bias)
  head = domain_models.linear_head(model)
  weights = _weights(model, np.random.default_rng(3))
  vector = head_curvature.as_vector(head, weights)
  first = list(weights['head/kernel'][:, 0].numpy())
  if use_bias:
    first.append(float(weights['head/bias'][0]))
  np.testing.assert_array_equal(vector[: len(first)], first)
  back = head_curvature.from_vector(head, vector, 3)
  assert list(back) == list(weights)
  for name, value in weights.items():
    np.testing.assert_array_equal(back[name], value)


def _half_squared_error(y_true, y_pred):
  return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1) / 2


@pytest.mark.parametrize(
  ('loss', 'num_outputs'),
  [
    ('mae', 1),
    ('huber', 3),
    ('hinge', 1),
    (_half_squared_error, 1),
  ],
)
def test_other_losses_are_refused(loss, num_outputs):
  model = _model(loss, num_outputs, dtype='float32')
  with pytest.raises(
    ValueError, match='`model`.*loss.*second_order.*weighted_average'
  ):
    head_curvature.expect_known_loss(model)
