"""Turns values of a federated computation into bytes and back, bit for bit.

A run resumes with exactly the numbers it stopped with, so the run store keeps
the raw bytes of every array. Only the leaves of a value are stored. The
containers (dicts, named tuples, attrs objects, lists, tuples) come from a
*template*: a value of the same structure, such as the algorithm's initial
state. Unlike pickle, decoding never loads code from the data.

The bytes are a line of JSON (paths, types and shapes of the leaves), followed
by the arrays. The caller must check that they are complete.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import tree

from tff_pfl import errors

# The kinds of NumPy types whose memory is the value: booleans, integers,
# unsigned integers, floating-point and complex numbers, and bytes (names of
# events, in the states of private aggregators).
_NUMBER_KINDS = 'biufcS'


def encode(value: Any) -> bytes:
  """Encodes a value.

  Args:
    value: Nested mappings (with string or integer keys), named tuples, attrs
      objects, lists and tuples of NumPy arrays, TensorFlow eager tensors,
      Python or NumPy numbers, and `bytes` (without trailing zeros).

  Returns:
    The encoded leaves, for `decode`. Equal values have equal bytes.

  Raises:
    TypeError: If a leaf has another type. The message names its path.
  """
  leaves = _leaves(value)
  index = [[path, array.dtype.str, array.shape] for path, array in leaves]
  head = f'{json.dumps(index)}\n'.encode()
  return b''.join([head, *(array.tobytes() for _, array in leaves)])


def decode(data: bytes, template: Any) -> Any:
  """Decodes the result of `encode`.

  Args:
    data: The result of `encode`.
    template: A value of the same structure, whose leaves have the same types
      and ranks. Dimension sizes may differ. Its numbers are not read.

  Returns:
    A value with the containers of `template` and the leaves of `data`: NumPy
    numbers and writable arrays.

  Raises:
    ValueError: If paths, types or ranks differ from `template`. The message
      names the first difference.
  """
  end = data.index(b'\n') + 1
  arrays = []
  for path, dtype, shape in json.loads(data[:end]):
    array = np.ndarray(shape, np.dtype(dtype), data, end)
    arrays.append((path, array))
    end += array.nbytes
  for actual, expected in itertools.zip_longest(
    map(_describe, arrays),
    map(_describe, _leaves(template)),
    fillvalue='no more',
  ):
    errors.expect(actual == expected, 'data', expected, actual)
  return tree.unflatten_as(template, [array.copy()[()] for _, array in arrays])


def to_json(value: Any) -> Any:
  """Converts a value, such as the metrics of a round, to JSON types.

  Args:
    value: Nested mappings, named tuples, attrs objects, lists and tuples of
      numbers, strings, `bytes` holding UTF-8, None, NumPy arrays and TensorFlow
      eager tensors.

  Returns:
    The value as dicts (with string keys, in the same order), lists, and Python
    numbers and strings. A float32 becomes the float of the same value. NaN and
    infinities stay.

  Raises:
    TypeError: If a leaf has another type.
  """
  if hasattr(value, '_asdict'):
    value = value._asdict()
  elif attrs.has(type(value)):
    value = attrs.asdict(value, recurse=False)
  elif hasattr(value, 'numpy'):
    value = value.numpy()
  if isinstance(value, (np.generic, np.ndarray)):
    value = value.tolist()
  if isinstance(value, Mapping):
    return {str(key): to_json(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [to_json(item) for item in value]
  if isinstance(value, bytes):
    return value.decode('utf-8')
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  raise TypeError(
    errors.message('value', 'made of numbers, strings and None', value)
  )


def flatten(value: Mapping[str, Any], separator: str = '/') -> dict[str, Any]:
  """Returns the items of nested mappings by their joined names, in order.

  Values other than mappings stay unchanged. Empty mappings are dropped.
  """
  flat = {}
  for key, item in value.items():
    if isinstance(item, Mapping):
      inner = flatten(item, separator)
      flat.update({f'{key}{separator}{name}': inner[name] for name in inner})
    else:
      flat[str(key)] = item
  return flat


def _leaves(value: Any) -> list[tuple[tuple[Any, ...], np.ndarray]]:
  """Returns the paths and arrays of the leaves, which must be numbers."""
  leaves = []
  for path, leaf in tree.flatten_with_path(value):
    array = np.asarray(leaf)
    if array.dtype.kind not in _NUMBER_KINDS:
      constraint = f'made of numbers at {"/".join(map(str, path))}'
      raise TypeError(errors.message('value', constraint, leaf))
    leaves.append((path, array))
  return leaves


def _describe(leaf):
  """Returns, for example, ``float32 of rank 2 at head/kernel``."""
  path, array = leaf
  name = '/'.join(map(str, path))
  return f'{array.dtype.name} of rank {array.ndim} at {name}'
