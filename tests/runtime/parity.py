"""Comparing what runtimes return, containers included."""

import attrs
import numpy as np
import tensorflow as tf


def assert_same(actual, expected):
  """Checks that two results are the same, numbers bit for bit."""
  assert_close(actual, expected, 0.0, 0.0)


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
  """Checks that two results are the same, up to rounding of floats.

  Args:
    actual: A result, of any containers that TFF returns.
    expected: The result of another runtime. Containers, names, types and shapes
      must be equal; integers, booleans and strings, too.
    rtol: Relative tolerance of floating-point numbers.
    atol: Their absolute tolerance.
  """
  for path, result, value in _pairs_of_one_type(actual, expected):
    if np.issubdtype(value.dtype, np.inexact):
      np.testing.assert_allclose(result, value, rtol, atol, err_msg=path)
    else:
      np.testing.assert_array_equal(result, value, err_msg=path)


def _pairs_of_one_type(actual, expected):
  """Yields path and both values of what is in two structures."""
  actual, expected = list(_leaves(actual)), list(_leaves(expected))
  assert [path for path, _ in actual] == [path for path, _ in expected]
  for (path, result), (_, value) in zip(actual, expected):
    assert type(result) is type(value), path
    result, value = np.asarray(result), np.asarray(value)
    assert (result.dtype, result.shape) == (value.dtype, value.shape), path
    yield path, result, value


def _leaves(value, path='result'):
  """Yields path and value of what is in a structure, and of its containers."""
  kind = type(value)
  if isinstance(value, tf.data.Dataset):
    kind = value.element_spec
    children = enumerate(value.as_numpy_iterator())
  elif attrs.has(type(value)):
    children = attrs.asdict(value, recurse=False).items()
  elif isinstance(value, dict):
    children = value.items()
  elif hasattr(value, '_asdict'):
    children = value._asdict().items()
  elif isinstance(value, (list, tuple)):
    children = enumerate(value)
  else:
    yield path, value
    return
  children = list(children)
  yield f'{path}: {kind} of {len(children)} elements', None
  for name, child in children:
    yield from _leaves(child, f'{path}.{name}')
