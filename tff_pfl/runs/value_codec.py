"""Turns values of a federated computation into bytes and back, bit for bit.

A run is resumed with exactly the numbers it was stopped with, so the run store
keeps the raw bytes of every array. Only the leaves of a value are
stored, each under its path. The containers (dicts, named tuples, attrs objects,
lists, tuples) come back from a *template*: a value of the same structure, such
as the one the algorithm was initialized with. No code is ever loaded from the
data, unlike with pickle.

The bytes are a line of JSON (paths, types and shapes of the leaves) and the
arrays one after the other. Their keeper sees to it that they are whole.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tff_pfl import errors

# The kinds of NumPy types whose memory is the value: booleans, integers,
# unsigned integers, floating-point and complex numbers, and bytes (names of
# events, in the states of private aggregators).
_NUMBER_KINDS = 'biufcS'

Path = tuple[Any, ...]


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
  leaves = [
    (path, _array(path, leaf)) for path, leaf in tree.flatten_with_path(value)
  ]
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
    A value with the containers of `template` and the leaves of `data`. A leaf
    is what it is in `template`: a NumPy array (writable, not shared with
    `data`), a NumPy or Python number or an eager tensor. Empty containers hold
    no data; they are those of `template`.

  Raises:
    ValueError: If its paths, types or ranks are not those of `template`; the
      message names the first path that differs.
  """
  stored = _read(data)
  expected = dict(tree.flatten_with_path(template))
  for path, leaf in expected.items():
    found, wanted = stored.get(path), _array(path, leaf)
    if found is None:
      wanted = f'a value with a leaf at {_name(path)}, as the template has'
      raise ValueError(errors.message('data', wanted, _listing(stored)))
    if (found.dtype, found.ndim) != (wanted.dtype, wanted.ndim):
      wanted = f'{_describe(wanted)} at {_name(path)}'
      raise ValueError(errors.message('data', wanted, _describe(found)))
  for path in stored:
    if path not in expected:
      wanted = 'a value of the structure of the template'
      found = f'{_name(path)}, which the template lacks'
      raise ValueError(errors.message('data', wanted, found))
  return tree.map_structure_with_path(
    lambda path, leaf: _restore(stored[path], leaf), template
  )


def to_json(value: Any) -> Any:
  """Returns `value`, such as the metrics of a round, in the types of JSON.

  Args:
    value: Nested mappings, named tuples, attrs objects, lists and tuples of
      numbers, strings, `bytes` holding UTF-8, None, NumPy arrays and
      TensorFlow eager tensors.

  Returns:
    The same with dicts (keys as strings, in the same order), lists and Python's
    own numbers and strings. A float32 becomes the float of the same value. NaN
    and infinities stay.

  Raises:
    TypeError: If a leaf is of another type.
  """
  if value is None or isinstance(value, (bool, int, float, str)):
    # NumPy's float64 is a float; `item` makes it a plain one.
    return value.item() if isinstance(value, np.generic) else value
  if isinstance(value, bytes):
    return value.decode('utf-8')
  if isinstance(value, Mapping):
    return {str(key): to_json(item) for key, item in value.items()}
  if hasattr(value, '_asdict'):
    return to_json(value._asdict())
  if hasattr(value, '__attrs_attrs__'):
    names = [attribute.name for attribute in value.__attrs_attrs__]
    return {name: to_json(getattr(value, name)) for name in names}
  if isinstance(value, (list, tuple)):
    return [to_json(item) for item in value]
  if hasattr(value, 'numpy'):
    return to_json(value.numpy())
  if isinstance(value, (np.generic, np.ndarray)) and (
    value.dtype.kind in 'biufSUO'
  ):
    return to_json(value.tolist())
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


def _name(path: Path) -> str:
  """Returns a path as people read it; the path of a bare leaf is empty."""
  return '/'.join(map(str, path)) if path else '(the value itself)'


def _listing(stored: Mapping[Path, np.ndarray]) -> str:
  """Returns the paths that were found, kept short for an error message."""
  names = [_name(path) for path in stored]
  more = f' and {len(names) - 5} more' if len(names) > 5 else ''
  return f'leaves at {", ".join(names[:5])}{more}' if names else 'no leaves'


def _describe(array: np.ndarray) -> str:
  """Returns, for example, ``float32 of rank 2``."""
  return f'{array.dtype.name} of rank {array.ndim}'


def _array(path: Path, leaf: Any) -> np.ndarray:
  """Returns a leaf as an array; raises `TypeError` if it holds no numbers."""
  array = np.asarray(leaf)
  if array.dtype.kind not in _NUMBER_KINDS:
    wanted = f'made of numbers at {_name(path)}'
    raise TypeError(errors.message('value', wanted, leaf))
  return array


def _read(data: bytes) -> dict[Path, np.ndarray]:
  """Returns the stored leaves as views of bytes."""
  end = data.index(b'\n') + 1
  index, stored = json.loads(data[:end]), {}
  for path, dtype, shape in index:
    dtype = np.dtype(dtype)
    start, end = end, end + math.prod(shape) * dtype.itemsize
    array = np.frombuffer(memoryview(data)[start:end], dtype).reshape(shape)
    stored[tuple(path)] = array
  return stored


def _restore(array: np.ndarray, template: Any) -> Any:
  """Returns a stored leaf as the kind of object that `template` is."""
  if isinstance(template, np.ndarray):
    return array.copy()
  if hasattr(template, 'numpy'):
    return tf.constant(array)
  return array[()] if isinstance(template, np.generic) else array.item()
