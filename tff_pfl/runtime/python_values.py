"""From Python's values to those of the in-process runtime, and back.

What a caller gets has the same containers and types as from TFF's own contexts.
"""

import collections
import typing
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import values
from tff_pfl.runtime.private_api import (
  array,
  cardinalities_utils,
  tensorflow_utils,
  type_conversions,
)

_ARRAYS = typing.get_args(array.Array)


def from_python(value: Any, value_type: tff.Type) -> Any:
  """Returns the value as the runtime computes with it.

  Args:
    value: What a caller passed: tensors, arrays or numbers, in any of TFF's
      containers; data sets or lists as sequences; lists of the clients' values.

  Returns:
    A local value, a `values.ClientsValue`, or a tuple of such.

  Raises:
    TypeError: If it is not of that type.
  """
  if isinstance(value, values.Reference):
    return value
  if isinstance(value_type, tff.TensorType):
    return _tensor_from_python(value, value_type)
  if isinstance(value_type, tff.StructType):
    return _struct_from_python(value, value_type)
  if isinstance(value_type, tff.SequenceType):
    return _sequence_from_python(value, value_type)
  if isinstance(value_type, tff.FederatedType):
    return _federated_from_python(value, value_type)
  raise TypeError(
    f'Expected an argument of type {value_type}, found {value!r}.'
  )


def _tensor_from_python(value: Any, value_type: tff.TensorType) -> tf.Tensor:
  if isinstance(value, tf.Variable):
    value = value.read_value()
  if isinstance(value, tf.Tensor):
    if value.dtype == value_type.dtype.type and tf.TensorShape(
      value_type.shape
    ).is_compatible_with(value.shape):
      return value
    value = value.numpy()
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


def _struct_from_python(value: Any, value_type: tff.StructType) -> Any:
  try:
    elements = tff.structure.to_elements(tff.structure.from_container(value))
  except TypeError as error:
    raise TypeError(
      f'Expected a structure of type {value_type}, found {value!r}.'
    ) from error
  types = tff.structure.to_elements(value_type)
  if len(elements) != len(types):
    raise TypeError(
      f'Expected a structure of type {value_type}, found {len(elements)} '
      'elements.'
    )
  for (found, _), (name, _) in zip(elements, types):
    if found != name and found is not None and name is not None:
      raise TypeError(
        f'Expected a structure of type {value_type}, found the names '
        f'{[found for found, _ in elements]}.'
      )
  return tuple(
    [
      from_python(element, element_type)
      for (_, element), (_, element_type) in zip(elements, types)
    ]
  )


def _sequence_from_python(
  value: Any, value_type: tff.SequenceType
) -> values.Sequence:
  if isinstance(value, list):
    dataset = tensorflow_utils.make_data_set_from_elements(
      None, value, value_type.element
    )
    return values.Sequence(tf.data.experimental.to_variant(dataset))
  errors.expect_type(
    value, tf.data.Dataset, 'sequence', 'a `tf.data.Dataset` or a list'
  )
  element_type = tff.types.tensorflow_to_type(value.element_spec)
  if not value_type.element.is_assignable_from(element_type):
    raise TypeError(
      errors.message('sequence', f'of type {value_type}', f'{element_type}*')
    )
  _check_order(element_type)
  return values.Sequence(tf.data.experimental.to_variant(value))


def _check_order(element_type: tff.Type) -> None:
  """Raises `ValueError` if TensorFlow may order the elements in another way.

  A graph may see another container than the data set's: one that TensorFlow
  orders by name, where it orders named tuples by position.
  """
  if not isinstance(element_type, tff.StructType):
    return
  elements = tff.structure.to_elements(element_type)
  names = [name for name, _ in elements]
  if None not in names and names != sorted(names):
    errors.expect(
      element_type.python_container is collections.OrderedDict,
      'sequence',
      'of `collections.OrderedDict`s, or to have its names in sorted order',
      str(element_type),
    )
  for _, part in elements:
    _check_order(part)


def _federated_from_python(value: Any, value_type: tff.FederatedType) -> Any:
  member = value_type.member
  if value_type.placement is tff.SERVER:
    return from_python(value, member)
  if value_type.all_equal:
    return values.AllEqual(from_python(value, member))
  if not isinstance(value, (list, tuple)):
    raise cardinalities_utils.InvalidNonAllEqualValueError(value, value_type)
  return values.PerClient([from_python(row, member) for row in value])


def to_python(value: Any, value_type: tff.Type, num_clients: int) -> Any:
  """Returns a result for the caller.

  Args:
    value: What `from_python` returns.
    value_type: Its type, with Python's containers.
  """
  return tff.types.type_to_py_container(
    _to_struct(value, value_type, num_clients), value_type
  )


def _to_struct(value: Any, value_type: tff.Type, num_clients: int) -> Any:
  """Returns the value with arrays for tensors and `Struct`s for tuples."""
  if isinstance(value_type, tff.TensorType):
    return value.numpy()
  if isinstance(value_type, tff.StructType):
    types = tff.structure.to_elements(value_type)
    return tff.structure.Struct(
      [
        (name, _to_struct(element, element_type, num_clients))
        for element, (name, element_type) in zip(value, types)
      ]
    )
  if isinstance(value_type, tff.SequenceType):
    return _to_dataset(value, value_type)
  if isinstance(value_type, tff.FederatedType):
    return _federated_to_struct(value, value_type, num_clients)
  raise TypeError(f'A result of type {value_type} cannot be returned.')


def _to_dataset(
  sequence: values.Sequence, value_type: tff.SequenceType
) -> tf.data.Dataset:
  """Returns the data set for a caller, with the containers of its type."""
  with tf.device('/device:cpu:0'):
    dataset = tf.data.experimental.from_variant(
      sequence.variant,
      type_conversions.type_to_tf_structure(value_type.element),
    )
  return tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(
    dataset, value_type.element
  )


def _federated_to_struct(
  value: Any, value_type: tff.FederatedType, num_clients: int
) -> Any:
  member = value_type.member
  if value_type.placement is tff.SERVER:
    return _to_struct(value, member, num_clients)
  if value_type.all_equal:
    return _to_struct(values.shared_value(value), member, num_clients)
  return [
    _to_struct(row, member, num_clients)
    for row in values.rows(value, num_clients)
  ]
