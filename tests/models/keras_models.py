"""Keras models that the tests of the bridge share, and calls of them."""

import keras
import numpy as np
import tensorflow as tf

from tff_pfl.core import objectives
from tff_pfl.models import keras_bridge, keras_graph, split_model

layers = keras.layers

NUM_CLASSES = 3
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_NUM_EXAMPLES = 12
_RATE = 0.1


def sequential(
  *stack, shape=(4,), dtype='float32', units=NUM_CLASSES, activation=None
):
  head = layers.Dense(units, activation, name='head')
  return keras.Sequential([keras.Input(shape, dtype=dtype), *stack, head])


def words(*stack, **arguments):
  """Layers on the embeddings of six words, of which 0 is padding."""
  embedding = layers.Embedding(7, 4, mask_zero=True)
  arguments = {'shape': (6,), 'dtype': 'int32', **arguments}
  return sequential(embedding, *stack, **arguments)


def ending_in_its_embedding():
  """Scores of seven words, whose embeddings are also the last kernel."""
  inputs = keras.Input((6,), dtype='int32')
  embedding = layers.ReversibleEmbedding(7, 4, name='embedding')
  features = layers.SimpleRNN(4, name='rnn')(embedding(inputs))
  return keras.Model(inputs, embedding(features, reverse=True))


def two_inputs(form=list):
  left = keras.Input((4,), name='left')
  right = keras.Input((3,), name='right')
  hidden = layers.Concatenate()([layers.Dense(5, 'relu')(left), right])
  inputs = {'right': right, 'left': left} if form is dict else [right, left]
  return keras.Model(inputs, layers.Dense(3, name='head')(hidden))


def residual(merge=lambda a, b: layers.Add()([a, b])):
  inputs = keras.Input((4,))
  first = layers.Dense(4, 'relu', name='first')(inputs)
  second = layers.Dense(4, 'relu', name='second')(first)
  outputs = layers.Dense(NUM_CLASSES, name='head')(merge(first, second))
  return keras.Model(inputs, outputs)


def called(model):
  """A subclassed model that knows its inputs."""
  model(tf.ones([1, 4]))
  return model


def jitter(model):
  """Weights away from 0 and 1, so that no weight can be mixed up unseen."""
  rng = np.random.default_rng(3)
  for variable in model.weights:
    if variable.dtype.startswith('float'):
      value = variable.numpy()
      variable.assign(value + rng.uniform(-0.3, 0.3, value.shape))
  keras_graph.update_kept_tensors(model)
  return model


def bridge(model, head_layers=('head',), **arguments):
  arguments.setdefault('loss', SPARSE)
  return keras_bridge.from_keras(model, head_layers=head_layers, **arguments)


def examples(bridged, seed=1):
  """Inputs and labels that fit a model."""
  rng = np.random.default_rng(seed)
  x = tf.nest.map_structure(
    lambda spec: _some(rng, spec, 7), bridged.element_spec['x']
  )
  spec, classifier = bridged.element_spec['y'], bridged.classifier
  if spec.dtype.is_floating and classifier is not None:
    classes = rng.integers(0, 3, [_NUM_EXAMPLES, *spec.shape[:-1]])
    return x, tf.one_hot(classes, 3)
  return x, _some(rng, spec, classifier and classifier.num_classes)


def _some(rng, spec, high):
  shape = [_NUM_EXAMPLES, *spec.shape]
  if spec.dtype.is_integer:
    return tf.constant(rng.integers(0, high, shape), spec.dtype)
  return tf.constant(rng.normal(size=shape), spec.dtype)


def tensors(bridged):
  return {k: tf.constant(v) for k, v in bridged.initial_weights.items()}


def training(seed=(1, 2), example_weights=None):
  return split_model.Mode(True, tf.constant(seed, tf.int32), example_weights)


def step_of(bridged, x, y, seed=(1, 2)):
  """The loss, gradient and statistics of a step with all examples."""
  batch = objectives.Batch(x, y, tf.ones(len(y)))
  return objectives.joint_loss(bridged)(
    tensors(bridged), batch, seed=tf.convert_to_tensor(seed)
  )


def state_of(model):
  return [
    (id(owner), key, id(value))
    for owner in (*model._flatten_layers(), *model.weights)
    for key, value in vars(owner).items()
    if key in ('call', 'value', '_moments', 'state')
    or isinstance(value, (tf.Tensor, tf.Variable, keras.Variable))
  ]


def assert_as_keras(
  model, loss=SPARSE, metrics=('accuracy',), head_layers=('head',), **arguments
):
  """Checks reports and a step of training against `evaluate` and `fit`."""
  jitter(model)
  state = state_of(model)
  bridged = bridge(
    model,
    head_layers,
    loss=loss,
    metrics=metrics,
    jit_compile=False,
    **arguments,
  )
  x, y = examples(bridged)
  weights = tensors(bridged)
  outputs, _ = bridged.forward(weights, x)
  sums = objectives.metric_sums(bridged, outputs, y, tf.ones(len(y)))
  reported = objectives.means(sums)
  step = step_of(bridged, x, y)
  assert state_of(model) == state

  optimizer = keras.optimizers.SGD(_RATE)
  model.compile(optimizer, loss, metrics=list(metrics), run_eagerly=True)
  expected = model.test_on_batch(x, y, return_dict=True)
  assert set(reported) == set(expected)
  for name, value in reported.items():
    np.testing.assert_allclose(value, expected[name], 1e-5, 1e-6)
  trained = model.train_on_batch(x, y, return_dict=True, **arguments)
  np.testing.assert_allclose(
    objectives.means(step.metrics)['loss'], trained['loss'], 1e-4
  )
  assert set(step.gradient) == set(weights) - bridged.statistics
  after = {
    **weights,
    **{k: weights[k] - _RATE * g for k, g in step.gradient.items()},
    **step.statistics,
  }
  variables, _, _ = keras_graph.name_weights(bridged.keras_graph)
  for name, variable in variables.items():
    np.testing.assert_allclose(after[name], variable, 1e-4, 1e-5, err_msg=name)
    if name in step.gradient and not name.endswith('bias'):
      assert not np.array_equal(variable, weights[name]), name
