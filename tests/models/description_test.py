"""A description tells a model from others, and not from the same one."""

import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.models import (
  augmentation,
  class_weights,
  client_metrics,
  description,
  keras_bridge,
  zoo,
)
from tff_pfl.runs import run_store

layers = keras.layers
_LOSS = keras.losses.SparseCategoricalCrossentropy
_LOGITS = _LOSS(from_logits=True)


class Scaled(keras.Layer):
  """A layer with others in it, and Keras's own configuration."""

  def __init__(self, scale=1.0, activation='relu'):
    super().__init__()
    self.dense = layers.Dense(
      4, activation, kernel_initializer='ones', name='inner'
    )
    # Keras numbers it.
    self.dropout = layers.Dropout(0.5)
    self.scale = scale

  def build(self, shape):
    self.dense.build(shape)

  def call(self, x):
    return self.scale * self.dense(self.dropout(x))


class Untold(keras.Layer):
  """A layer without a configuration."""

  def __init__(self, function):
    super().__init__()
    self.function = function

  def call(self, x):
    return self.function(x)


def _distance(power):
  def distance(y, outputs):
    y = tf.one_hot(tf.cast(y, tf.int32), 3)
    return tf.reduce_sum(tf.abs(y - outputs) ** power, axis=-1)

  return distance


def _accuracy(k):
  def found(y, outputs):
    top = keras.metrics.sparse_top_k_categorical_accuracy(y, outputs, k)
    return tf.cast(top, tf.float32)

  return found


def _made(between=(), activation='relu', regularizer=None, units=4, **options):
  """A model of two layers, with others between them."""
  network = keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(
        units,
        activation,
        kernel_regularizer=regularizer,
        kernel_initializer=keras.initializers.GlorotUniform(1),
        name='features',
      ),
      *between,
      layers.Dense(3, kernel_initializer='ones', name='head'),
    ]
  )
  return keras_bridge.from_keras(
    network, **{'head_layers': ['head'], 'loss': _LOGITS, **options}
  )


@functools.cache
def _base():
  return _made()


@functools.cache
def _images():
  network = keras.Sequential(
    [
      keras.Input((4, 4, 1)),
      layers.Flatten(),
      layers.Dense(3, kernel_initializer='ones', name='head'),
    ]
  )
  return keras_bridge.from_keras(network, head_layers=['head'], loss=_LOGITS)


def _of_images(change):
  return augmentation.augmented(_images(), change)


def _branched(swapped=False, factor=2.0):
  inputs = keras.Input((4,))
  one, two = (
    layers.Dense(3, a, kernel_initializer='ones') for a in (None, 'elu')
  )
  y = one(inputs) - two(inputs) if swapped else two(inputs) - one(inputs)
  head = layers.Dense(3, kernel_initializer='ones', name='head')
  network = keras.Model(inputs, head(y * factor))
  return keras_bridge.from_keras(network, head_layers=['head'], loss=_LOGITS)


def _recurrent():
  options = {'kernel_initializer': 'ones', 'recurrent_initializer': 'ones'}
  network = keras.Sequential(
    [
      keras.Input((4,), dtype='int32'),
      layers.Embedding(5, 3, embeddings_initializer='ones', mask_zero=True),
      layers.Bidirectional(layers.SimpleRNN(2, **options)),
      layers.Dense(3, kernel_initializer='ones', name='head'),
    ]
  )
  return keras_bridge.from_keras(network, head_layers=['head'], loss=_LOGITS)


def _differences(one, other):
  stored = json.loads(json.dumps(description.describe(one)))
  return run_store.differences(
    {'model': stored}, {'model': description.describe(other)}
  )


