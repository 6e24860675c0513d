"""Graphs of layers, and where they are cut into body and head."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.models import keras_models

layers = keras.layers


# Graphs that are no chain.


@pytest.mark.parametrize(
  'merge',
  [
    lambda a, b: layers.Add()([a, b]),
    lambda a, b: layers.Concatenate()([a, b]),
    lambda a, b: a + 2.0 * b,
  ],
  ids=['add', 'concatenate', 'operators'],
)
def test_residual_graphs_wherever_they_are_cut(merge):
  model = keras_models.residual(merge)
  x, _ = keras_models.examples(model)
  for head in (('head',), ('second', 'head'), ('first', 'second', 'head')):
    bridged = keras_models.bridge(model, head)
    assert bridged.head_layers == head
    outputs, _ = bridged.forward(bridged.initial_weights, x)
    np.testing.assert_allclose(outputs, model(x), rtol=1e-5, atol=1e-6)
    outputs = bridged.layer_outputs(bridged.initial_weights, x)
    assert list(outputs) == list(bridged.layers)
    np.testing.assert_allclose(outputs['head'], model(x), rtol=1e-5)


def test_connection_across_the_cut_gives_several_features():
  inputs = keras.Input((4,))
  first = layers.Dense(5, 'relu', name='first')(inputs)
  second = layers.Dense(6, 'relu', name='second')(first)
  third = layers.Dense(5, name='third')(second)
  outputs = layers.Dense(3, name='head')(layers.Add()([first, third]))
  model = keras.Model(inputs, outputs)
  bridged = keras_models.bridge(model, ('third', 'head'))
  x, _ = keras_models.examples(model)
  features, _ = bridged.body(bridged.initial_weights, x)
  assert [f.shape[-1] for f in features] == [6, 5]
  outputs, _ = bridged.head(bridged.initial_weights, features)
  np.testing.assert_allclose(outputs, model(x), rtol=1e-5, atol=1e-6)


# In functional models the input is a layer with a name, too.
@pytest.mark.parametrize('form', ['sequential', 'functional'])
def test_head_may_start_at_the_input(form):
  model = keras_models.make('dense', form)
  bridged = keras_models.bridge(model, [layer.name for layer in model.layers])
  x, _ = keras_models.examples(model)
  assert bridged.body_layers == ()
  features, _ = bridged.body({}, x)
  np.testing.assert_array_equal(features, x)
  outputs, _ = bridged.head(bridged.initial_weights, features)
  np.testing.assert_allclose(outputs, model(x), rtol=1e-5)


def test_layers_without_weights_after_the_head_belong_to_it():
  model = keras.Sequential(
    [
      keras.Input((4,)),
      layers.Dense(3, name='head'),
      layers.Dropout(0.5),
      layers.Softmax(),
    ]
  )
  bridged = keras_models.bridge(model)
  x, _ = keras_models.examples(model)
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
  keras_models.jitter(model)
  bridged = keras_models.bridge(model, ['third', 'head'])
  x, _ = keras_models.examples(model)
  features, _ = bridged.body(bridged.initial_weights, x)
  assert features.shape == (6, 5)
  np.testing.assert_allclose(
    bridged.head(bridged.initial_weights, features)[0], model(x), rtol=1e-5
  )


def test_masks_cross_the_cut_and_mark_outputs():
  def make(end):
    return keras.Sequential(
      [
        keras.Input((4,), dtype='int32'),
        layers.Embedding(5, 3, mask_zero=True, name='embedding'),
        *end,
      ]
    )

  rnn = make([layers.SimpleRNN(2, name='rnn'), layers.Dense(3, name='head')])
  tagging = make(
    [
      layers.SimpleRNN(2, return_sequences=True, name='rnn'),
      layers.TimeDistributed(layers.Dense(2), name='steps'),
      layers.Dense(3, name='head'),
    ]
  )
  x = tf.constant([[1, 2, 0, 0], [3, 0, 0, 0]])
  for model, head in (
    (rnn, ['head']),
    (rnn, ['rnn', 'head']),
    (rnn, ['embedding', 'rnn', 'head']),
    (tagging, ['head']),
    (tagging, ['steps', 'head']),
    (tagging, ['rnn', 'steps', 'head']),
  ):
    bridged = keras_models.bridge(model, head)
    features, _ = bridged.body(bridged.initial_weights, x)
    features = tf.nest.map_structure(lambda f: tf.constant(f.numpy()), features)
    outputs, _ = bridged.head(bridged.initial_weights, features)
    expected = model(x).numpy()
    if model is tagging:
      expected[x == 0] = np.nan
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)


# Refusals.


@pytest.mark.parametrize(
  'make, error, reason',
  [
    (lambda: 'mlp', TypeError, 'a keras.Model'),
    (
      lambda: tf_keras.Sequential([tf_keras.layers.Dense(3)]),
      TypeError,
      'of Keras 3.*tf_keras',
    ),
    (
      lambda: keras.Sequential([layers.Dense(3, name='head')]),
      TypeError,
      'give a Sequential an Input',
    ),
    (
      lambda: keras_models.sequential(layers.GRU(2), shape=(None, 4)),
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
    keras_models.bridge(make())


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
  model = keras_models.sequential(
    layers.Dense(3, name='first'), layers.Flatten(name='flat')
  )
  with pytest.raises(error, match=reason):
    keras_models.bridge(model, head)


def test_a_branch_that_joins_layers_outside_the_head_is_refused():
  model = keras_models.residual(lambda a, b: layers.Add()([a, b]))
  with pytest.raises(ValueError, match="'head' with weights after the head"):
    keras_models.bridge(model, ['second'])
