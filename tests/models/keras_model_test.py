import collections
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl.methods import registry
from tff_pfl.models import keras_bridge, prediction, zoo


def _images(number):
  x = np.random.default_rng(0).normal(size=[number, 8, 8, 1])
  return x.astype(np.float32)


def _words(number):
  return np.random.default_rng(0).integers(0, 20, [number, 6], np.int32)


_NETWORKS = {
  'cnn': (_images(50), {'filters': 2, 'widths': (5,)}),
  'text_mlp': (_words(50), {'vocabulary_size': 20, 'embedding_size': 3}),
}


def _model(name, x, arguments):
  spec = collections.OrderedDict(
    x=tf.TensorSpec(x.shape[1:], x.dtype), y=tf.TensorSpec([], tf.int32)
  )
  return zoo.make_model(name, spec, 4, **arguments)


@pytest.mark.parametrize('name', _NETWORKS)
def test_the_file_predicts_bit_for_bit_with_the_weights_given(name, tmp_path):
  x, arguments = _NETWORKS[name]
  model = _model(name, x, arguments)
  weights = toy_problems.jittered(model.initial_weights)
  before = model.keras_graph.model.get_weights()
  keras_bridge.save_keras(tmp_path / 'model.keras', model, weights)
  toy_problems.assert_same(model.keras_graph.model.get_weights(), before)
  made = keras_bridge.keras_model(model, weights)
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  outputs = loaded.predict(x, batch_size=len(x), verbose=0)
  np.testing.assert_array_equal(
    model.classifier.probabilities(outputs),
    prediction.predict(model, weights, x),
  )
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    np.testing.assert_array_equal(made(x), outputs)
    np.testing.assert_array_equal(loaded(x), outputs)


def _scaled(x, factor):
  return tf.nn.tanh(x) * factor


@keras.saving.register_keras_serializable('tests')
class _Plain(keras.layers.Layer):
  """Takes no arguments, not even those of its configuration."""

  def __init__(self):
    super().__init__(name='plain')

  def call(self, x):
    return x


def test_layers_with_functions_of_the_users_own_are_copied():
  inner = keras.Sequential(
    [keras.layers.Dense(5), keras.layers.BatchNormalization()], name='inner'
  )
  layers = [
    inner,
    keras.layers.Lambda(_scaled, arguments={'factor': 2.0}),
    keras.layers.Lambda(lambda x: tf.abs(x)),
    keras.layers.Dense(3, name='head'),
  ]
  model = keras_models.bridge(keras.Sequential([keras.Input([4]), *layers]))
  weights = toy_problems.jittered(model.initial_weights)
  x = np.random.default_rng(0).normal(size=[9, 4]).astype(np.float32)
  made = keras_bridge.keras_model(model, weights)
  np.testing.assert_allclose(
    tf.nn.softmax(made.predict(x, verbose=0)),
    prediction.predict(model, weights, x),
    atol=1e-6,
  )


def test_a_layer_that_keras_cannot_copy_is_told():
  layers = [_Plain(), keras.layers.Dense(3, name='head')]
  model = keras_models.bridge(keras.Sequential([keras.Input([4]), *layers]))
  with pytest.raises(ValueError, match='cannot copy .*`predict` and a Keras'):
    keras_bridge.keras_model(model, model.initial_weights)


def test_batch_normalization_is_the_same_up_to_rounding(tmp_path):
  x = _images(50)
  model = _model(
    'cnn', x, {'filters': 2, 'widths': (5,), 'normalization': 'batch'}
  )
  weights = toy_problems.jittered(model.initial_weights)
  keras_bridge.keras_model(model, weights).save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_allclose(
    tf.nn.softmax(loaded.predict(x, verbose=0)),
    prediction.predict(model, weights, x),
    atol=1e-6,
  )


@pytest.mark.parametrize('name', ['fed_em', 'separate_fed_avg'])
def test_a_model_made_of_several_has_no_file(name, tmp_path):
  model = toy_problems.model_for(name, toy_problems.classifier())
  made = registry.build(name, model).model
  with pytest.raises(ValueError, match='SavedModel or a TFLite file can'):
    keras_bridge.keras_model(made, made.initial_weights)
  assert not list(tmp_path.iterdir())
