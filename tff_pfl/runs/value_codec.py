"""Turns values of a federated computation into bytes and back, bit for bit.

A run is resumed with exactly the numbers it was stopped with, so the run store
keeps the raw bytes of every array. Only the leaves of a value are stored. The
containers (dicts, named tuples, attrs objects, lists, tuples) come back from a
*template*: a value of the same structure, such as the one the algorithm was
initialized with. No code is ever loaded from the data, unlike with pickle.

The bytes are a line of JSON (paths, types and shapes of the leaves) and the
arrays one after the other. Their keeper sees to it that they are whole.
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
      Python or NumPy numbers, and `bytes` (without zeros at their end).

  Returns:
    The encoded leaves, to be given to `decode`. Equal values have equal bytes.

  Raises:
    TypeError: If a leaf is of another type; the message names its path.
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
      and ranks; sizes of dimensions may differ. Its numbers are not read.

  Returns:
    A value with the containers of `template` and the leaves of `data`: NumPy
    numbers, and arrays that can be written to.

  Raises:
    ValueError: If its paths, types or ranks are not those of `template`; the
      message names the first that differ.
  """
  end = data.index(b'\n') + 1
  arrays = []
  for path, dtype, shape in json.loads(data[:end]):
    array = np.ndarray(shape, np.dtype(dtype), data, end)
    arrays.append((path, array))
    end += array.nbytes
  for found, wanted in itertools.zip_longest(
    map(_describe, arrays),
    map(_describe, _leaves(template)),
    fillvalue='no more',
  ):
    errors.expect(found == wanted, 'data', wanted, found)
  return tree.unflatten_as(template, [array.copy()[()] for _, array in arrays])


def to_json(value: Any) -> Any:
  """Returns `value`, such as the metrics of a round, in the types of JSON.

  Args:
    value: Nested mappings, named tuples, attrs objects, lists and tuples of
      numbers, strings, `bytes` holding UTF-8, None, NumPy arrays and TensorFlow
      eager tensors.

  Returns:
    The same with dicts (keys as strings, in the same order), lists and Python's
    own numbers and strings. A float32 becomes the float of the same value. NaN
    and infinities stay.

  Raises:
    TypeError: If a leaf is of another type.
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

  What is not a mapping is left as it is; empty mappings are gone.
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
  """Returns the leaves as arrays; raises `TypeError` if one has no numbers."""
  leaves = []
  for path, leaf in tree.flatten_with_path(value):
    array = np.asarray(leaf)
    if array.dtype.kind not in _NUMBER_KINDS:
      wanted = f'made of numbers at {"/".join(map(str, path))}'
      raise TypeError(errors.message('value', wanted, leaf))
    leaves.append((path, array))
  return leaves


def _describe(leaf):
  """Returns, for example, ``float32 of rank 2 at head/kernel``."""
  path, array = leaf
  name = '/'.join(map(str, path))
  return f'{array.dtype.name} of rank {array.ndim} at {name}'
