"""The bridge against Keras itself, layer family by layer family."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.models import keras_models

layers = keras.layers


# Inference and gradients.


# Recurrent layers trace for seconds: `masked_lstm` and `gru` stand for all.
_families = pytest.mark.parametrize(
  'family',
  [
    pytest.param(
      family,
      marks=pytest.mark.slow
      if family in ('stacked_lstm', 'bidirectional')
      else (),
    )
    for family in keras_models.FAMILIES
  ],
)


@_families
def test_outputs_and_gradients_of_functional_models_equal_keras(family):
  model = keras_models.make(family, 'functional')
  x, y = keras_models.examples(model)
  bridged = keras_models.bridge(model)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  named = keras_models.variables(model, bridged)
  trained = [n for n in named if n not in bridged.statistics]
  with tf.GradientTape() as tape:
    value = loss(y, model(x, training=False))
  expected = tape.gradient(value, [named[n] for n in trained])
  weights = keras_models.tensors(bridged)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs, _ = bridged.forward(weights, x)
    own_value = tf.reduce_mean(bridged.loss(y, outputs))
  gradients = tape.gradient(own_value, [weights[n] for n in trained])
  np.testing.assert_allclose(
    outputs, model(x, training=False), rtol=1e-5, atol=1e-6
  )
  np.testing.assert_allclose(own_value, value, rtol=1e-5)
  for name, own, keras_own in zip(trained, gradients, expected):
    np.testing.assert_allclose(
      tf.convert_to_tensor(own),
      tf.convert_to_tensor(keras_own),
      rtol=1e-4,
      atol=1e-5,
      err_msg=name,
    )


def test_other_weights_than_the_initial_ones_are_used():
  model = keras_models.make('dense')
  x, _ = keras_models.examples(model)
  bridged = keras_models.bridge(model)
  weights = {k: v * 0 + 1 for k, v in bridged.initial_weights.items()}
  outputs, _ = bridged.forward(weights, x)
  expected = 5 * np.tanh(np.sum(x, axis=1) + 1) + 1
  np.testing.assert_allclose(
    outputs, np.repeat(expected[:, np.newaxis], 3, axis=1), rtol=1e-5
  )


# Outputs of layers.


@_families
def test_inference_and_layer_outputs_of_sequential_models_equal_keras(family):
  model = keras_models.make(family)
  x, _ = keras_models.examples(model)
  bridged = keras_models.bridge(model)
  assert bridged.head_layers == ('head',)
  outputs, statistics = bridged.forward(bridged.initial_weights, x)
  assert not statistics
  np.testing.assert_allclose(
    outputs, model(x, training=False), rtol=1e-5, atol=1e-6
  )
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  assert list(outputs) == list(bridged.layers)
  value = x
  expected = []
  for layer in _layers_of(model):
    value = layer(value, training=False)
    if layer.weights:
      expected.append(value)
  assert len(outputs) == len(expected)
  for (name, own), value in zip(outputs.items(), expected):
    np.testing.assert_allclose(own, value, rtol=1e-5, atol=1e-6, err_msg=name)


def _layers_of(model):
  """The layers of a model and of those in it."""
  for layer in model.layers:
    yield from _layers_of(layer) if isinstance(layer, keras.Model) else [layer]


def test_layer_outputs_are_those_of_the_weights_given():
  bridged = keras_models.bridge(
    keras_models.sequential(
      layers.Dense(2, 'relu', name='own'),
      layers.Dense(2, name='later'),
      layers.ReLU(),
      layers.Dropout(0.5),
    )
  )
  weights = {k: v * 0 - 1 for k, v in bridged.initial_weights.items()}
  outputs = bridged.layer_outputs(weights, -tf.ones([1, 4]))
  # 4 - 1 is positive; -3 - 3 - 1 is negative, and activated only by the layer
  # that follows.
  np.testing.assert_array_equal(outputs['own'], [[3, 3]])
  np.testing.assert_array_equal(outputs['later'], [[-7, -7]])
  np.testing.assert_array_equal(outputs['head'], [[-1, -1, -1]])


def test_layer_outputs_of_a_layer_that_another_model_uses_too():
  # Keras does not tell which output is the layer's.
  shared = layers.Dense(4, name='shared')
  model = keras_models.sequential(shared)
  shared(keras.Input((4,)))
  x, _ = keras_models.examples(model)
  bridged = keras_models.bridge(model)
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  np.testing.assert_allclose(outputs['shared'], shared(x), rtol=1e-6)


def test_a_layer_may_give_several_outputs():
  inputs = keras.Input((5, 3))
  sequence, hidden, cell = layers.LSTM(
    4, return_sequences=True, return_state=True, name='lstm'
  )(inputs)
  joined = layers.Concatenate()([layers.Flatten()(sequence), hidden, cell])
  model = keras.Model(
    inputs, layers.Dense(keras_models.NUM_CLASSES, name='head')(joined)
  )
  x, _ = keras_models.examples(model)
  bridged = keras_models.bridge(model)
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  for value, expected in zip(outputs['lstm'], model.get_layer('lstm')(x)):
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


# Purity.


def test_calls_leave_the_keras_model_as_it_was():
  model = keras_models.make('batch_norm_images')
  x, _ = keras_models.examples(model)
  before = model(x).numpy()
  state = keras_models.state_of(model)
  bridged = keras_models.bridge(model)
  other = {k: v + 1 for k, v in bridged.initial_weights.items()}
  bridged.forward(other, x, keras_models.training())
  assert keras_models.state_of(model) == state
  np.testing.assert_array_equal(model(x), before)
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(True))
  model.fit(x, tf.zeros([6]), verbose=0)
  assert not np.allclose(model(x), before)


def test_an_exception_in_a_call_leaves_the_keras_model_as_it_was():
  model = keras_models.make('batch_norm')
  bridged = keras_models.bridge(model)
  state = keras_models.state_of(model)
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    bridged.forward(
      bridged.initial_weights, tf.ones([2, 17]), keras_models.training()
    )
  assert keras_models.state_of(model) == state


@pytest.mark.parametrize(
  'family',
  [
    pytest.param(family, marks=() if family == 'gru' else pytest.mark.slow)
    for family in keras_models.FAMILIES
  ],
)
def test_training_compiles_with_xla(family):
  model = keras_models.make(family)
  x, y = keras_models.examples(model)
  bridged = keras_models.bridge(model)

  def step(weights, x, y):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, statistics = bridged.forward(weights, x, keras_models.training())
      loss = tf.reduce_mean(bridged.loss(y, outputs))
    gradient = tape.gradient(
      loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    dense = {k: tf.convert_to_tensor(v) for k, v in gradient.items()}
    return dense, statistics

  weights = keras_models.tensors(bridged)
  plain = tf.function(step)(weights, x, y)
  compiled = tf.function(step, jit_compile=True)(weights, x, y)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    compiled,
    plain,
  )


# Names, initial weights and specs.


def test_initial_weights_and_layers_follow_the_model():
  model = keras_models.sequential(
    layers.Dense(5, name='first'), layers.BatchNormalization(name='norm')
  )
  bridged = keras_models.bridge(model)
  assert dict(bridged.layers) == {
    'first': ('first/kernel', 'first/bias'),
    'norm': (
      'norm/gamma',
      'norm/beta',
      'norm/moving_mean',
      'norm/moving_variance',
    ),
    'head': ('head/kernel', 'head/bias'),
  }
  assert bridged.statistics == {'norm/moving_mean', 'norm/moving_variance'}
  for value, (name, variable) in zip(
    bridged.initial_weights.values(),
    keras_models.variables(model, bridged).items(),
  ):
    np.testing.assert_array_equal(value, variable, err_msg=name)
  assert bridged.element_spec['x'] == tf.TensorSpec([4], tf.float32)
  assert bridged.element_spec['y'] == tf.TensorSpec([], tf.int32)
  assert bridged.classifier.num_classes == keras_models.NUM_CLASSES


def test_weight_names_do_not_depend_on_models_built_before():
  def build():
    return keras_models.bridge(
      keras_models.sequential(
        layers.Bidirectional(layers.LSTM(2), name='both'), shape=(3, 2)
      )
    )

  first, second = build(), build()
  assert tuple(first.initial_weights) == tuple(second.initial_weights)
  assert first.layers['both'][0] == 'both/forward_lstm/lstm_cell/kernel'


@pytest.mark.parametrize(
  'stack, shape, has_convolutions',
  [
    (lambda: [layers.Dense(3)], (4,), False),
    (lambda: [layers.Conv1D(3, 2), layers.Flatten()], (4, 2), True),
    (lambda: [layers.DepthwiseConv2D(2), layers.Flatten()], (4, 4, 2), True),
    (lambda: [layers.Conv2DTranspose(2, 2), layers.Flatten()], (4, 4, 2), True),
    (
      lambda: [
        keras.Sequential([keras.Input((4, 4, 2)), layers.Conv2D(2, 2)]),
        layers.Flatten(),
      ],
      (4, 4, 2),
      True,
    ),
  ],
)
def test_auto_compiles_unless_there_are_convolutions(
  stack, shape, has_convolutions
):
  model = keras_models.sequential(*stack(), shape=shape)
  assert keras_models.bridge(model).uses_xla != has_convolutions
  asked = keras_models.bridge(model, jit_compile=has_convolutions)
  assert asked.uses_xla == has_convolutions


def test_other_values_of_jit_compile_are_refused():
  with pytest.raises(ValueError, match='`jit_compile`.*True, False, auto.*yes'):
    keras_models.bridge(keras_models.make('dense'), jit_compile='yes')
