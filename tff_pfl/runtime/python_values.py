"""Conversion between Python values and runtime values.

Results have the same containers and types as results of TFF's own contexts. A
type is analyzed once, for any number of values.
"""

import collections
import math
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.runtime import base, values
from tff_pfl.system.private_api import (
  array,
  cardinalities_utils,
  type_conversions,
)

_ARRAYS = typing.get_args(array.Array)
# Arrays up to this size are stacked when they are read.
_MAX_BYTES_TO_STACK = 1 << 16


def reader(value_type: tff.Type) -> Callable[[Any], Any]:
  """Makes a function from a caller's value of a type to a runtime value.

  The function takes tensors, arrays or numbers in any of TFF's containers, data
  sets as sequences, and lists of clients' values. It returns a local value, a
  `values.ClientsValue`, or a tuple of these. It raises `TypeError` if the value
  does not have the type.
  """
  if isinstance(value_type, tff.TensorType):
    return _tensor_reader(value_type)
  if isinstance(value_type, tff.StructType):
    return _struct_reader(value_type)
  if isinstance(value_type, tff.SequenceType):
    return _sequence_reader(value_type)
  if isinstance(value_type, tff.FederatedType):
    return _federated_reader(value_type)
  raise base.unsupported(f'an argument of type {value_type}')


def _tensor_reader(value_type: tff.TensorType) -> Callable[[Any], tf.Tensor]:
  shape = tf.TensorShape(value_type.shape)
  dtype = tf.as_dtype(value_type.dtype.type)

  def read(value):
    if isinstance(value, (tf.Tensor, tf.Variable)):
      if value.dtype == dtype and shape.is_compatible_with(value.shape):
        return tf.convert_to_tensor(value)
      value = value.numpy()
    return _tensor(value, value_type)

  return read


def _tensor(value: Any, value_type: tff.TensorType) -> tf.Tensor:
  dtype = value_type.dtype.type
  if isinstance(value, (list, tuple)):
    rows = tf.nest.map_structure(_without_tensor, value)
    leaves = tf.nest.flatten(rows)
    if all(array.is_compatible_dtype(leaf, dtype) for leaf in leaves):
      value = np.asarray(rows, dtype)
  if (
    not isinstance(value, _ARRAYS)
    or not array.is_compatible_dtype(value, dtype)
    or not array.is_compatible_shape(value, value_type.shape)
  ):
    raise TypeError(
      f'Expected a value of type {value_type}, found {_describe(value)}.'
    )
  if dtype is np.str_:
    return tf.constant(value, tf.string)
  return tf.constant(np.asarray(value, dtype))


def _without_tensor(value: Any) -> Any:
  return value.numpy() if isinstance(value, tf.Tensor) else value


def _describe(value: Any) -> str:
  if isinstance(value, (np.ndarray, np.generic)):
    return f'an array of {value.dtype}, shape {list(value.shape)}'
  return f'{value!r} of {type(value)}'


def _struct_reader(value_type: tff.StructType) -> Callable[[Any], tuple]:
  elements_of = _elements_reader(value_type)
  readers = [reader(element_type) for element_type in value_type]
  return lambda value: tuple(
    [read(element) for read, element in zip(readers, elements_of(value))]
  )


def _elements_reader(
  value_type: tff.StructType,
) -> Callable[[Any], Iterable[Any]]:
  """Makes a function from a container to its elements."""
  names = [name for name, _ in tff.structure.to_elements(value_type)]

  def elements_of(value):
    # The most frequent containers need no check of each name.
    if isinstance(value, collections.OrderedDict) and list(value) == names:
      return value.values()
    if isinstance(value, tuple) and list(getattr(value, '_fields', ())) == (
      names
    ):
      return value
    return _elements(value, value_type, names)

  return elements_of


def _elements(value: Any, value_type: tff.StructType, names: list) -> list[Any]:
  """Returns the elements of any container, with their names checked."""
  try:
    elements = tff.structure.to_elements(tff.structure.from_container(value))
  except TypeError:
    elements = None
  if (
    elements is None
    or len(elements) != len(names)
    or any(
      element_name != name and None not in (element_name, name)
      for (element_name, _), name in zip(elements, names)
    )
  ):
    raise TypeError(
      f'Expected a structure of type {value_type}, found {value!r}.'
    )
  return [element for _, element in elements]


def _sequence_reader(
  value_type: tff.SequenceType,
) -> Callable[[Any], tf.Tensor]:
  structure = type_conversions.type_to_tf_structure(value_type.element)

  def read(value):
    errors.expect_type(
      value, tf.data.Dataset, 'sequence', 'a `tf.data.Dataset`'
    )
    spec = value.element_spec
    try:
      # Another container could have its elements in another order.
      tf.nest.assert_same_structure(structure, spec)
      is_of_type = value_type.element.is_assignable_from(
        tff.types.tensorflow_to_type(spec)
      )
    except (TypeError, ValueError):
      is_of_type = False
    if not is_of_type:
      raise TypeError(
        errors.message('sequence', f'of type {value_type}', f'{spec}')
      )
    return tf.data.experimental.to_variant(value)

  return read


