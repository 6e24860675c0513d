"""The substitutes of operations, as LiteRT runs them."""

import numpy as np
import tensorflow as tf
from ai_edge_litert import interpreter

from tests.core import shared
from tff_pfl.export import builtin_ops, client_module
from tff_pfl.models import randomness

_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=[6, 5]).astype(np.float32)
_IMAGES = _RNG.normal(size=[2, 7, 6, 3]).astype(np.float32)
_FILTER = _RNG.normal(size=[3, 2, 3, 4]).astype(np.float32)


def _gradients(*functions):
  """The gradients of the sums of functions' squares, in one array."""

  def gradients(x):
    with tf.GradientTape(persistent=True) as tape:
      tape.watch(x)
      sums = [tf.reduce_sum(tf.square(function(x))) for function in functions]
    return tf.stack([tape.gradient(y, x) for y in sums])

  return gradients


def _check(function, x, reference=None):
  traced = client_module.traced(
    lambda **arguments: {'y': function(arguments['x'])},
    {'x': tf.TensorSpec([None, *x.shape[1:]], x.dtype)},
  )
  module = tf.Module()
  module.function = builtin_ops.substituted(traced)
  converter = tf.lite.TFLiteConverter.from_concrete_functions(
    [module.function], module
  )
  file = interpreter.Interpreter(model_content=converter.convert())
  (name,) = file.get_signature_list()
  actual = file.get_signature_runner(name)(x=x)
  (actual,) = actual.values()
  expected = (reference or function)(tf.constant(x)).numpy()
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_activations():
  functions = (
    tf.nn.relu,
    tf.nn.relu6,
    tf.nn.leaky_relu,
    tf.nn.elu,
    tf.nn.selu,
    tf.nn.softsign,
    lambda x: tf.nn.gelu(x, approximate=True),
    lambda x: tf.sqrt(1 + x * x),
  )
  _check(_gradients(*functions), 3 * _X)


def test_gradients_of_filters():
  options = (
    {'strides': 1, 'padding': 'SAME'},
    {'strides': 1, 'padding': 'VALID'},
    {'strides': 2, 'padding': 'SAME'},
    {'strides': [2, 1], 'padding': 'VALID'},
    {'strides': 1, 'padding': 'VALID', 'dilations': 2},
  )

  def gradients(x, conv2d=tf.nn.conv2d):
    # So that the converter does not know it.
    kernel = _FILTER + 0 * tf.reduce_sum(x)
    convolutions = (lambda k, one=one: conv2d(x, k, **one) for one in options)
    return _gradients(*convolutions)(kernel)

  _check(gradients, _IMAGES, lambda x: gradients(x, shared.conv2d))


def test_gradients_of_pooling():
  functions = (
    lambda x: tf.nn.max_pool2d(x, [2, 4], [2, 4], 'VALID'),
    lambda x: tf.nn.max_pool2d(x, [2, 4], [2, 4], 'SAME'),
    lambda x: tf.nn.avg_pool2d(x, [2, 4], [2, 4], 'VALID'),
  )
  # With equal values in a window.
  _check(_gradients(*functions), np.round(_IMAGES))


def test_random_integers_of_a_seed_that_is_not_known_before():
  def integers(x):
    seed = tf.shape(x) - 7
    drawn = randomness.uniform_integers(seed, [9, 3], 1000)
    return tf.cast(drawn, tf.float32)

  _check(integers, _X)


def test_bits_of_two_integers():
  x = _RNG.integers(-(2**31), 2**31, [7, 2]).astype(np.int32)
  _check(lambda x: tf.bitwise.bitwise_and(x, x[:, ::-1]), x)
