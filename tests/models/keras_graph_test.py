"""Graphs of layers, and where they are cut into body and head."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.models import keras_models

layers = keras.layers
sequential = keras_models.sequential


def _across_the_cut():
  inputs = keras.Input((4,))
  first = layers.Dense(5, 'relu', name='first')(inputs)
  second = layers.Dense(6, 'relu', name='second')(first)
  third = layers.Dense(5, name='third')(second)
  outputs = layers.Dense(3, name='head')(layers.Add()([first, third]))
  return keras.Model(inputs, outputs)


def _activation_on_both_sides():
  relu = layers.ReLU()
  inputs = hidden = keras.Input((4,))
  for name in ('first', 'second', 'third'):
    hidden = relu(layers.Dense(5, name=name)(hidden))
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def _activated_after_the_head():
  return keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(3, name='head'),
      layers.Dropout(0.5),
      layers.Softmax(),
    ]
  )


def _with_operators():
  return keras_models.residual(lambda a, b: a + 2.0 * b)


def _last_state():
  return keras_models.words(layers.SimpleRNN(2, name='rnn'))


def _tagging():
  return keras_models.words(
    layers.SimpleRNN(2, return_sequences=True, name='rnn'),
    layers.TimeDistributed(layers.Dense(2), name='steps'),
  )


@pytest.mark.parametrize(
  'make, head, features',
  [
    (keras_models.residual, ['head'], [4]),
    (_with_operators, ['second', 'head'], [4]),
    (_across_the_cut, ['third', 'head'], [6, 5]),
    (_activation_on_both_sides, ['third', 'head'], [5]),
    (_activated_after_the_head, ['head'], [4]),
    (keras_models.two_inputs, ['head'], [8]),
    # Masks follow.
    (_last_state, ['head'], [2]),
    (_last_state, ['rnn', 'head'], [4]),
    (_tagging, ['head'], [2]),
    (_tagging, ['steps', 'head'], [2]),
  ],
)
def test_the_head_on_the_body_is_the_model_wherever_it_is_cut(
  make, head, features
):
  model = keras_models.jitter(make())
  bridged = keras_models.bridge(
    model, head, loss='mse', metrics=[], jit_compile=False
  )
  assert list(bridged.head_layers) == head
  x, _ = keras_models.examples(bridged)
  body = {n: bridged.initial_weights[n] for n in _names(bridged, 'body_layers')}
  actual, _ = bridged.body(body, x)
  # Masks are bools.
  floats = [f for f in tf.nest.flatten(actual) if f.dtype.is_floating]
  assert [f.shape[-1] for f in floats] == features
  # Without what Keras notes at tensors.
  actual = tf.nest.map_structure(lambda f: tf.constant(f.numpy()), actual)
  outputs, _ = bridged.head(
    {n: bridged.initial_weights[n] for n in _names(bridged, 'head_layers')},
    actual,
  )
  expected = model(x).numpy()
  if make is _tagging:
    expected[x == 0] = np.nan
  np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def _names(bridged, layers_of):
  return bridged.weight_names(getattr(bridged, layers_of))


# In functional models the input is a layer with a name, too.
@pytest.mark.parametrize('is_functional', [False, True])
def test_head_may_start_at_the_input(is_functional):
  model = sequential(layers.Dense(5, 'tanh'))
  if is_functional:
    model = keras.Model(model.inputs, model.outputs)
  bridged = keras_models.bridge(model, [layer.name for layer in model.layers])
  assert bridged.body_layers == ()
  x, _ = keras_models.examples(bridged)
  np.testing.assert_array_equal(bridged.body({}, x)[0], x)


# Refusals.


def _of_named_inputs():
  inputs = [keras.Input((4,), name=name) for name in ('b', 'my age')]
  return keras.Model(inputs, layers.Dense(3, name='head')(sum(inputs)))


@pytest.mark.parametrize(
  'make, reason',
  [
    (lambda: 'mlp', 'of type Model'),
    (lambda: tf_keras.Sequential([tf_keras.layers.Dense(3)]), 'of Keras 3'),
    (lambda: keras.Sequential([layers.Dense(3, name='head')]), 'an Input'),
    (lambda: sequential(layers.GRU(2), shape=(None, 4)), 'fixed shape'),
    (lambda: sequential(layers.Hashing(5), dtype='string'), 'string'),
    (_of_named_inputs, "inputs have names of ASCII letters.*found 'my age'"),
    (
      lambda: keras.Sequential([keras.Input((4,)), layers.ReLU(name='head')]),
      'one at least has weights',
    ),
  ],
)
def test_models_that_are_no_single_graph_are_refused(make, reason):
  with pytest.raises((TypeError, ValueError), match=reason):
    keras_models.bridge(make())


@pytest.mark.parametrize(
  'head, reason',
  [
    (['nowhere'], "first, second, add, head.*found 'nowhere'"),
    ([], 'one at least has weights'),
    (['add'], 'one at least has weights'),
    (['first'], 'layers with weights after the head; add second, head to'),
    # The sum joins a branch outside the head.
    (['second'], 'after the head; add head to'),
    ('head', "a list, found 'head'"),
  ],
)
def test_heads_that_are_none_are_refused(head, reason):
  model = keras_models.residual(lambda a, b: layers.Add(name='add')([a, b]))
  with pytest.raises((TypeError, ValueError), match=reason):
    keras_models.bridge(model, head)
