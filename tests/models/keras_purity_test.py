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


@pytest.mark.parametrize('family', ['batch_norm', 'batch_norm_images'])
def test_batch_normalization_trains_as_in_keras(family):
  model = keras_models.make(family)
  x, y = keras_models.examples(model)
  bridged = keras_models.bridge(model)
  named = keras_models.variables(model, bridged)
  weights = keras_models.tensors(bridged)
  trained = [n for n in named if n not in bridged.statistics]
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs, statistics = bridged.forward(weights, x, keras_models.training())
    loss = tf.reduce_mean(bridged.loss(y, outputs))
  gradients = tape.gradient(loss, [weights[n] for n in trained])
  with tf.GradientTape() as tape:
    expected = model(x, training=True)  # Assigns the moving statistics.
    loss = tf.reduce_mean(bridged.loss(y, expected))
  keras_gradients = tape.gradient(loss, [named[n] for n in trained])
  np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
  assert set(statistics) == bridged.statistics
  assert len(statistics) == 2
  for name, value in statistics.items():
    assert not np.allclose(value, weights[name])
    np.testing.assert_allclose(value, named[name], rtol=1e-5, err_msg=name)
  for name, own, other in zip(trained, gradients, keras_gradients):
    np.testing.assert_allclose(own, other, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize('family', ['batch_norm', 'batch_norm_images'])
def test_padding_does_not_count_in_batch_normalization(family):
  model = keras_models.make(family)
  x, _ = keras_models.examples(model)
  bridged = keras_models.bridge(model)
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
  x, _ = keras_models.examples(model)
  outputs, statistics = bridged.forward(
    bridged.initial_weights, x, keras_models.training()
  )
  assert not statistics
  np.testing.assert_allclose(outputs, model(x, training=True), rtol=1e-5)


# Dropout.


def _dropout_model(rate=0.25, *more):
  return keras_models.sequential(
    layers.Dropout(rate), *more, layers.Activation('linear'), shape=(50,)
  )


def _dropped(bridged, seed, x=None, function=None):
  x = tf.ones([40, 50]) if x is None else x
  function = function or bridged.body
  return function({}, x, keras_models.training(seed))[0]


def test_dropout_drops_its_rate_by_the_seed_and_scales_the_rest():
  bridged = keras_models.bridge(_dropout_model(0.25))
  values = _dropped(bridged, (1, 2)).numpy()
  np.testing.assert_allclose(np.unique(values), [0, 4 / 3], rtol=1e-6)
  # 2000 coins: a standard deviation is 0.0097.
  assert abs(np.mean(values == 0) - 0.25) < 0.03
  np.testing.assert_array_equal(values, _dropped(bridged, (1, 2)))
  for seed in ((1, 3), (2, 2)):
    assert np.mean(values == _dropped(bridged, seed)) < 0.8


def test_dropout_layers_draw_different_masks():
  inputs = keras.Input((50,))
  both = layers.Concatenate()(
    [layers.Dropout(0.5)(inputs), layers.Dropout(0.5)(inputs)]
  )
  bridged = keras_models.bridge(
    keras.Model(inputs, layers.Dense(3, name='head')(both)), ['head']
  )
  values = _dropped(bridged, (1, 1)).numpy()
  agree = np.mean((values[:, :50] == 0) == (values[:, 50:] == 0))
  assert 0.45 < agree < 0.55


def test_dropout_is_the_same_with_xla():
  bridged = keras_models.bridge(_dropout_model())
  compiled = tf.function(
    lambda x: _dropped(bridged, (5, 6), x), jit_compile=True
  )
  x = tf.ones([40, 50])
  np.testing.assert_allclose(
    compiled(x), _dropped(bridged, (5, 6), x), rtol=1e-6
  )


def test_dropout_needs_a_seed_in_training_only():
  bridged = keras_models.bridge(_dropout_model())
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
  bridged = keras_models.bridge(_dropout_model())
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
    (lambda: layers.SpatialDropout1D(0.5), (6, 10), (1,)),
    (lambda: layers.SpatialDropout2D(0.5), (3, 4, 10), (1, 2)),
    (lambda: layers.Dropout(0.5, noise_shape=(None, 1, 10)), (6, 10), (1,)),
  ],
  ids=['spatial_1d', 'spatial_2d', 'noise_shape'],
)
def test_spatial_dropout_drops_whole_channels(layer, shape, constant_axes):
  bridged = keras_models.bridge(
    keras_models.sequential(layer(), layers.Flatten(), shape=shape)
  )
  values = _dropped(bridged, (1, 2), tf.ones([20, *shape])).numpy()
  values = values.reshape(20, *shape)
  assert np.all(np.ptp(values, axis=constant_axes) == 0)
  assert 0.3 < np.mean(values == 0) < 0.7


