"""What tests of data sets share."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf


@contextlib.contextmanager
def one_line_error(match, error=ValueError):
  """Expects an error whose message is one line."""
  with pytest.raises(error, match=match) as caught:
    yield
  assert '\n' not in str(caught.value)


def arrays(n=60, num_classes=3):
  """Inputs, each of which tells its own index, and labels in turn."""
  numbers = np.arange(n)
  return numbers[:, np.newaxis].astype(np.float64), numbers % num_classes


def idx(array):
  """The content of an idx file of bytes."""
  sizes = np.array(array.shape, '>u4').tobytes()
  return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def spec(*shape, x=tf.float32, domain=False):
  """The spec of examples with class labels."""
  ids = {
    'y': tf.TensorSpec([], tf.int32),
    'domain': tf.TensorSpec([], tf.int32),
  }
  names = ['y', 'domain'] if domain else ['y']
  return {'x': tf.TensorSpec(shape, x), **{name: ids[name] for name in names}}
