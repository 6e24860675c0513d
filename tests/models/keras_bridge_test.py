"""Weights, layers and files of a Keras model and its bridge."""

import os
import warnings
from concurrent import futures

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tests.models import keras_models
from tff_pfl import errors
from tff_pfl.core import objectives
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.models import (
  augmentation,
  copies,
  keras_bridge,
  prediction,
  split_model,
  weight_files,
  zoo,
)

layers = keras.layers
sequential = keras_models.sequential


# Outputs of layers.


def test_layer_outputs_are_those_of_the_weights_given():
  bridged = keras_models.bridge(
    sequential(
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


def test_layers_within_or_used_twice_or_of_several_outputs_give_theirs():
  inputs = keras.Input((5, 4))
  # Another model uses it, too.
  shared = layers.Dense(4, name='shared')
  shared(keras.Input((4,)))
  base = keras.Sequential(
    [keras.Input((5, 4)), layers.Dense(4, 'tanh', name='inner')], name='base'
  )
  lstm = layers.LSTM(4, return_sequences=True, return_state=True, name='lstm')
  first = shared(inputs)
  sequence, hidden, cell = lstm(base(first))
  second = shared(sequence)
  joined = layers.Concatenate()([layers.Flatten()(second), hidden, cell])
  model = keras.Model(inputs, layers.Dense(3, name='head')(joined))
  expected = keras.Model(
    inputs, {'shared': [first, second], 'lstm': [sequence, hidden, cell]}
  )
  bridged = keras_models.bridge(keras_models.jitter(model))
  x, _ = keras_models.examples(bridged)
  outputs = bridged.layer_outputs(bridged.initial_weights, x)
  assert list(outputs) == ['shared', 'base/inner', 'lstm', 'head']
  for name, values in expected(x).items():
    for own, value in zip(outputs[name], values, strict=True):
      np.testing.assert_allclose(own, value, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
    outputs['base/inner'], base(shared(x)), rtol=1e-5, atol=1e-6
  )


# Purity.


def test_calls_leave_the_keras_model_as_it_was():
  model = sequential(layers.Dense(6), layers.BatchNormalization())
  x = tf.random.stateless_normal([6, 4], [1, 2])
  before = model(x).numpy()
  bridged = keras_models.bridge(model)
  state = keras_models.state_of(model)
  other = {k: v + 1 for k, v in bridged.initial_weights.items()}
  bridged.forward(other, x, keras_models.training())
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
    bridged.forward(other, tf.ones([2, 17]), keras_models.training())
  assert keras_models.state_of(model) == state
  np.testing.assert_array_equal(model(x), before)
  model.compile('sgd', keras_models.SPARSE)
  model.fit(x, tf.zeros([6]), verbose=0)
  assert not np.allclose(model(x), before)


def test_regularizers_add_to_the_gradient_and_not_to_the_metrics():
  plain, regularized = (
    keras_models.bridge(
      sequential(layers.Dense(2, name='dense', kernel_regularizer=regularizer))
    )
    for regularizer in (None, keras.regularizers.L1L2(0.25, 0.5))
  )
  kernel = np.array([[1, -2], [3, 4], [-5, 6], [7, 8]], np.float32)
  weights = {**keras_models.tensors(plain), 'dense/kernel': tf.constant(kernel)}
  batch = objectives.Batch(tf.ones([2, 4]), tf.constant([0, 1]), tf.ones([2]))
  without, output = (
    objectives.joint_loss(model)(weights, batch, seed=None)
    for model in (plain, regularized)
  )
  np.testing.assert_array_equal(output.metrics['loss'], without.metrics['loss'])
  for name, value in without.gradient.items():
    # L1L2: 0.25 |w| + 0.5 w^2.
    more = 0.25 * np.sign(kernel) + kernel if name == 'dense/kernel' else 0
    np.testing.assert_allclose(
      output.gradient[name] - value, np.zeros(value.shape) + more, atol=1e-5
    )
  # A frozen part is not pulled; copies are, each for itself.
  head = {k: v for k, v in weights.items() if k.startswith('head/')}
  features = batch._replace(x=tf.ones([2, 2]))
  output = objectives.prediction_loss(regularized, regularized.head)(
    head, features, seed=None
  )
  assert set(output.gradient) == set(head)
  both = copies.Copies(regularized, ('a', 'b'))
  assert set(both.trained.regularizers) == {'a/dense/kernel', 'b/dense/kernel'}


def test_what_keeps_a_tensor_trains():
  one, rate, is_kept = tf.ones([]), 0.1, tf.constant(True)
  kernels = []
  for regularizer in (None, keras.regularizers.L1(0.25)):
    network = sequential(
      layers.Dense(2, name='dense', kernel_regularizer=regularizer)
    )
    for variable in network.weights:
      variable.assign(keras.ops.full(variable.shape, -2.0))
    model = augmentation.augmented(
      keras_models.bridge(network),
      lambda x, seed: tf.where(is_kept, x * one, 0.0),
    )
    hparams = {'num_steps': 1, 'learning_rate': rate}
    process = toy_problems.full_batches('fed_avg', model, **hparams)
    state, states = process.initialize(), [process.initialize_client_state(0)]
    x = np.ones([3, 4], np.float32)
    examples = examples_lib.Examples(x, np.zeros([3], np.int32))
    state = process.next(state, states, toy_problems.padded([examples])).state
    kernels.append(state.global_weights['dense/kernel'])
    # A new client does the same alone.
    alone = toy_problems.full_batches('local_only', model, **hparams)
    personal = toy_problems.new_client(alone, alone.initialize(), examples)
    np.testing.assert_allclose(
      personal.weights['dense/kernel'], kernels[-1], rtol=1e-5
    )
  np.testing.assert_allclose(kernels[1], kernels[0] + rate * 0.25, rtol=1e-5)


def test_adapted_means_are_weights(tmp_path):
  x = np.random.default_rng(0).normal(7, 3, size=[20, 4]).astype(np.float32)

  def make(x):
    norm = layers.Normalization(name='norm')
    norm.adapt(x)
    # A model within a model.
    inner = keras.Sequential([keras.Input((4,)), norm, layers.Dense(3)])
    return sequential(inner)

  model = keras_models.bridge(make(x))
  weights = model.initial_weights
  expected, _ = model.forward(weights, x, split_model.INFERENCE)
  made = keras_bridge.keras_model(model, weights)
  np.testing.assert_allclose(made(x), expected, rtol=1e-5)
  # A model that was adapted to other examples.
  network = make(x - 5)
  own = network(x).numpy()
  path, parts = tmp_path / 'model.keras', tmp_path / 'model.weights.h5'
  keras_bridge.save_keras(path, model, weights)
  made.save_weights(parts)
  for file in (path, parts):
    other = weight_files.with_weights(keras_models.bridge(network), str(file))
    outputs, _ = other.forward(other.initial_weights, x, split_model.INFERENCE)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)
    np.testing.assert_array_equal(network(x), own)
  keras_bridge.to_keras(network, weights)
  np.testing.assert_allclose(network(x), expected, rtol=1e-5)


# Compilation.


@pytest.mark.parametrize(
  'stack, shape, has_convolutions',
  [
    (lambda: [layers.Dense(3)], (4,), False),
    (lambda: [layers.Conv1D(3, 2), layers.Flatten()], (4, 2), True),
    (lambda: [layers.DepthwiseConv2D(2), layers.Flatten()], (4, 4, 2), True),
  ],
)
def test_auto_compiles_unless_there_are_convolutions(
  stack, shape, has_convolutions
):
  bridged = keras_models.bridge(sequential(*stack(), shape=shape))
  assert bridged.uses_xla != has_convolutions
  asked = keras_models.bridge(
    sequential(*stack(), shape=shape), jit_compile=has_convolutions
  )
  assert asked.uses_xla == has_convolutions


# Back to Keras.


def test_weights_go_back_to_keras_by_their_names():
  def make():
    backbone = keras.Sequential(
      [keras.Input((4,)), layers.Dense(4, name='inner')], name='backbone'
    )
    return sequential(backbone, layers.BatchNormalization(name='norm'))

  bridged = keras_models.bridge(make())
  weights = {k: v + 1 for k, v in bridged.initial_weights.items()}
  x = tf.ones([2, 4])
  other = make()
  keras_bridge.to_keras(other, weights)
  np.testing.assert_allclose(
    other(x), bridged.forward(weights, x)[0], rtol=1e-5
  )
  for name, reason in (
    ('inner/kernel', '`weights` .*backbone/inner/kernel'),
    ('backbone/inner/kernel', r"shape \(4, 4\) for 'backbone/inner"),
  ):
    with pytest.raises(ValueError, match=reason):
      keras_bridge.to_keras(other, {name: 0})


def _images(number):
  x = np.random.default_rng(0).normal(size=[number, 8, 8, 1])
  return x.astype(np.float32)


def _words(number):
  return np.random.default_rng(0).integers(0, 20, [number, 6], np.int32)


_CNN = {'filters': 2, 'widths': (5,)}


@pytest.mark.parametrize(
  'name, x, arguments, tolerance',
  [
    ('cnn', _images(50), _CNN, 0),
    # Keras normalizes by another kernel.
    ('cnn', _images(50), {**_CNN, 'normalization': 'batch'}, 1e-6),
    ('text_mlp', _words(50), {'vocabulary_size': 20, 'embedding_size': 3}, 0),
  ],
)
def test_a_keras_model_and_its_file_predict_with_the_weights_given(
  name, x, arguments, tolerance, tmp_path
):
  spec = examples_lib.element_spec(tf.TensorSpec(x.shape[1:], x.dtype))
  model = zoo.make_model(name, spec, 4, **arguments)
  weights = toy_problems.jittered(model.initial_weights)
  before = model.keras_graph.model.get_weights()
  keras_bridge.save_keras(tmp_path / 'model.keras', model, weights)
  toy_problems.assert_same(model.keras_graph.model.get_weights(), before)
  made = keras_bridge.keras_model(model, weights)
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  outputs = loaded.predict(x, batch_size=len(x), verbose=0)
  np.testing.assert_allclose(
    model.classifier.probabilities(outputs),
    prediction.predict(model, weights, x),
    rtol=0,
    atol=tolerance,
  )
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    np.testing.assert_allclose(made(x), outputs, rtol=tolerance)
    np.testing.assert_allclose(loaded(x), outputs, rtol=tolerance)


def test_threads_make_models_with_the_weights_given_to_each():
  model = keras_models.bridge(sequential())
  before = model.keras_graph.model.get_weights()
  several = [
    {
      name: np.full_like(value, n)
      for name, value in model.initial_weights.items()
    }
    for n in range(20)
  ]

  def make(weights):
    made = keras_bridge.keras_model(model, weights)
    return {value.mean() for value in made.get_weights()}

  with futures.ThreadPoolExecutor(10) as executor:
    assert list(executor.map(make, several)) == [{n} for n in range(20)]
  toy_problems.assert_same(model.keras_graph.model.get_weights(), before)


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(
  tmp_path, monkeypatch
):
  model = keras_models.bridge(sequential())
  path = tmp_path / 'model.keras'
  keras_bridge.save_keras(path, model, model.initial_weights)
  content = path.read_bytes()

  def full(*arguments):
    raise OSError('no space left')

  monkeypatch.setattr('zipfile.ZipFile.writestr', full)
  with pytest.raises(errors.RunError, match='model.keras: no space'):
    keras_bridge.save_keras(path, model, model.initial_weights)
  assert path.read_bytes() == content
  assert os.listdir(tmp_path) == [path.name]


def _scaled(x, factor):
  return tf.nn.tanh(x) * factor


def test_layers_with_functions_of_the_users_own_are_copied():
  inner = keras.Sequential(
    [layers.Dense(5), layers.BatchNormalization()], name='inner'
  )
  model = keras_models.bridge(
    sequential(
      inner,
      layers.Lambda(_scaled, arguments={'factor': 2.0}),
      layers.Lambda(lambda x: tf.abs(x)),
    )
  )
  weights = toy_problems.jittered(model.initial_weights)
  x = np.random.default_rng(0).normal(size=[9, 4]).astype(np.float32)
  made = keras_bridge.keras_model(model, weights)
  np.testing.assert_allclose(
    tf.nn.softmax(made(x)), prediction.predict(model, weights, x), atol=1e-6
  )


def test_a_model_made_of_several_has_no_file():
  both = copies.components(keras_models.bridge(sequential()), 2)
  made = copies.mixture(both, copies.drawn_apart(both, seed=0))
  with pytest.raises(ValueError, match='weights of its Keras model'):
    keras_bridge.keras_model(made, made.initial_weights)