def _federated_reader(value_type: tff.FederatedType) -> Callable[[Any], Any]:
  if value_type.placement is tff.CLIENTS and not value_type.all_equal:
    read_column = _column_reader(value_type.member)

    def read_all(value):
      if not isinstance(value, (list, tuple)):
        raise cardinalities_utils.InvalidNonAllEqualValueError(
          value, value_type
        )
      return read_column(value) if value else values.PerClient([])

    return read_all
  read = reader(value_type.member)
  if value_type.placement is tff.SERVER:
    return read
  return lambda value: values.AllEqual(read(value))


def _column_reader(
  value_type: tff.Type,
) -> Callable[[Sequence[Any]], values.ClientsValue]:
  """Makes a function from clients' values of a type to a runtime value.

  Small arrays of all clients become one tensor, at the cost of one.
  """
  if isinstance(value_type, tff.StructType):
    return _struct_column_reader(value_type)
  read = reader(value_type)
  if not isinstance(value_type, tff.TensorType):
    return lambda column: values.PerClient([read(value) for value in column])
  dtype, shape = value_type.dtype, value_type.shape
  is_small = (
    shape is not None
    and None not in shape
    and dtype.kind in 'biuf'
    and math.prod(shape) * dtype.itemsize <= _MAX_BYTES_TO_STACK
  )

  def read_column(column):
    if is_small and all(
      isinstance(value, (np.ndarray, np.generic))
      and value.dtype == dtype
      and value.shape == shape
      for value in column
    ):
      return values.Stacked(tf.constant(np.stack(column)))
    return values.PerClient([read(value) for value in column])

  return read_column


def _struct_column_reader(value_type):
  elements_of = _elements_reader(value_type)
  readers = [_column_reader(element_type) for element_type in value_type]
  read_one = reader(value_type)

  def read_column(column):
    if any(isinstance(value, values.Reference) for value in column):
      return values.PerClient(
        [
          value if isinstance(value, values.Reference) else read_one(value)
          for value in column
        ]
      )
    columns = zip(*map(elements_of, column))
    return values.Columns(
      tuple([read(column) for read, column in zip(readers, columns)])
    )

  return read_column


def writer(value_type: tff.Type) -> Callable[[Any, int], Any]:
  """Makes a function from a runtime value to a caller's value.

  The function's second argument is the number of clients.
  """
  if isinstance(value_type, tff.TensorType):
    return lambda value, _: value.numpy()
  if isinstance(value_type, tff.StructType):
    return _struct_writer(value_type)
  if isinstance(value_type, tff.FederatedType):
    return _federated_writer(value_type)
  raise base.unsupported(f'a result of type {value_type}')


def _struct_writer(value_type: tff.StructType) -> Callable[[Any, int], Any]:
  types = tff.structure.to_elements(value_type)
  names = [name for name, _ in types]
  writers = [writer(element_type) for _, element_type in types]
  make = _maker(value_type, names)
  return lambda value, num_clients: make(
    [write(element, num_clients) for write, element in zip(writers, value)]
  )


def _maker(value_type: tff.StructType, names: list) -> Callable[[list], Any]:
  """Makes a function from a structure's elements to its container."""
  container = value_type.python_container
  # An empty structure without a container is a tuple, as in TFF.
  ordered = container is collections.OrderedDict or (names and not container)
  if ordered and None not in names:
    return lambda elements: collections.OrderedDict(zip(names, elements))
  if getattr(container, '_fields', None) == tuple(names):
    return container._make
  # This is slower, but serves any container.
  return lambda elements: tff.types.type_to_py_container(
    tff.structure.Struct(zip(names, elements)), value_type
  )


def _federated_writer(
  value_type: tff.FederatedType,
) -> Callable[[Any, int], Any]:
  write = writer(value_type.member)
  if value_type.placement is tff.SERVER:
    return write
  if value_type.all_equal:
    return lambda value, num: write(values.shared_value(value), num)
  return _column_writer(value_type.member)


def _column_writer(
  value_type: tff.Type,
) -> Callable[[values.ClientsValue, int], list[Any]]:
  """Makes a function from a value at clients to a list of callers' values."""
  write = writer(value_type)

  def write_rows(value, num_clients):
    return [write(row, num_clients) for row in values.rows(value, num_clients)]

  if isinstance(value_type, tff.TensorType):

    def write_tensors(value, num_clients):
      if not isinstance(value, values.Stacked):
        return write_rows(value, num_clients)
      # Copies, so that one row does not keep the others in memory.
      return [
        row.copy() if isinstance(row, np.ndarray) else row
        for row in value.tensor.numpy()
      ]

    return write_tensors
  if not isinstance(value_type, tff.StructType):
    return write_rows
  writers = [_column_writer(element_type) for element_type in value_type]
  names = [name for name, _ in tff.structure.to_elements(value_type)]
  make = _maker(value_type, names)

  def write_columns(value, num_clients):
    if not isinstance(value, values.Columns) or not writers:
      return write_rows(value, num_clients)
    columns = [
      write(column, num_clients)
      for write, column in zip(writers, value.columns)
    ]
    return [make(list(row)) for row in zip(*columns)]

  return write_columns
