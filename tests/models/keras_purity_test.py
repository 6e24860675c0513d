"""Layers that draw or assign, and those that cannot be made pure."""

import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models
from tff_pfl.models import split_model

layers = keras.layers


# Batch normalization.


def test_padding_does_not_count_in_batch_normalization():
  model = keras_models.sequential(
    layers.Conv2D(4, 3),
    layers.BatchNormalization(),
    layers.Flatten(),
    shape=(5, 5, 3),
  )
  bridged = keras_models.bridge(keras_models.jitter(model))
  x = keras_models.examples(bridged)[0][:6]
  weights = bridged.initial_weights

  def forward(x, *padding):
    mode = keras_models.training(
      example_weights=tf.constant(padding) if padding else None
    )
    return bridged.forward(weights, x, mode)

  expected, statistics = forward(x)
  padded = tf.concat([x, 100 + x[:3]], axis=0)
  outputs, padded_statistics = forward(padded, *[1.0] * 6, *[0.0] * 3)
  np.testing.assert_allclose(outputs[:6], expected, rtol=1e-4, atol=1e-5)
  _, of_padding = forward(x, *[0.0] * 6)
  for name, value in statistics.items():
    np.testing.assert_allclose(padded_statistics[name], value, rtol=1e-5)
    np.testing.assert_array_equal(of_padding[name], weights[name])


def test_frozen_layers_are_not_trained():
  model = keras_models.sequential(
    layers.Dense(4, name='frozen', trainable=False),
    layers.BatchNormalization(name='norm', trainable=False),
  )
  bridged = keras_models.bridge(model)
  assert bridged.statistics == {
    *bridged.layers['frozen'],
    *bridged.layers['norm'],
  }
  x, _ = keras_models.examples(bridged)
  outputs, statistics = bridged.forward(
    bridged.initial_weights, x, keras_models.training()
  )
  assert not statistics
  np.testing.assert_allclose(outputs, model(x, training=True), rtol=1e-5)


# Dropout.


def _dropout_model():
  return keras_models.bridge(
    keras_models.sequential(layers.Dropout(0.25), shape=(50,))
  )


def _dropped(bridged, seed, x=None):
  x = tf.ones([40, 50]) if x is None else x
  return bridged.body({}, x, keras_models.training(seed))[0]


def test_dropout_drops_its_rate_by_the_seed_and_scales_the_rest():
  bridged = _dropout_model()
  values = _dropped(bridged, (1, 2)).numpy()
  np.testing.assert_allclose(np.unique(values), [0, 4 / 3], rtol=1e-6)
  # 2000 coins: a standard deviation is 0.0097.
  assert abs(np.mean(values == 0) - 0.25) < 0.03
  for jit_compile in (False, True):
    again = tf.function(
      lambda x: _dropped(bridged, (1, 2), x), jit_compile=jit_compile
    )
    np.testing.assert_allclose(again(tf.ones([40, 50])), values, rtol=1e-6)
  for seed in ((1, 3), (2, 2)):
    assert np.mean(values == _dropped(bridged, seed)) < 0.8


def test_dropout_needs_a_seed_in_training_only():
  bridged = _dropout_model()
  x = tf.ones([4, 50])
  np.testing.assert_array_equal(bridged.body({}, x)[0], x)
  with pytest.raises(ValueError, match='mode.seed'):
    bridged.body({}, x, split_model.Mode(True))


def test_a_layer_that_draws_again_draws_what_no_other_does():
  inputs = keras.Input((200,))
  twice, once = layers.Dropout(0.5), layers.Dropout(0.5)
  both = layers.Concatenate()([twice(inputs), twice(inputs), once(inputs)])
  bridged = keras_models.bridge(
    keras.Model(inputs, layers.Dense(3, name='head')(both)), ['head']
  )
  values = _dropped(bridged, (1, 1), tf.ones([40, 200])).numpy() == 0
  first, second, other = np.split(values, 3, axis=1)
  for one, another in ((first, second), (first, other), (second, other)):
    assert 0.45 < np.mean(one == another) < 0.55


def test_other_threads_draw_and_trace_as_ever():
  bridged = _dropout_model()
  stop = threading.Event()

  def forward():
    while not stop.is_set():
      _dropped(bridged, (1, 2))

  thread = threading.Thread(target=forward)
  thread.start()
  try:
    for _ in range(20):
      layers.Dense(3, kernel_initializer=keras.initializers.HeNormal(1)).build(
        (None, 4)
      )
      number = tf.constant(1.0)
      traced = tf.function(number.__add__).get_concrete_function(number)
      assert len(traced.captured_inputs) == 1
  finally:
    stop.set()
    thread.join()


