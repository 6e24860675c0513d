"""Keras models that the tests of the bridge share, and calls of them."""

import keras
import numpy as np
import tensorflow as tf

from tff_pfl.models import keras_bridge, split_model

layers = keras.layers

NUM_CLASSES = 3

# Name -> (input shape, layers before the head). An embedding takes integers.
FAMILIES = {
  'dense': ((4,), lambda: [layers.Dense(5, 'tanh')]),
  'conv1d': (
    (6, 3),
    lambda: [
      layers.Conv1D(4, 3, activation='relu'),
      layers.MaxPooling1D(2),
      layers.Flatten(),
    ],
  ),
  'conv2d_max': (
    (8, 8, 2),
    lambda: [
      layers.Conv2D(4, 3, activation='relu'),
      layers.MaxPooling2D(2),
      layers.Flatten(),
    ],
  ),
  'conv2d_average': (
    (8, 8, 2),
    lambda: [
      layers.Conv2D(4, 3, padding='same', use_bias=False),
      layers.AveragePooling2D(2),
      layers.GlobalAveragePooling2D(),
    ],
  ),
  'separable_conv': (
    (6, 6, 2),
    lambda: [
      layers.DepthwiseConv2D(3),
      layers.SeparableConv2D(3, 3),
      layers.GlobalMaxPooling2D(),
    ],
  ),
  'embedding': ((5,), lambda: [layers.Embedding(7, 3), layers.Flatten()]),
  'masked_lstm': (
    (5,),
    lambda: [layers.Embedding(7, 3, mask_zero=True), layers.LSTM(4)],
  ),
  'stacked_lstm': (
    (5, 3),
    lambda: [layers.LSTM(4, return_sequences=True), layers.LSTM(3)],
  ),
  'gru': ((5, 3), lambda: [layers.GRU(4)]),
  'bidirectional': ((5, 3), lambda: [layers.Bidirectional(layers.GRU(3))]),
  'layer_norm': ((4,), lambda: [layers.Dense(6), layers.LayerNormalization()]),
  'group_norm': (
    (4, 4, 3),
    lambda: [
      layers.Conv2D(4, 3),
      layers.GroupNormalization(2),
      layers.Flatten(),
    ],
  ),
  'batch_norm': ((4,), lambda: [layers.Dense(6), layers.BatchNormalization()]),
  'batch_norm_images': (
    (5, 5, 3),
    lambda: [
      layers.Conv2D(4, 3),
      layers.BatchNormalization(),
      layers.Flatten(),
    ],
  ),
  'dropout': ((4,), lambda: [layers.Dense(6, 'relu'), layers.Dropout(0.5)]),
  'nested_model': (
    (4,),
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


def make(family, form='sequential'):
  keras.utils.set_random_seed(5)
  shape, make_layers = FAMILIES[family]
  stack = [*make_layers(), layers.Dense(NUM_CLASSES, name='head')]
  dtype = 'int32' if isinstance(stack[0], layers.Embedding) else 'float32'
  if form == 'sequential':
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *stack])
  else:
    inputs = keras.Input(shape, dtype=dtype)
    outputs = inputs
    for layer in stack:
      outputs = layer(outputs)
    model = keras.Model(inputs, outputs)
  jitter(model)
  return model


def jitter(model):
  """Weights away from 0 and 1, so that no weight can be mixed up unseen."""
  rng = np.random.default_rng(3)
  for variable in model.weights:
    value = variable.numpy()
    variable.assign(value + rng.uniform(0.1, 0.5, value.shape))


def examples(model, num_examples=6, seed=1):
  rng = np.random.default_rng(seed)
  shape = (num_examples, *model.input_shape[1:])
  if tf.as_dtype(model.inputs[0].dtype).is_integer:
    x = rng.integers(0, 7, shape).astype(np.int32)
  else:
    x = rng.normal(size=shape).astype(np.float32)
  y = rng.integers(0, NUM_CLASSES, num_examples).astype(np.int32)
  return tf.constant(x), tf.constant(y)


def bridge(model, head_layers=('head',), **arguments):
  arguments.setdefault(
    'loss', keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  )
  return keras_bridge.from_keras(model, head_layers=head_layers, **arguments)


def sequential(*stack, shape=(4,), units=NUM_CLASSES, activation=None):
  return keras.Sequential(
    [keras.Input(shape), *stack, layers.Dense(units, activation, name='head')]
  )


def tensors(model):
  return {k: tf.constant(v) for k, v in model.initial_weights.items()}


def variables(model, bridged):
  """The bridge's names of the Keras model's variables, in its own order."""
  ordered = [v.value for layer in model.layers for v in layer.weights]
  return dict(zip(bridged.initial_weights, ordered))


def training(seed=(1, 2), example_weights=None):
  return split_model.Mode(True, tf.constant(seed, tf.int32), example_weights)


def state_of(model):
  return [
    (id(owner), key, id(value))
    for owner in (*model._flatten_layers(), *model.weights)
    for key, value in vars(owner).items()
    if key in ('call', 'value', '_moments', 'state')
    or isinstance(value, (tf.Tensor, tf.Variable, keras.Variable))
  ]


def residual(merge):
  inputs = keras.Input((4,))
  first = layers.Dense(4, 'relu', name='first')(inputs)
  second = layers.Dense(4, 'relu', name='second')(first)
  merged = merge(first, second)
  model = keras.Model(inputs, layers.Dense(NUM_CLASSES, name='head')(merged))
  jitter(model)
  return model
