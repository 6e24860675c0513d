"""Models, clients and calls of the training loop that the tests here share."""

import keras
import numpy as np
import tensorflow as tf

from tff_pfl.core import client as client_lib
from tff_pfl.core import example_tensors, objectives, phases, training_loop
from tff_pfl.models import keras_bridge

layers = keras.layers


def bridge(*stack, shape, head=('head',), dtype=None, **arguments):
  """A model of layers, of which the last is called `head`."""
  keras.utils.set_random_seed(7)
  return keras_bridge.from_keras(
    keras.Sequential([keras.Input(shape, dtype=dtype), *stack]),
    head_layers=head,
    **{
      'loss': keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      'jit_compile': False,
      **arguments,
    },
  )


def slopes(number=1):
  """Outputs `w x` with the loss `(y - w x)^2`, of gradient `2 x (w x - y)`."""
  return bridge(
    layers.Dense(1, use_bias=False, name='head'),
    shape=(number,),
    loss='mse',
    metrics=['mae'],
  )


def network(jit_compile=False):
  """With every kind of layer that knows of padding or randomness."""
  # Layers draw the seeds of their weights when they are made.
  keras.utils.set_random_seed(7)
  return bridge(
    layers.Dense(8, 'tanh', name='first'),
    layers.BatchNormalization(momentum=0.5, name='norm'),
    layers.Dropout(0.25),
    layers.Dense(5, 'tanh', name='second'),
    layers.Dropout(0.25),
    layers.Dense(3, name='head'),
    shape=(6,),
    head=('second', 'head'),
    jit_compile=jit_compile,
  )


def padded(x, y, capacity=16, padding=0.0):
  """Examples padded by hand."""
  x, y = np.asarray(x), np.asarray(y)
  missing = capacity - len(y)

  def pad(value):
    rows = np.zeros([missing, *value.shape[1:]], value.dtype)
    if value.dtype.kind == 'f':
      rows += padding
    return tf.constant(np.concatenate([value, rows]))

  return example_tensors.ExampleTensors(pad(x), pad(y), tf.constant(len(y)))


def client(num_examples, seed=0, **arguments):
  """Examples of `network`."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, 6)).astype(np.float32)
  y = (x[:, 0] > 0).astype(np.int32) + (x[:, 1] > 0)
  return padded(x, y.astype(np.int32), **arguments)


def phase(optimizer='sgd', learning_rate=0.1, momentum=0.0, **arguments):
  return phases.Phase(
    phases.build_optimizer(optimizer, learning_rate, momentum), **arguments
  )


def train(model, examples, of_phase, seed=(1, 2), objective=None, weights=None):
  return training_loop.train(
    objective or objectives.joint_loss(model),
    model.initial_weights if weights is None else weights,
    examples,
    of_phase,
    tf.convert_to_tensor(seed),
    model=model,
  )


def fit_head(model, body, head, examples, of_phase, seed=(1, 2)):
  """The head after a client fitted it on the frozen body's features."""
  client = client_lib.Client(
    model,
    client_lib.Broadcast(0, 0, body, {}),
    head,
    examples,
    tf.convert_to_tensor(seed),
  )
  return client.fit_head(head, of_phase)


def tensors(weights):
  return {k: tf.constant(v) for k, v in weights.items()}


def assert_close(found, expected, rtol=1e-4, atol=1e-6):
  def compare(a, b):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)

  if hasattr(found, 'items'):
    found, expected = dict(found), dict(expected)
  tf.nest.map_structure(compare, found, expected)


def conv2d(images, filters, strides, padding, dilations=1):
  """`tf.nn.conv2d`, by filters with zeros between their weights if dilated.

  TensorFlow has the gradients of dilated convolutions on some CPUs only.
  """
  between = [0, dilations - 1]
  spread = tf.pad(
    filters[:, tf.newaxis, :, tf.newaxis],
    [[0, 0], between, [0, 0], between, [0, 0], [0, 0]],
  )
  height, width, *channels = filters.shape
  spread = tf.reshape(
    spread, [height * dilations, width * dilations, *channels]
  )
  spread = spread[: height * dilations - between[1]]
  spread = spread[:, : width * dilations - between[1]]
  return tf.nn.conv2d(images, spread, strides, padding)
