"""The bridge against Keras itself, layer family by layer family."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.models import keras_bridge, split_model

keras = tf.keras
layers = tf.keras.layers

NUM_CLASSES = 3

# Name -> (input shape, input dtype, layers before the head).
FAMILIES = {
  'dense': ((4,), 'float32', lambda: [layers.Dense(5, 'tanh')]),
  'conv1d': (
    (6, 3),
    'float32',
    lambda: [
      layers.Conv1D(4, 3, activation='relu'),
      layers.MaxPooling1D(2),
      layers.Flatten(),
    ],
  ),
  'conv2d_max': (
    (8, 8, 2),
    'float32',
    lambda: [
      layers.Conv2D(4, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Flatten(),
    ],
  ),
  'conv2d_average': (
    (8, 8, 2),
    'float32',
    lambda: [
      layers.Conv2D(4, 3, padding='same', use_bias=False),
      layers.AveragePooling2D(2),
      layers.GlobalAveragePooling2D(),
    ],
  ),
  'separable_conv': (
    (6, 6, 2),
    'float32',
    lambda: [
      layers.DepthwiseConv2D(3),
      layers.SeparableConv2D(3, 3),
      layers.GlobalMaxPooling2D(),
    ],
  ),
  'embedding': (
    (5,),
    'int32',
    lambda: [layers.Embedding(7, 3), layers.Flatten()],
  ),
  'masked_lstm': (
    (5,),
    'int32',
    lambda: [layers.Embedding(7, 3, mask_zero=True), layers.LSTM(4)],
  ),
  'stacked_lstm': (
    (5, 3),
    'float32',
    lambda: [layers.LSTM(4, return_sequences=True), layers.LSTM(3)],
  ),
  'gru': ((5, 3), 'float32', lambda: [layers.GRU(4)]),
  'bidirectional': (
    (5, 3),
    'float32',
    lambda: [layers.Bidirectional(layers.GRU(3))],
  ),
  'layer_norm': (
    (4,),
    'float32',
    lambda: [layers.Dense(6), layers.LayerNormalization()],
  ),
  'group_norm': (
    (4, 4, 3),
    'float32',
    lambda: [
      layers.Conv2D(4, 3),
      layers.GroupNormalization(2),
      layers.Flatten(),
    ],
  ),
  'batch_norm': (
    (4,),
    'float32',
    lambda: [layers.Dense(6), layers.BatchNormalization()],
  ),
  'batch_norm_images': (
    (5, 5, 3),
    'float32',
    lambda: [
      layers.Conv2D(4, 3),
      layers.BatchNormalization(),
      layers.Flatten(),
    ],
  ),
  'dropout': (
    (4,),
    'float32',
    lambda: [layers.Dense(6, 'relu'), layers.Dropout(0.5)],
  ),
  'nested_model': (
    (4,),
    'float32',
    lambda: [
      keras.Sequential(
        [
          keras.Input((4,)),
          layers.Dense(5, 'relu'),
          layers.BatchNormalization(),
          layers.Dense(4),
        ],
        name='backbone',
      )
    ],
  ),
}


def _make(family, form='sequential'):
  keras.utils.set_random_seed(5)
  shape, dtype, make_layers = FAMILIES[family]
  stack = [*make_layers(), layers.Dense(NUM_CLASSES, name='head')]
  if form == 'sequential':
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *stack])
  else:
    inputs = keras.Input(shape, dtype=dtype)
    outputs = inputs
    for layer in stack:
      outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
  _jitter(model)
  return model


def _jitter(model):
  """Weights away from 0 and 1, so that no weight can be mixed up unseen."""
  rng = np.random.default_rng(3)
  for variable in model.weights:
    value = variable.numpy()
    variable.assign(value + rng.uniform(0.1, 0.5, value.shape))


def _examples(model, num_examples=6, seed=1):
  rng = np.random.default_rng(seed)
  shape = (num_examples, *model.input_shape[1:])
  if model.inputs[0].dtype.is_integer:
    x = rng.integers(0, 7, shape).astype(np.int32)
  else:
    x = rng.normal(size=shape).astype(np.float32)
  y = rng.integers(0, NUM_CLASSES, num_examples).astype(np.int32)
  return tf.constant(x), tf.constant(y)


def _bridge(model, head_layers=('head',), **arguments):
  arguments.setdefault('loss', 'sparse_categorical_crossentropy')
  return keras_bridge.from_keras(model, head_layers=head_layers, **arguments)


def _sequential(*stack, shape=(4,), units=NUM_CLASSES, activation=None):
  return keras.Sequential(
    [keras.Input(shape), *stack, layers.Dense(units, activation, name='head')]
  )


def _tensors(model):
  return {k: tf.constant(v) for k, v in model.initial_weights.items()}


def _variables(model, bridged):
  """The bridge's names of the Keras model's variables, in its own order."""
  ordered = [v for layer in model.layers for v in layer.weights]
  return dict(zip(bridged.initial_weights, ordered))


def _training(seed=(1, 2), example_weights=None):
  return split_model.Mode(True, tf.constant(seed, tf.int32), example_weights)


# Inference and gradients.


@pytest.mark.parametrize('family', FAMILIES)
def test_inference_of_sequential_models_equals_keras(family):
  model = _make(family)
  x, _ = _examples(model)
  bridged = _bridge(model)
  outputs, statistics = bridged.forward(bridged.initial_weights, x)
  np.testing.assert_allclose(
    outputs, model(x, training=False), rtol=1e-5, atol=1e-6
  )
  assert not statistics
  assert bridged.head_layers == ('head',)


@pytest.mark.parametrize('family', FAMILIES)
def test_outputs_and_gradients_of_functional_models_equal_keras(family):
  model = _make(family, 'functional')
  x, y = _examples(model)
  bridged = _bridge(model)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  named = _variables(model, bridged)
  trained = [n for n in named if n not in bridged.statistics]
  with tf.GradientTape() as tape:
    value = loss(y, model(x, training=False))
  expected = tape.gradient(value, [named[n] for n in trained])
  weights = _tensors(bridged)
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
  model = _make('dense')
  x, _ = _examples(model)
  bridged = _bridge(model)
  weights = {k: v * 0 + 1 for k, v in bridged.initial_weights.items()}
  outputs, _ = bridged.forward(weights, x)
  expected = 5 * np.tanh(np.sum(x, axis=1) + 1) + 1
  np.testing.assert_allclose(
    outputs, np.repeat(expected[:, np.newaxis], 3, axis=1), rtol=1e-5
  )


def test_bound_models_read_only_their_own_weights():
  bridged = _bridge(_make('dense'))
  x = tf.ones([2, 4])
  weights = bridged.initial_weights
  body = split_model.select(weights, bridged.weight_names(bridged.body_layers))
  head = split_model.select(weights, bridged.weight_names(['head']))
  features, _ = bridged.body(body, x)
  np.testing.assert_array_equal(
    bridged.head(head, features)[0], bridged.forward(weights, x)[0]
  )


# Outputs of layers.


@pytest.mark.parametrize('family', FAMILIES)
def test_layer_outputs_equal_those_of_keras(family):
  model = _make(family)
  x, _ = _examples(model)
  bridged = _bridge(model)
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  assert list(outputs) == list(bridged.layers)
  value = x
  for layer in model.layers:
    value = layer(value, training=False)
    if layer.weights:
      np.testing.assert_allclose(
        outputs[layer.name], value, rtol=1e-5, atol=1e-6, err_msg=layer.name
      )


def test_layer_outputs_are_those_of_the_weights_given():
  bridged = _bridge(
    _sequential(
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


def test_layer_outputs_of_a_graph_are_in_the_order_of_its_layers():
  model = _residual(lambda a, b: layers.Add()([a, b]))
  x, _ = _examples(model)
  bridged = _bridge(model)
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  assert list(outputs) == list(bridged.layers)
  np.testing.assert_allclose(outputs['head'], model(x), rtol=1e-5)


def test_layer_outputs_of_a_layer_that_another_model_uses_too():
  # Keras does not tell which output is the layer's.
  shared = layers.Dense(4, name='shared')
  model = _sequential(shared)
  shared(keras.Input((4,)))
  x, _ = _examples(model)
  bridged = _bridge(model)
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  np.testing.assert_allclose(outputs['shared'], shared(x), rtol=1e-6)


def test_a_layer_may_give_several_outputs():
  inputs = keras.Input((5, 3))
  sequence, hidden, cell = layers.LSTM(
    4, return_sequences=True, return_state=True, name='lstm'
  )(inputs)
  joined = layers.Concatenate()([layers.Flatten()(sequence), hidden, cell])
  model = keras.Model(inputs, layers.Dense(NUM_CLASSES, name='head')(joined))
  x, _ = _examples(model)
  bridged = _bridge(model)
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  for value, expected in zip(outputs['lstm'], model.get_layer('lstm')(x)):
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


def test_layer_outputs_leave_the_keras_model_as_it_was():
  model = _make('batch_norm_images')
  x, _ = _examples(model)
  bridged = _bridge(model)
  state = _state_of(model)
  other = {k: v + 1 for k, v in bridged.initial_weights.items()}
  bridged.layer_outputs(other, x)
  assert _state_of(model) == state


# Graphs that are no chain.


def _residual(merge):
  inputs = keras.Input((4,))
  first = layers.Dense(4, 'relu', name='first')(inputs)
  second = layers.Dense(4, 'relu', name='second')(first)
  merged = merge(first, second)
  model = keras.Model(inputs, layers.Dense(NUM_CLASSES, name='head')(merged))
  _jitter(model)
  return model


@pytest.mark.parametrize(
  'merge',
  [
    lambda a, b: layers.Add()([a, b]),
    lambda a, b: layers.Concatenate()([a, b]),
    lambda a, b: a + 2.0 * b,
  ],
  ids=['add', 'concatenate', 'operators'],
)
@pytest.mark.parametrize(
  'head', [('head',), ('second', 'head'), ('first', 'second', 'head')]
)
def test_residual_graphs_wherever_they_are_cut(merge, head):
  model = _residual(merge)
  x, _ = _examples(model)
  bridged = _bridge(model, head)
  assert bridged.head_layers == head
  outputs, _ = bridged.forward(bridged.initial_weights, x)
  np.testing.assert_allclose(outputs, model(x), rtol=1e-5, atol=1e-6)


def test_connection_across_the_cut_gives_several_features():
  inputs = keras.Input((4,))
  first = layers.Dense(5, 'relu', name='first')(inputs)
  second = layers.Dense(6, 'relu', name='second')(first)
  third = layers.Dense(5, name='third')(second)
  outputs = layers.Dense(3, name='head')(layers.Add()([first, third]))
  model = keras.Model(inputs, outputs)
  bridged = _bridge(model, ('third', 'head'))
  x, _ = _examples(model)
  features, _ = bridged.body(bridged.initial_weights, x)
  assert [f.shape[-1] for f in features] == [6, 5]
  outputs, _ = bridged.head(bridged.initial_weights, features)
  np.testing.assert_allclose(outputs, model(x), rtol=1e-5, atol=1e-6)


def test_head_may_start_at_the_input():
  model = _make('dense')
  bridged = _bridge(model, [layer.name for layer in model.layers])
  x, _ = _examples(model)
  assert bridged.body_layers == ()
  features, _ = bridged.body({}, x)
  np.testing.assert_array_equal(features, x)
  outputs, _ = bridged.head(bridged.initial_weights, features)
  np.testing.assert_allclose(outputs, model(x), rtol=1e-5)


def test_head_may_name_the_input_layer():
  model = _make('dense', 'functional')
  bridged = _bridge(model, [layer.name for layer in model.layers])
  x, _ = _examples(model)
  np.testing.assert_array_equal(bridged.body({}, x)[0], x)
  np.testing.assert_allclose(
    bridged.head(bridged.initial_weights, x)[0], model(x), rtol=1e-5
  )


def test_layers_without_weights_after_the_head_belong_to_it():
  model = keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(3, name='head'),
      layers.Dropout(0.5),
      layers.Softmax(),
    ]
  )
  bridged = _bridge(model)
  x, _ = _examples(model)
  np.testing.assert_array_equal(bridged.body({}, x)[0], x)
  np.testing.assert_allclose(
    bridged.head(bridged.initial_weights, x)[0], model(x), rtol=1e-5
  )


def test_an_activation_may_be_used_on_both_sides_of_the_cut():
  relu = layers.ReLU()
  inputs = keras.Input((4,))
  hidden = relu(layers.Dense(5, name='first')(inputs))
  hidden = relu(layers.Dense(5, name='second')(hidden))
  hidden = relu(layers.Dense(5, name='third')(hidden))
  model = keras.Model(inputs, layers.Dense(3, name='head')(hidden))
  _jitter(model)
  bridged = _bridge(model, ['third', 'head'])
  x, _ = _examples(model)
  features, _ = bridged.body(bridged.initial_weights, x)
  assert features.shape == (6, 5)
  np.testing.assert_allclose(
    bridged.head(bridged.initial_weights, features)[0], model(x), rtol=1e-5
  )


# Batch normalization.


@pytest.mark.parametrize('family', ['batch_norm', 'batch_norm_images'])
def test_batch_normalization_trains_as_in_keras(family):
  model = _make(family)
  x, y = _examples(model)
  bridged = _bridge(model)
  named = _variables(model, bridged)
  weights = _tensors(bridged)
  trained = [n for n in named if n not in bridged.statistics]
  with tf.GradientTape() as tape:
    tape.watch(weights)
    outputs, statistics = bridged.forward(weights, x, _training())
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
  model = _make(family)
  x, _ = _examples(model)
  bridged = _bridge(model)
  expected, statistics = bridged.forward(
    bridged.initial_weights, x, _training()
  )
  padded = tf.concat([x, 100 + x[:3]], axis=0)
  mask = tf.constant([1.0] * 6 + [0.0] * 3)
  outputs, padded_statistics = bridged.forward(
    bridged.initial_weights, padded, _training(example_weights=mask)
  )
  np.testing.assert_allclose(outputs[:6], expected, rtol=1e-4, atol=1e-5)
  for name, value in statistics.items():
    np.testing.assert_allclose(padded_statistics[name], value, rtol=1e-5)


@pytest.mark.parametrize('family', ['batch_norm', 'batch_norm_images'])
def test_a_batch_of_padding_keeps_the_statistics(family):
  bridged = _bridge(_make(family))
  x = tf.ones([4, *bridged.element_spec['x'].shape])
  _, statistics = bridged.forward(
    bridged.initial_weights, x, _training(example_weights=tf.zeros([4]))
  )
  for name, value in statistics.items():
    np.testing.assert_array_equal(value, bridged.initial_weights[name])


def test_frozen_layers_are_not_trained():
  model = _sequential(
    layers.Dense(4, name='frozen', trainable=False),
    layers.BatchNormalization(name='norm', trainable=False),
  )
  bridged = _bridge(model)
  assert bridged.statistics == {
    *bridged.layers['frozen'],
    *bridged.layers['norm'],
  }
  x, _ = _examples(model)
  outputs, statistics = bridged.forward(bridged.initial_weights, x, _training())
  assert not statistics
  np.testing.assert_allclose(outputs, model(x, training=True), rtol=1e-5)


# Dropout.


def _dropout_model(rate=0.25, *more):
  return _sequential(
    layers.Dropout(rate), *more, layers.Activation('linear'), shape=(50,)
  )


def _dropped(bridged, seed, x=None, function=None):
  x = tf.ones([40, 50]) if x is None else x
  function = function or bridged.body
  return function({}, x, _training(seed))[0]


def test_dropout_is_decided_by_the_seed():
  bridged = _bridge(_dropout_model())
  first = _dropped(bridged, (1, 2))
  np.testing.assert_array_equal(first, _dropped(bridged, (1, 2)))
  assert np.mean(first == _dropped(bridged, (1, 3))) < 0.8
  assert np.mean(first == _dropped(bridged, (2, 2))) < 0.8


def test_dropout_drops_its_rate_and_scales_the_rest():
  bridged = _bridge(_dropout_model(0.25))
  values = _dropped(bridged, (3, 4)).numpy()
  np.testing.assert_allclose(np.unique(values), [0, 4 / 3], rtol=1e-6)
  # 2000 coins: a standard deviation is 0.0097.
  assert abs(np.mean(values == 0) - 0.25) < 0.03


def test_dropout_layers_draw_different_masks():
  inputs = keras.Input((50,))
  both = layers.Concatenate()(
    [layers.Dropout(0.5)(inputs), layers.Dropout(0.5)(inputs)]
  )
  bridged = _bridge(
    keras.Model(inputs, layers.Dense(3, name='head')(both)), ['head']
  )
  values = _dropped(bridged, (1, 1)).numpy()
  agree = np.mean((values[:, :50] == 0) == (values[:, 50:] == 0))
  assert 0.45 < agree < 0.55


def test_dropout_is_the_same_with_xla():
  bridged = _bridge(_dropout_model())
  compiled = tf.function(
    lambda x: _dropped(bridged, (5, 6), x), jit_compile=True
  )
  x = tf.ones([40, 50])
  np.testing.assert_allclose(
    compiled(x), _dropped(bridged, (5, 6), x), rtol=1e-6
  )


def test_dropout_is_off_in_inference_and_needs_no_seed():
  bridged = _bridge(_dropout_model())
  x = tf.ones([4, 50])
  np.testing.assert_array_equal(bridged.body({}, x)[0], x)


def test_dropout_in_training_needs_a_seed():
  bridged = _bridge(_dropout_model())
  with pytest.raises(ValueError, match='mode.seed'):
    bridged.body({}, tf.ones([4, 50]), split_model.Mode(True))


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
  bridged = _bridge(_sequential(layer(), layers.Flatten(), shape=shape))
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
  bridged = _bridge(model)
  x, _ = _examples(model)
  weights = bridged.initial_weights
  np.testing.assert_allclose(
    bridged.forward(weights, x)[0], model(x), rtol=1e-4, atol=1e-5
  )
  first, again, other = (
    bridged.forward(weights, x, _training(seed))[0]
    for seed in ((1, 2), (1, 2), (3, 4))
  )
  np.testing.assert_array_equal(first, again)
  assert not np.allclose(first, other)


# Purity.


def _state_of(model):
  return [
    (id(module), key, id(value))
    for module in model.submodules
    for key, value in vars(module).items()
    if key == 'call' or isinstance(value, (tf.Tensor, tf.Variable))
  ]


def test_calls_leave_the_keras_model_as_it_was():
  model = _make('batch_norm_images')
  x, _ = _examples(model)
  before = model(x).numpy()
  state = _state_of(model)
  bridged = _bridge(model)
  other = {k: v + 1 for k, v in bridged.initial_weights.items()}
  bridged.forward(other, x, _training())
  assert _state_of(model) == state
  np.testing.assert_array_equal(model(x), before)
  model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(True))
  model.fit(x, tf.zeros([6]), verbose=0)
  assert not np.allclose(model(x), before)


def test_an_exception_in_a_call_leaves_the_keras_model_as_it_was():
  model = _make('batch_norm')
  bridged = _bridge(model)
  state = _state_of(model)
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    bridged.forward(bridged.initial_weights, tf.ones([2, 17]), _training())
  assert _state_of(model) == state


def test_a_model_may_be_bridged_twice():
  model = _residual(lambda a, b: layers.Add()([a, b]))
  first = _bridge(model)
  second = _bridge(model, ['second', 'head'])
  x, _ = _examples(model)
  for bridged in (first, second):
    np.testing.assert_allclose(
      bridged.forward(bridged.initial_weights, x)[0], model(x), rtol=1e-5
    )


@pytest.mark.parametrize('family', FAMILIES)
def test_training_compiles_with_xla(family):
  model = _make(family)
  x, y = _examples(model)
  bridged = _bridge(model)

  def step(weights, x, y):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      outputs, statistics = bridged.forward(weights, x, _training())
      loss = tf.reduce_mean(bridged.loss(y, outputs))
    gradient = tape.gradient(
      loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    dense = {k: tf.convert_to_tensor(v) for k, v in gradient.items()}
    return dense, statistics

  weights = _tensors(bridged)
  plain = tf.function(step)(weights, x, y)
  compiled = tf.function(step, jit_compile=True)(weights, x, y)
  tf.nest.map_structure(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    compiled,
    plain,
  )


def test_runs_inside_a_tff_computation(runtime):
  del runtime
  model = _make('batch_norm_images')
  x, _ = _examples(model)
  bridged = _bridge(model)

  computation = tff.tensorflow.computation(
    lambda weights, x: bridged.forward(weights, x)[0],
    [
      tff.types.tensorflow_to_type(
        tf.nest.map_structure(
          lambda v: tf.TensorSpec(v.shape, v.dtype), bridged.initial_weights
        )
      ),
      tff.TensorType(np.float32, x.shape),
    ],
  )
  np.testing.assert_allclose(
    computation(bridged.initial_weights, x.numpy()),
    model(x),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.parametrize('family', ['dense', 'conv2d_max', 'dropout'])
def test_vectorizes_over_models(family):
  model = _make(family)
  x, _ = _examples(model)
  bridged = _bridge(model)
  # Three clients, each with weights and inputs of its own.
  factors = tf.constant([1.0, 0.5, 2.0])
  stacked = {
    k: v * tf.reshape(factors, [3] + [1] * v.ndim)
    for k, v in bridged.initial_weights.items()
  }
  inputs = tf.stack([x, x + 1, -x])
  outputs = tf.vectorized_map(
    lambda pair: bridged.forward(pair[0], pair[1])[0], (stacked, inputs)
  )
  for i in range(3):
    weights = {k: v[i] for k, v in stacked.items()}
    np.testing.assert_allclose(
      outputs[i],
      bridged.forward(weights, inputs[i])[0],
      rtol=1e-4,
      atol=1e-5,
    )


# Names, initial weights and specs.


def test_initial_weights_and_layers_follow_the_model():
  model = _sequential(
    layers.Dense(5, name='first'), layers.BatchNormalization(name='norm')
  )
  bridged = _bridge(model)
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
    bridged.initial_weights.values(), _variables(model, bridged).items()
  ):
    np.testing.assert_array_equal(value, variable, err_msg=name)
  assert bridged.element_spec['x'] == tf.TensorSpec([4], tf.float32)
  assert bridged.element_spec['y'] == tf.TensorSpec([], tf.int32)
  assert bridged.num_classes == NUM_CLASSES


def test_weight_names_do_not_depend_on_models_built_before():
  def build():
    return _bridge(
      _sequential(
        layers.Bidirectional(layers.LSTM(2), name='both'), shape=(3, 2)
      )
    )

  first, second = build(), build()
  assert tuple(first.initial_weights) == tuple(second.initial_weights)
  assert first.layers['both'][0] == 'both/forward_lstm/lstm_cell/kernel'


@pytest.mark.parametrize(
  'stack, shape, expected',
  [
    (lambda: [layers.Dense(3)], (4,), False),
    (lambda: [layers.LSTM(3)], (4, 2), False),
    (lambda: [layers.Conv1D(3, 2), layers.Flatten()], (4, 2), True),
    (lambda: [layers.DepthwiseConv2D(2), layers.Flatten()], (4, 4, 2), True),
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
def test_convolutions_are_found(stack, shape, expected):
  bridged = _bridge(_sequential(*stack(), shape=shape))
  assert bridged.has_convolutions == expected
  assert bridged.uses_xla != expected


# Losses, metrics and probabilities.


@pytest.mark.parametrize(
  'loss',
  [
    'sparse_categorical_crossentropy',
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='sum'
    ),
  ],
  ids=['name', 'object', 'summing_object'],
)
def test_sparse_cross_entropy_of_logits(loss):
  bridged = _bridge(_make('dense'), loss=loss)
  logits = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], np.float32)
  y = tf.constant([1, 0])
  probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  np.testing.assert_allclose(
    bridged.loss(y, logits),
    -np.log(probabilities[[0, 1], [1, 0]]),
    rtol=1e-5,
  )
  np.testing.assert_array_equal(
    bridged.metrics['accuracy'](y, tf.constant(logits)), [1, 0]
  )
  np.testing.assert_allclose(
    bridged.probabilities(logits), probabilities, rtol=1e-5
  )


@pytest.mark.parametrize(
  'end',
  [
    lambda: [layers.Dense(3, 'softmax', name='head')],
    lambda: [layers.Dense(3, tf.nn.softmax, name='head')],
    lambda: [layers.Dense(3, name='head'), layers.Softmax()],
    lambda: [layers.Dense(3, name='head'), layers.Activation('softmax')],
    lambda: [
      keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, 'softmax')], name='head'
      )
    ],
  ],
  ids=['activation', 'tf_function', 'softmax', 'activation_layer', 'nested'],
)
def test_outputs_of_a_softmax_are_probabilities(end):
  model = keras.Sequential([keras.Input((4,)), *end()])
  bridged = _bridge(model)
  outputs = tf.constant([[0.7, 0.2, 0.1]])
  np.testing.assert_allclose(
    bridged.loss(tf.constant([1]), outputs), [-np.log(0.2)], rtol=1e-4
  )
  np.testing.assert_allclose(bridged.probabilities(outputs), outputs)


def test_outputs_of_a_softmax_operation_are_probabilities():
  inputs = keras.Input((4,))
  outputs = tf.nn.softmax(layers.Dense(3, name='head')(inputs))
  bridged = _bridge(keras.Model(inputs, outputs))
  values = tf.constant([[0.7, 0.2, 0.1]])
  np.testing.assert_allclose(bridged.probabilities(values), values)


def test_categorical_cross_entropy_takes_one_hot_labels():
  bridged = _bridge(_make('dense'), loss='categorical_crossentropy')
  assert bridged.element_spec['y'] == tf.TensorSpec([3], tf.float32)
  assert bridged.num_classes == 3
  y = tf.constant([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
  logits = tf.constant([[0.0, 0.0, 0.0], [2.0, 1.0, 1.0]])
  np.testing.assert_allclose(
    bridged.loss(y, logits),
    [np.log(3), np.log(np.exp(2) + 2 * np.exp(1)) - 2],
    rtol=1e-5,
  )
  np.testing.assert_array_equal(bridged.metrics['accuracy'](y, logits), [0, 1])


@pytest.mark.parametrize('activation', [None, 'sigmoid'])
def test_binary_cross_entropy_takes_integer_labels(activation):
  bridged = _bridge(
    _sequential(units=1, activation=activation), loss='binary_crossentropy'
  )
  assert bridged.element_spec['y'] == tf.TensorSpec([], tf.int32)
  assert bridged.num_classes == 2
  positive = np.array([0.3, 0.8, 0.6], np.float32)
  outputs = positive if activation else np.log(positive / (1 - positive))
  outputs = tf.constant(outputs[:, np.newaxis])
  y = tf.constant([0, 1, 0])
  np.testing.assert_allclose(
    bridged.loss(y, outputs), -np.log([0.7, 0.8, 0.4]), rtol=1e-4
  )
  np.testing.assert_array_equal(
    bridged.metrics['accuracy'](y, outputs), [1, 1, 0]
  )
  np.testing.assert_allclose(
    bridged.probabilities(outputs),
    np.stack([1 - positive, positive], axis=1),
    rtol=1e-5,
  )


def test_several_binary_outputs_are_no_classes():
  bridged = _bridge(_sequential(), loss='binary_crossentropy')
  assert bridged.num_classes is None
  assert bridged.probabilities is None
  y = tf.constant([[1, 0, 1]])
  outputs = tf.constant([[2.0, 2.0, -2.0]])
  np.testing.assert_allclose(
    bridged.metrics['accuracy'](y, outputs), [1 / 3], rtol=1e-6
  )


def test_sequence_outputs_are_averaged_over_time():
  model = keras.Sequential(
    [
      keras.Input((4,), dtype='int32'),
      layers.Embedding(5, 3),
      layers.GRU(3, return_sequences=True),
      layers.Dense(5, name='head'),
    ]
  )
  bridged = _bridge(model)
  assert bridged.element_spec['y'] == tf.TensorSpec([4], tf.int32)
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 4, 5)).astype(np.float32)
  y = rng.integers(0, 5, (2, 4)).astype(np.int32)
  log_softmax = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
  picked = np.take_along_axis(log_softmax, y[..., np.newaxis], axis=-1)[..., 0]
  np.testing.assert_allclose(
    bridged.loss(tf.constant(y), tf.constant(logits)),
    -picked.mean(axis=1),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    bridged.metrics['accuracy'](tf.constant(y), tf.constant(logits)),
    (logits.argmax(axis=-1) == y).mean(axis=1),
  )
  assert bridged.probabilities(logits).shape == (2, 4, 5)


@pytest.mark.parametrize('loss', ['mse', keras.losses.MeanSquaredError()])
def test_regression_of_a_scalar_does_not_broadcast(loss):
  bridged = _bridge(_sequential(units=1), loss=loss, metrics=['mae'])
  assert bridged.element_spec['y'] == tf.TensorSpec([], tf.float32)
  assert bridged.num_classes is None
  assert bridged.probabilities is None
  y = tf.constant([1.0, 2.0, 5.0])
  outputs = tf.constant([[1.0], [4.0], [2.0]])
  np.testing.assert_allclose(bridged.loss(y, outputs), [0, 4, 9])
  np.testing.assert_allclose(bridged.metrics['mae'](y, outputs), [0, 2, 3])


def test_regression_of_vectors_averages_over_outputs():
  bridged = _bridge(_sequential(units=2), loss='mse', metrics=['mae'])
  assert bridged.element_spec['y'] == tf.TensorSpec([2], tf.float32)
  y = tf.constant([[1.0, 2.0]])
  outputs = tf.constant([[2.0, 5.0]])
  np.testing.assert_allclose(bridged.loss(y, outputs), [5])
  np.testing.assert_allclose(bridged.metrics['mae'](y, outputs), [2])


def test_a_function_may_be_the_loss():
  bridged = _bridge(
    _sequential(units=1),
    loss=lambda y, p: tf.abs(y - p)[:, 0] ** 3,
    metrics=[],
    label_spec=tf.TensorSpec([], tf.int64),
  )
  np.testing.assert_allclose(
    bridged.loss(tf.constant([1, 2], tf.int64), tf.constant([[3.0], [1.0]])),
    [8, 1],
  )


def test_metrics_by_name_object_and_function():
  def margin(y_true, y_pred):
    del y_true
    return tf.reduce_max(y_pred, axis=-1)

  bridged = _bridge(
    _make('dense'),
    metrics=[
      'accuracy',
      keras.metrics.SparseTopKCategoricalAccuracy(k=2, name='top_2'),
      keras.metrics.SparseCategoricalCrossentropy(
        from_logits=True, name='nats'
      ),
      margin,
    ],
  )
  y = tf.constant([0, 2])
  logits = tf.constant([[1.0, 2.0, 0.0], [3.0, 2.0, 1.0]])
  values = {k: f(y, logits).numpy() for k, f in bridged.metrics.items()}
  assert list(values) == ['accuracy', 'top_2', 'nats', 'margin']
  np.testing.assert_array_equal(values['accuracy'], [0, 0])
  np.testing.assert_array_equal(values['top_2'], [1, 0])
  np.testing.assert_allclose(values['nats'], bridged.loss(y, logits))
  np.testing.assert_array_equal(values['margin'], [2, 3])


# Refusals.


class _Assigns(layers.Layer):
  def build(self, input_shape):
    self.count = self.add_weight('count', shape=(), trainable=False)

  def call(self, inputs):
    self.count.assign_add(1.0)
    return inputs * self.count


class _InList(layers.Layer):
  def build(self, input_shape):
    self.scales = [self.add_weight('scale', shape=())]

  def call(self, inputs):
    return inputs * self.scales[0]


class _ReadsOtherwise(layers.Layer):
  def build(self, input_shape):
    self.scale = self.add_weight('scale', shape=())
    scale = self.scale
    self.function = lambda x: x * scale

  def call(self, inputs):
    return self.function(inputs)


class _ReadsNoWeight(layers.Layer):
  def call(self, inputs):
    return inputs * _NO_WEIGHT


class _Tied(layers.Layer):
  def __init__(self, dense, **arguments):
    super().__init__(**arguments)
    self.dense = dense

  def call(self, inputs):
    return tf.matmul(inputs, self.dense.kernel, transpose_b=True)


_NO_WEIGHT = tf.Variable(2.0, name='no_weight')


def _shared():
  dense = layers.Dense(4, name='odd')
  return _sequential(dense, layers.ReLU(), dense)


def _tied():
  dense = layers.Dense(5, use_bias=False)
  return _sequential(dense, _Tied(dense, name='odd'))


def _masked_batch_normalization():
  return keras.Sequential(
    [
      keras.Input((4,), dtype='int32'),
      layers.Embedding(5, 3, mask_zero=True),
      layers.BatchNormalization(name='odd'),
      layers.GRU(2),
      layers.Dense(3, name='head'),
    ]
  )


UNSUPPORTED = {
  'shared': (_shared, 'used 2 times'),
  'tied': (_tied, 'shares the variable'),
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
  'recurrent_dropout': (
    lambda: _sequential(
      layers.LSTM(2, recurrent_dropout=0.1, name='odd'), shape=(3, 4)
    ),
    'dropout inside a recurrent cell',
  ),
  'wrapped_recurrent_dropout': (
    lambda: _sequential(
      layers.Bidirectional(layers.GRU(2, dropout=0.1), name='odd'),
      shape=(3, 4),
    ),
    'dropout inside a recurrent cell',
  ),
  'noise': (
    lambda: _sequential(layers.GaussianNoise(0.1, name='odd')),
    'unseeded random',
  ),
  'augmentation': (
    lambda: _sequential(
      layers.RandomFlip(name='odd'), layers.Flatten(), shape=(4, 4, 3)
    ),
    'unseeded random',
  ),
  'regularizer': (
    lambda: _sequential(
      layers.Dense(3, kernel_regularizer='l2', name='odd'),
    ),
    'adds a loss',
  ),
  'activity_regularizer': (
    lambda: _sequential(
      layers.Dense(3, activity_regularizer='l2', name='odd'),
    ),
    'adds a loss|activity regularizer',
  ),
  'dropping_everything': (
    lambda: _sequential(layers.Dropout(1.0, name='odd')),
    'drops everything',
  ),
  'virtual_batches': (
    lambda: _sequential(
      layers.BatchNormalization(virtual_batch_size=2, name='odd')
    ),
    'virtual batches',
  ),
  'other_batch_normalization': (
    lambda: _sequential(
      tf.compat.v1.keras.layers.BatchNormalization(name='odd')
    ),
    'assign_sub',
  ),
  'steps_normalized': (
    lambda: _sequential(
      layers.TimeDistributed(layers.BatchNormalization(), name='odd'),
      shape=(3, 4),
    ),
    'TimeDistributed',
  ),
  'masked_batch_normalization': (_masked_batch_normalization, 'masked'),
  'mixed_precision': (
    lambda: _sequential(
      layers.Dense(3, dtype='mixed_float16', name='odd'),
    ),
    'mixed precision',
  ),
  'integer_weight': (
    lambda: _sequential(layers.Normalization(name='odd')),
    'int64',
  ),
  'in_a_list': (lambda: _sequential(_InList(name='odd')), 'list or dict'),
  'read_otherwise': (
    lambda: _sequential(_ReadsOtherwise(name='odd')),
    "'odd/scale' read in",
  ),
  'no_weight': (
    lambda: _sequential(_ReadsNoWeight(name='odd')),
    "'no_weight:0' read in",
  ),
  'assigns': (lambda: _sequential(_Assigns(name='odd')), 'assign_add'),
}


@pytest.mark.parametrize('case', UNSUPPORTED)
def test_unsupported_layers_are_refused_by_name(case):
  make, reason = UNSUPPORTED[case]
  with pytest.raises(ValueError, match=reason) as raised:
    _bridge(make())
  message = str(raised.value)
  assert message.startswith('Expected `model` to ')
  assert re.search(r"'([^']*/)?odd[/']", message), message
  assert '\n' not in message


def test_a_mask_that_the_head_reads_must_not_cross_the_cut():
  def make(end):
    return keras.Sequential(
      [
        keras.Input((4,), dtype='int32'),
        layers.Embedding(5, 3, mask_zero=True, name='embedding'),
        *end,
      ]
    )

  lstm = make([layers.LSTM(2, name='odd'), layers.Dense(3, name='head')])
  with pytest.raises(ValueError, match="'odd' .*reads a mask"):
    _bridge(lstm, ['odd', 'head'])
  # All in the head, or all in the body, or not read: as Keras.
  unread = make(
    [
      layers.LSTM(2, return_sequences=True),
      layers.TimeDistributed(layers.Dense(2), name='steps'),
      layers.Dense(3, name='head'),
    ]
  )
  x = tf.constant([[1, 2, 0, 0], [3, 0, 0, 0]])
  for model, head in (
    (lstm, ['head']),
    (lstm, ['embedding', 'odd', 'head']),
    (unread, ['steps', 'head']),
  ):
    bridged = _bridge(model, head)
    features, _ = bridged.body(bridged.initial_weights, x)
    outputs, _ = bridged.head(
      bridged.initial_weights, tf.constant(features.numpy())
    )
    np.testing.assert_allclose(outputs, model(x), rtol=1e-5)


class _Subclassed(keras.Model):
  def call(self, inputs):
    return inputs


def _two_inputs():
  inputs = [keras.Input((4,)), keras.Input((4,))]
  outputs = layers.Dense(3, name='head')(layers.Add()(inputs))
  return keras.Model(inputs, outputs, name='two')


def _two_outputs():
  inputs = keras.Input((4,))
  hidden = layers.Dense(3, name='head')(inputs)
  return keras.Model(inputs, [hidden, layers.ReLU()(hidden)], name='two')


@pytest.mark.parametrize(
  'make, error, reason',
  [
    (lambda: 'mlp', TypeError, 'a tf.keras.Model'),
    (_Subclassed, TypeError, 'functional or sequential'),
    (
      lambda: keras.Sequential([layers.Dense(3, name='head')]),
      TypeError,
      'give a Sequential an Input',
    ),
    (_two_inputs, ValueError, "one input, found .*2 inputs in 'two'"),
    (_two_outputs, ValueError, "one output, found .*2 outputs in 'two'"),
    (
      lambda: _sequential(layers.GRU(2), shape=(None, 4)),
      ValueError,
      'fixed shape',
    ),
    (
      lambda: keras.Sequential(
        [keras.Input((4,)), layers.ReLU(name='head')], name='empty'
      ),
      ValueError,
      "with weights, found .*'empty'",
    ),
  ],
)
def test_models_that_are_no_single_graph_are_refused(make, error, reason):
  with pytest.raises(error, match=reason):
    _bridge(make())


@pytest.mark.parametrize(
  'head, error, reason',
  [
    (['nowhere'], ValueError, "first, flat, head.*found 'nowhere'"),
    ([], ValueError, 'at least one layer name'),
    (['flat'], ValueError, 'one at least has weights'),
    (['first'], ValueError, "found layer 'head' with weights after"),
    ('head', TypeError, "a list, found 'head'"),
  ],
)
def test_heads_that_are_none_are_refused(head, error, reason):
  model = _sequential(
    layers.Dense(3, name='first'), layers.Flatten(name='flat')
  )
  with pytest.raises(error, match=reason):
    _bridge(model, head)


def test_a_branch_that_joins_layers_outside_the_head_is_refused():
  inputs = keras.Input((4,))
  left = layers.Dense(3, name='left')(inputs)
  right = layers.Dense(3, name='right')(inputs)
  outputs = layers.Dense(3, name='last')(layers.Add()([left, right]))
  with pytest.raises(ValueError, match="'last' with weights after the head"):
    _bridge(keras.Model(inputs, outputs), ['left'])


@pytest.mark.parametrize(
  'arguments, error, reason',
  [
    ({'loss': 'nonsense'}, ValueError, "Keras loss, found 'nonsense'"),
    ({'loss': 3}, TypeError, '`loss`.*found 3'),
    (
      {'loss': lambda y, p: tf.reduce_mean(p), 'metrics': []},
      ValueError,
      'value per example',
    ),
    ({'loss': 'mse'}, ValueError, "'accuracy' needs a classification loss"),
    ({'metrics': ['nonsense']}, ValueError, "Keras metrics, found 'nonsense'"),
    ({'metrics': 'accuracy'}, TypeError, "a list, found 'accuracy'"),
    ({'metrics': [3]}, TypeError, '`metrics`.*found 3'),
    ({'metrics': ['AUC']}, ValueError, 'means over examples.*AUC'),
    (
      {'metrics': [keras.metrics.AUC(name='area')]},
      ValueError,
      "means over examples.*AUC 'area'",
    ),
    (
      {'metrics': ['accuracy', 'accuracy']},
      ValueError,
      "distinct names other than loss, found 'accuracy'",
    ),
    (
      {'label_spec': tf.TensorSpec([7], tf.int32)},
      ValueError,
      r'labels of shape \(7,\) and dtype int32',
    ),
    (
      {
        'loss': 'mse',
        'metrics': [],
        'label_spec': tf.TensorSpec([7], tf.float32),
      },
      ValueError,
      r'labels of shape \(7,\) and dtype float32',
    ),
    ({'jit_compile': 'always'}, ValueError, "jit_compile.*'always'"),
  ],
)
def test_losses_metrics_and_labels_that_do_not_fit_are_refused(
  arguments, error, reason
):
  with pytest.raises(error, match=reason) as raised:
    _bridge(_make('dense'), **arguments)
  assert '\n' not in str(raised.value)
