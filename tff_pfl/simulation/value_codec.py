"""Turns values of a federated computation into bytes and back, bit for bit.

A run is resumed with exactly the numbers it was stopped with, so what the run
store keeps are the raw bytes of every array. Only the leaves of a value are
stored, each under its path. The containers (dicts, named tuples, attrs objects,
lists, tuples) come back from a *template*: a value of the same structure, such
as the one the algorithm was initialized with. No code is ever loaded from the
data, unlike with pickle.

The layout is: magic, CRC-32 of all that follows, length of the header, header,
payload. The header is JSON and lists for each leaf its path, kind, shape and
number of bytes in the payload.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tree

from tff_pfl import errors

_MAGIC = b'TFFPFL1\n'
# CRC-32 of what follows it, then the number of bytes of the header.
_PREAMBLE = struct.Struct('<IQ')
_BYTES = 'bytes'
_NONE = 'none'
# The kinds of NumPy types whose memory is the value: booleans, integers,
# unsigned integers, floating-point and complex numbers.
_NUMBER_KINDS = 'biufc'

Path = tuple[Any, ...]


class _Leaf(NamedTuple):
  """What the header says of a leaf, and where its bytes are."""

  kind: str
  shape: tuple[int, ...]
  payload: bytes

  def describe(self) -> str:
    """Returns, for example, ``float32 of rank 2``."""
    if self.kind == _NONE:
      return 'None'
    name = self.kind if self.kind == _BYTES else np.dtype(self.kind).name
    return f'{name} of rank {len(self.shape)}'


def encode(value: Any) -> bytes:
  """Encodes a value.

  Args:
    value: Nested mappings (with string or integer keys), named tuples, attrs
      objects, lists and tuples of NumPy arrays, TensorFlow eager tensors,
      Python or NumPy numbers, `bytes`, arrays of `bytes`, and None.

  Returns:
    The encoded leaves, to be given to `decode`.

  Raises:
    TypeError: If a leaf is of another type; the message names its path.
  """
  entries = []
  payloads = []
  for path, leaf in _flatten(value):
    leaf = _read(path, leaf)
    entries.append([path, leaf.kind, leaf.shape, len(leaf.payload)])
    payloads.append(leaf.payload)
  header = json.dumps(entries, separators=(',', ':')).encode()
  content = b''.join([header, *payloads])
  preamble = _PREAMBLE.pack(zlib.crc32(content), len(header))
  return b''.join([_MAGIC, preamble, content])


def decode(data: bytes, template: Any) -> Any:
  """Decodes what `encode` has made.

  Args:
    data: The result of `encode`.
    template: A value of the same structure, whose leaves have the same types
      and ranks; sizes of dimensions may differ. Its numbers are not read.

  Returns:
    A value with the containers of `template` and the leaves of `data`. A leaf
    is what it is in `template`: a NumPy array (writable, not shared with
    `data`), a NumPy or Python number, `bytes`, an eager tensor or None. Empty
    containers hold no data; they are those of `template`.

  Raises:
    ValueError: If `data` is damaged, or its paths, types or ranks are not those
      of `template`; the message names the first path that differs.
    TypeError: If `template` has a leaf of a type that `encode` does not take.
  """
  leaves = _split(data)
  expected = dict(_flatten(template))
  for path, leaf in expected.items():
    errors.expect(
      path in leaves,
      'data',
      f'a value with a leaf at {_name(path)}, as the template has',
      _Listing(leaves),
    )
    stored = leaves[path].describe()
    wanted = _read(path, leaf, with_payload=False).describe()
    errors.expect(
      stored == wanted, 'data', f'{wanted} at {_name(path)}', stored
    )
  for path in leaves:
    errors.expect(
      path in expected,
      'data',
      'a value of the structure of the template',
      f'{_name(path)}, which the template lacks',
    )
  return tree.map_structure_with_path(
    lambda path, leaf: _restore(leaves[path], leaf), template
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
  """Returns nested mappings as one dict.

  Args:
    value: Nested mappings; what is not a mapping is left as it is.
    separator: What joins the names of a mapping and of an item in it.

  Returns:
    The items by their joined names, in the same order. Empty mappings are
    gone.
  """
  flat = {}
  for key, item in value.items():
    if isinstance(item, Mapping):
      inner = flatten(item, separator)
      flat.update({f'{key}{separator}{name}': inner[name] for name in inner})
    else:
      flat[str(key)] = item
  return flat


class _Listing:
  """The paths of leaves, kept short in an error message."""

  def __init__(self, leaves: dict[Path, _Leaf]):
    self._leaves = leaves

  def __repr__(self) -> str:
    names = [_name(path) for path in self._leaves]
    more = f' and {len(names) - 5} more' if len(names) > 5 else ''
    return f'leaves at {", ".join(names[:5])}{more}' if names else 'no leaves'


def _name(path: Path) -> str:
  """Returns a path as people read it; the path of a bare leaf is empty."""
  return '/'.join(map(str, path)) if path else '(the value itself)'


def _flatten(value: Any) -> list[tuple[Path, Any]]:
  """Returns paths and leaves; a path is the same for a dict or named tuple."""
  leaves = tree.flatten_with_path(value)
  for path, _ in leaves:
    for key in path:
      errors.expect_type(
        key, (str, int), 'value', 'nested in keys that are strings or integers'
      )
  return leaves


def _read(path: Path, leaf: Any, with_payload: bool = True) -> _Leaf:
  """Returns the kind, the shape and, if asked for, the bytes of a leaf."""
  if leaf is None:
    return _Leaf(_NONE, (), b'')
  if hasattr(leaf, 'numpy'):
    leaf = leaf.numpy()
  if isinstance(leaf, bytes):
    return _Leaf(_BYTES, (), leaf)
  if isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic)):
    array = np.asarray(leaf)
    if array.dtype.kind in _NUMBER_KINDS:
      payload = array.tobytes() if with_payload else b''
      return _Leaf(array.dtype.str, array.shape, payload)
    items = array.ravel().tolist()
    if array.dtype.kind in 'OS' and all(isinstance(x, bytes) for x in items):
      lengths = np.array([len(item) for item in items], np.int64)
      payload = b''.join([lengths.tobytes(), *items])
      return _Leaf(_BYTES, array.shape, payload)
  raise TypeError(
    errors.message(
      'value',
      f'made of numbers, bytes and None at {_name(path)}',
      leaf,
    )
  )


def _split(data: bytes) -> dict[Path, _Leaf]:
  """Checks encoded data and returns its leaves by path."""
  errors.expect_type(data, bytes, 'data', 'bytes')
  start = len(_MAGIC) + _PREAMBLE.size
  errors.expect(
    data.startswith(_MAGIC) and len(data) >= start,
    'data',
    'an encoded value',
    data[:16],
  )
  checksum, header_size = _PREAMBLE.unpack_from(data, len(_MAGIC))
  view = memoryview(data)
  errors.expect(
    zlib.crc32(view[start:]) == checksum,
    'data',
    'an undamaged encoded value',
    'another checksum',
  )
  position = start + header_size
  leaves = {}
  for path, kind, shape, size in json.loads(data[start:position]):
    payload = view[position : position + size]
    leaves[tuple(path)] = _Leaf(kind, tuple(shape), payload)
    position += size
  return leaves


def _restore(stored: _Leaf, template: Any) -> Any:
  """Returns the stored leaf as the kind of object that `template` is."""
  if stored.kind == _NONE:
    return None
  if stored.kind == _BYTES:
    if isinstance(template, bytes):
      return bytes(stored.payload)
    array = _restore_bytes(stored)
  else:
    # A copy, for an array made of `bytes` cannot be written to.
    array = np.frombuffer(stored.payload, np.dtype(stored.kind)).copy()
    array = array.reshape(stored.shape)
  if isinstance(template, np.ndarray):
    return array
  if hasattr(template, 'numpy'):
    # Imported here so that whoever keeps to NumPy does not wait for it.
    import tensorflow as tf

    return tf.constant(array)
  if isinstance(template, np.generic):
    return array[()]
  return array.item()


def _restore_bytes(stored: _Leaf) -> np.ndarray:
  """Returns an array of `bytes` objects."""
  if not stored.shape:
    return np.array(bytes(stored.payload), dtype=object)
  count = int(np.prod(stored.shape))
  lengths = np.frombuffer(stored.payload, np.int64, count)
  ends = np.cumsum(lengths) + lengths.nbytes
  array = np.empty(count, dtype=object)
  for i, (end, length) in enumerate(zip(ends, lengths)):
    array[i] = bytes(stored.payload[end - length : end])
  return array.reshape(stored.shape)