def test_the_description_is_small_and_the_same_in_any_process():
  between = layers.Dropout(0.5, seed=9), layers.Lambda(lambda x: 2 * x)
  regularizer = keras.regularizers.L2(0.5)
  model = _made(
    between, lambda x: -x, regularizer, class_weight={1: np.float32(5)}
  )
  one = dataclasses.replace(
    model,
    initial_weights={
      name: np.full_like(value, 0.5)
      for name, value in model.initial_weights.items()
    },
  )
  actual = description.describe(one)
  values = actual.pop('values')
  assert actual == {
    'name': 'sequential',
    'shapes': {
      'features/kernel': [4, 4],
      'features/bias': [4],
      'head/kernel': [4, 3],
      'head/bias': [3],
    },
    'initial_weights_sha256': '9760a38522f98ef6',
    'head_layers': ['head'],
    'statistics': [],
    'examples': {'x': 'float32(4,)', 'y': 'int32()'},
    'metrics': ['accuracy'],
    'primary_metric': ['accuracy', True],
    'loss': {'class': 'SparseCategoricalCrossentropy', 'from_logits': True},
    'class_weight': {'1': 5.0},
    'layers': {
      'features': {
        'class': 'Dense',
        'units': 4,
        'activation': '<lambda>',
        'kernel_regularizer': {'class': 'L2', 'l2': 0.5},
      },
      'dropout': {'class': 'Dropout', 'rate': 0.5},
      'lambda': {'class': 'Lambda', 'function': '<lambda>', 'arguments': {}},
      'head': {'class': 'Dense', 'units': 3, 'activation': 'linear'},
    },
  }
  # 16 weights of 0.5 and up to 0.1 more.
  (penalty,) = values['regularization']
  assert 0.5 * 16 * 0.5**2 < penalty < 0.5 * 16 * 0.6**2
  assert max(map(len, values.values())) == 2


@pytest.mark.parametrize(
  'make',
  [
    _made,
    _branched,
    _recurrent,
    lambda: _made([layers.Dense(4, lambda x: -x, kernel_initializer='ones')]),
    lambda: _made([Scaled(), Untold(tf.nn.elu)]),
    lambda: _made(loss=_distance(2), task='classification'),
    lambda: _of_images(lambda x, seed: -x),
    lambda: zoo.linear(_images().element_spec, 3),
  ],
)
def test_a_model_that_is_built_again_is_the_same(make):
  assert _differences(make(), make()) == ''


@pytest.mark.parametrize(
  'one, other, words',
  [
    (
      _base,
      lambda: _made(activation='tanh'),
      "model.layers.features.activation was 'relu', now 'tanh'",
    ),
    (
      lambda: _made([Scaled()]),
      lambda: _made([Scaled(2.0)]),
      'model.layers.scaled.scale was 1.0, now 2.0',
    ),
    (
      lambda: _made([Scaled()]),
      lambda: _made([Scaled(1.0, 'tanh')]),
      "model.layers.scaled.activation was 'relu', now 'tanh'; "
      "model.layers.scaled/inner.activation was 'relu', now 'tanh'",
    ),
    (
      lambda: _made([Untold(tf.nn.elu)]),
      lambda: _made([Untold(tf.nn.selu)]),
      'model.values.outputs was',
    ),
    (
      _branched,
      lambda: _branched(swapped=True),
      "model.layers.dense.activation was 'elu', now 'linear'",
    ),
    (
      _branched,
      lambda: _branched(factor=3.0),
      "model.layers.multiply.call was [['<subtract>', 2.0], {}], now",
    ),
    (
      _base,
      lambda: _made(loss=_LOSS(from_logits=True, ignore_class=255)),
      'model.loss.ignore_class was None, now 255',
    ),
    (
      lambda: _made(loss=_distance(1), task='classification'),
      lambda: _made(loss=_distance(2), task='classification'),
      'model.values.loss was',
    ),
    (
      lambda: class_weights.with_class_weight(_base(), '2:4'),
      lambda: _made(class_weight={2: 5.0}),
      'model.class_weight.2 was 4.0, now 5.0',
    ),
    (
      _base,
      lambda: class_weights.with_sample_weight(_base()),
      "model.examples.weight was None, now 'float32()'",
    ),
    (
      _base,
      lambda: client_metrics.with_metrics(_base(), ['auc']),
      "model.metrics was ['accuracy'], now ['accuracy', 'auc']",
    ),
    (
      lambda: _made(metrics=[_accuracy(1)], higher_is_better=True),
      lambda: _made(metrics=[_accuracy(2)], higher_is_better=True),
      'model.values.found was',
    ),
    (
      lambda: _of_images('flip'),
      lambda: _of_images('crop:1'),
      "model.augmentation was 'flip', now 'crop:1'",
    ),
    (
      lambda: _of_images(lambda x, seed: -x),
      lambda: _of_images(lambda x, seed: 2 * x),
      'model.values.outputs_in_training was',
    ),
  ],
)
def test_what_changes_the_function_is_named(one, other, words):
  assert _differences(one(), other()).startswith(words)


def test_a_metric_that_refuses_random_labels_gives_no_value():
  def strict(y, outputs):
    tf.debugging.assert_less(y, -1)
    return tf.zeros_like(outputs[:, 0])

  values = description.describe(
    _made(metrics=[strict], higher_is_better=False)
  )['values']
  assert 'loss' in values and 'strict' not in values