@pytest.mark.parametrize(
  'layer, shape, constant_axes',
  [
    (lambda: layers.SpatialDropout2D(0.5), (3, 4, 10), (1, 2)),
    (lambda: layers.Dropout(0.5, noise_shape=(None, 1, 10)), (6, 10), (1,)),
  ],
  ids=['spatial', 'noise_shape'],
)
def test_spatial_dropout_drops_whole_channels(layer, shape, constant_axes):
  bridged = keras_models.bridge(
    keras_models.sequential(layer(), layers.Flatten(), shape=shape)
  )
  values = _dropped(bridged, (1, 2), tf.ones([20, *shape])).numpy()
  values = values.reshape(20, *shape)
  assert np.all(np.ptp(values, axis=constant_axes) == 0)
  assert 0.3 < np.mean(values == 0) < 0.7


# Refusals.


class _Assigns(layers.Layer):
  def __init__(self, **arguments):
    super().__init__(name='odd')
    self.arguments = {'trainable': False, **arguments}

  def build(self, input_shape):
    self.count = self.add_weight(
      shape=(), initializer='ones', name='count', **self.arguments
    )

  def call(self, inputs):
    self.count.assign_add(keras.ops.ones((), self.count.dtype))
    return inputs * keras.ops.cast(self.count, inputs.dtype)


class _AddsLoss(layers.Layer):
  def build(self, input_shape):
    self.scale = self.add_weight(shape=(), name='scale')

  def call(self, inputs):
    self.add_loss(self.scale**2)
    return inputs * self.scale


class _ReadsNoWeight(layers.Layer):
  def call(self, inputs):
    return inputs * _NO_WEIGHT


_NO_WEIGHT = tf.Variable(2.0, name='no_weight')


# Layers for inputs of three steps of four features.
_UNSUPPORTED = {
  'activity_regularizer': (
    lambda: layers.Dense(3, activity_regularizer='l2', name='odd'),
    'activity regularizer',
  ),
  'own_loss': (lambda: _AddsLoss(name='odd'), 'adds a loss'),
  'dropping_all': (lambda: layers.Dropout(1.0, name='odd'), 'drops all'),
  'constraint': (
    lambda: layers.Dense(3, kernel_constraint='non_neg', name='odd'),
    'has a constraint',
  ),
  'spectral_normalization': (
    lambda: layers.SpectralNormalization(layers.Dense(3), name='odd'),
    'is assigned to',
  ),
  'quantized': (
    lambda: layers.Dense(3, dtype='int8_from_float32', name='odd'),
    'is quantized',
  ),
  'table': (
    lambda: layers.IntegerLookup(
      vocabulary=[1, 2], output_mode='one_hot', name='odd'
    ),
    "no tables .*'a table' read in",
  ),
  'no_weight': (lambda: _ReadsNoWeight(name='odd'), "'no_weight:0' read in"),
  'assigns_to_trained': (lambda: _Assigns(trainable=True), 'is assigned to'),
  'assigns_integers': (lambda: _Assigns(dtype='int32'), 'is assigned to'),
  'assigns_in_inference': (lambda: _Assigns(), 'is assigned to'),
  'draws_by_itself': (
    lambda: layers.Lambda(
      lambda x: x + tf.random.normal(tf.shape(x)), name='odd'
    ),
    'found RandomStandardNormal in',
  ),
  'stateful': (lambda: layers.LSTM(2, stateful=True, name='odd'), 'stateful=T'),
  'steps_normalized': (
    lambda: layers.TimeDistributed(layers.BatchNormalization(), name='odd'),
    'TimeDistributed',
  ),
}


@pytest.mark.parametrize('case', _UNSUPPORTED)
def test_unsupported_layers_are_refused_by_name(case):
  make, reason = _UNSUPPORTED[case]
  inputs = keras.Input(batch_shape=(2 if case == 'stateful' else None, 3, 4))
  outputs = layers.Dense(3, name='head')(layers.Flatten()(make()(inputs)))
  with pytest.raises(ValueError, match=reason) as raised:
    keras_models.bridge(keras.Model(inputs, outputs))
  message = str(raised.value)
  assert message.startswith('Expected `model` to ')
  assert re.search(r"'([^']*/)?odd(_\d+)?[/']", message), message
  assert '\n' not in message