def test_dropout_inside_attention_is_seeded():
  inputs = keras.Input((5, 4))
  hidden = layers.MultiHeadAttention(2, 3, dropout=0.5)(inputs, inputs)
  model = keras.Model(
    inputs, layers.Dense(3, name='head')(layers.Flatten()(hidden))
  )
  bridged = keras_models.bridge(model)
  x, _ = keras_models.examples(model)
  weights = bridged.initial_weights
  np.testing.assert_allclose(
    bridged.forward(weights, x)[0], model(x), rtol=1e-4, atol=1e-5
  )
  first, again, other = (
    bridged.forward(weights, x, keras_models.training(seed))[0]
    for seed in ((1, 2), (1, 2), (3, 4))
  )
  np.testing.assert_array_equal(first, again)
  assert not np.allclose(first, other)


# Refusals.


class _Assigns(layers.Layer):
  def __init__(self, when='always', **arguments):
    super().__init__(name='odd')
    self.when = when
    self.arguments = {'trainable': False, **arguments}

  def build(self, input_shape):
    self.count = self.add_weight(
      shape=(), initializer='ones', name='count', **self.arguments
    )

  def call(self, inputs, training=None):
    if self.when == 'always' or training:
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


# Layers for inputs of four features.
UNSUPPORTED_LAYERS = {
  'activity_regularizer': (
    lambda: layers.Dense(3, activity_regularizer='l2', name='odd'),
    'activity regularizer',
  ),
  'own_loss': (lambda: _AddsLoss(name='odd'), 'adds a loss'),
  'dropping_everything': (
    lambda: layers.Dropout(1.0, name='odd'),
    'drops all',
  ),
  'constraint': (
    lambda: layers.Dense(3, kernel_constraint='non_neg', name='odd'),
    'has a constraint',
  ),
  'spectral_normalization': (
    lambda: layers.SpectralNormalization(layers.Dense(3), name='odd'),
    'is assigned to',
  ),
  'float16': (lambda: layers.Dense(3, dtype='float16', name='odd'), 'float16'),
  'no_weight': (lambda: _ReadsNoWeight(name='odd'), "'no_weight:0' read in"),
  'assigns_to_trained': (
    lambda: _Assigns(trainable=True),
    'which is assigned to',
  ),
  'assigns_integers': (lambda: _Assigns(dtype='int32'), 'which is assigned to'),
  'assigns_in_inference': (lambda: _Assigns(), 'which is assigned to'),
  'draws_by_itself': (
    lambda: layers.Lambda(
      lambda x: x + tf.random.normal(tf.shape(x)), name='odd'
    ),
    'found RandomStandardNormal in',
  ),
}
UNSUPPORTED = {
  **{
    case: (lambda make=make: keras_models.sequential(make()), reason)
    for case, (make, reason) in UNSUPPORTED_LAYERS.items()
  },
  'stateful': (
    lambda: keras.Sequential(
      [
        keras.Input(batch_shape=(2, 3, 4)),
        layers.LSTM(2, stateful=True, name='odd'),
        layers.Dense(3, name='head'),
      ]
    ),
    'stateful=True',
  ),
  'steps_normalized': (
    lambda: keras_models.sequential(
      layers.TimeDistributed(layers.BatchNormalization(), name='odd'),
      shape=(3, 4),
    ),
    'TimeDistributed',
  ),
}


@pytest.mark.parametrize('case', UNSUPPORTED)
def test_unsupported_layers_are_refused_by_name(case):
  make, reason = UNSUPPORTED[case]
  with pytest.raises(ValueError, match=reason) as raised:
    keras_models.bridge(make())
  message = str(raised.value)
  assert message.startswith('Expected `model` to ')
  assert re.search(r"'([^']*/)?odd(_\d+)?[/']", message), message
  assert '\n' not in message
