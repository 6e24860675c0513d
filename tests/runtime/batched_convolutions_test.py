import numpy as np
import pytest
import tensorflow as tf

from tests.core import shared
from tff_pfl.runtime import batched_convolutions

_NUM_CLIENTS = 3


def _values(*shape, seed):
  values = np.random.default_rng(seed).normal(size=(_NUM_CLIENTS, *shape))
  return tf.constant(values, tf.float32)


def _with_gradients(images, filters, conv2d=tf.nn.conv2d, **options):
  """A convolution, and the gradients of a loss that is not linear in it."""
  with tf.GradientTape() as tape:
    tape.watch([images, filters])
    actual = conv2d(images, filters, **options)
    loss = tf.reduce_sum(tf.sin(actual))
  return actual, *tape.gradient(loss, [images, filters])


def _together(*arguments, **options):
  return tf.vectorized_map(
    lambda each: _with_gradients(*each, **options),
    arguments,
    fallback_to_while_loop=False,
  )


_EXPLICIT = [[0, 0], [2, 0], [1, 3], [0, 0]]


@pytest.mark.parametrize(
  ('image', 'kernel', 'options', 'jit_compile'),
  [
    ((7, 6), (3, 3), {'padding': 'SAME', 'strides': 2}, False),
    ((8, 7), (3, 2), {'padding': 'VALID', 'strides': (3, 2)}, True),
    ((8, 8), (1, 1), {'padding': 'SAME', 'strides': 2}, False),
    ((9, 9), (3, 3), {'padding': 'SAME', 'dilations': 2}, True),
    ((6, 5), (3, 3), {'padding': _EXPLICIT, 'strides': 2}, False),
  ],
)
def test_clients_with_filters_of_their_own(image, kernel, options, jit_compile):
  options = {'strides': 1, **options}
  images = _values(4, *image, 2, seed=0)
  filters = _values(*kernel, 2, 3, seed=1)
  actual = tf.function(_together, jit_compile=jit_compile)(
    images, filters, **options
  )
  for i in range(_NUM_CLIENTS):
    alone = _with_gradients(images[i], filters[i], shared.conv2d, **options)
    for a, b in zip(actual, alone):
      np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-5)


def test_images_that_all_clients_share():
  images, filters = _values(4, 5, 5, 2, seed=0)[0], _values(3, 3, 2, 3, seed=1)

  def of_filters(own):
    return _with_gradients(images, own, strides=1, padding='SAME')[2]

  actual = tf.vectorized_map(of_filters, filters, fallback_to_while_loop=False)
  alone = [of_filters(own) for own in filters]
  np.testing.assert_allclose(actual, alone, rtol=1e-4, atol=1e-5)


def test_filters_that_all_clients_share_stay_tensorflows_convolution(
  monkeypatch,
):
  def fail(*_):
    raise AssertionError('Made a product of a convolution.')

  monkeypatch.setattr(batched_convolutions, '_product_of', fail)
  images, filters = _values(4, 5, 5, 2, seed=0), _values(3, 3, 2, 3, seed=1)[0]
  actual = tf.vectorized_map(
    lambda own: tf.nn.conv2d(own, filters, 1, 'SAME'),
    images,
    fallback_to_while_loop=False,
  )
  np.testing.assert_allclose(
    actual[1], tf.nn.conv2d(images[1], filters, 1, 'SAME'), rtol=1e-5, atol=1e-5
  )


def test_groups_of_channels_are_refused():
  images, filters = _values(4, 5, 5, 4, seed=0), _values(3, 3, 2, 6, seed=1)
  with pytest.raises(NotImplementedError, match='groups'):
    tf.vectorized_map(
      lambda each: tf.nn.conv2d(*each, 1, 'SAME'),
      (images, filters),
      fallback_to_while_loop=False,
    )


@pytest.mark.parametrize('dtype', [tf.bfloat16, tf.float16])
def test_layers_of_half_precision_run_together_too(dtype):
  images = tf.cast(_values(4, 6, 6, 2, seed=0), dtype)
  filters = tf.cast(_values(3, 3, 2, 3, seed=1), dtype)
  actual = _together(images, filters, strides=1, padding='SAME')
  alone = _with_gradients(images[0], filters[0], strides=1, padding='SAME')
  for a, b in zip(actual, alone):
    assert a.dtype == dtype
    np.testing.assert_allclose(
      tf.cast(a[0], tf.float32), tf.cast(b, tf.float32), rtol=0.1, atol=0.2
    )
