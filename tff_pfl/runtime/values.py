"""Values of the in-process runtime.

A local value belongs to one party:

* A tensor is an eager `tf.Tensor`.
* A structure is a plain tuple of local values, in the order of its type, which
  has the names.
* A sequence is its dataset as a scalar tensor of dtype variant.
* A value that only the party's own process has is a `Reference`.

A value at the server is a local value. A value at clients is stored by columns:
`AllEqual`, `PerClient`, `Stacked` or `Columns` of these. So zipping,
broadcasting and selecting cost the same for any number of clients.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Union

import attrs
import tensorflow as tf

# A `tf.Tensor`, a `Reference` or a tuple of local values.
LocalValue = Any


@dataclasses.dataclass(frozen=True)
class Reference:
  """A client's argument that is loaded in the client's process.

  Attributes:
    source: Identifies the argument's mapping (see `base.Runtime.share`).
    key: The argument's key in the mapping.
  """

  source: Any
  key: Any


# `tree` treats these four as structures, unlike `Reference`.
@attrs.frozen
class AllEqual:
  """The same local value at every client."""

  value: LocalValue

  def select(self, index: int) -> 'AllEqual':
    """Returns element `index` of the clients' structures."""
    return AllEqual(self.value[index])


@attrs.frozen
class PerClient:
  """One local value for each client.

  Attributes:
    values: The local values in the clients' order.
  """

  values: Sequence[LocalValue]

  def select(self, index: int) -> 'PerClient':
    """Returns element `index` of the clients' structures."""
    return PerClient([value[index] for value in self.values])


@attrs.frozen
class Stacked:
  """Clients' tensors of equal shapes, stored as one tensor.

  Attributes:
    tensor: `[clients, ...]`, on the device where it was computed.
  """

  tensor: tf.Tensor


@attrs.frozen
class Columns:
  """A structure at each client, stored as a structure of values at clients."""

  columns: tuple['ClientsValue', ...]

  def select(self, index: int) -> 'ClientsValue':
    """Returns element `index` of the clients' structures."""
    return self.columns[index]


ClientsValue = Union[AllEqual, PerClient, Stacked, Columns]


def rows(value: ClientsValue, num_clients: int) -> list[LocalValue]:
  """Returns the local value of each client, in the clients' order."""
  if isinstance(value, Columns):
    columns = [rows(column, num_clients) for column in value.columns]
    return list(zip(*columns)) if columns else [()] * num_clients
  if isinstance(value, AllEqual):
    return [value.value] * num_clients
  if isinstance(value, Stacked):
    # One copy from another device instead of one per client.
    with tf.device('CPU'):
      return tf.unstack(tf.identity(value.tensor), num_clients)
  return list(value.values)


def flat_columns(
  value: ClientsValue,
) -> list[Union[AllEqual, Stacked, Sequence[tf.Tensor]]]:
  """Returns the tensors of a value at clients, in the order of its type.

  Each is an `AllEqual` or `Stacked` tensor, or a list of the clients' tensors.
  """
  if isinstance(value, Columns):
    return [flat for column in value.columns for flat in flat_columns(column)]
  if isinstance(value, AllEqual):
    return [AllEqual(tensor) for tensor in flatten(value.value)]
  if isinstance(value, Stacked):
    return [value]
  return [list(column) for column in zip(*map(flatten, value.values))]


def is_stacked(value: ClientsValue) -> bool:
  """Returns True if all tensors are stacked or shared, but not all shared."""
  columns = value.columns if isinstance(value, Columns) else (value,)
  return not is_all_equal(value) and all(
    isinstance(column, (AllEqual, Stacked))
    or isinstance(column, Columns)
    and (is_all_equal(column) or is_stacked(column))
    for column in columns
  )


def is_all_equal(value: ClientsValue) -> bool:
  """Returns True if the value is stored once for all clients."""
  if isinstance(value, Columns):
    return all(map(is_all_equal, value.columns))
  return isinstance(value, AllEqual)


def shared_value(value: ClientsValue) -> LocalValue:
  """Returns the clients' common local value if the value `is_all_equal`."""
  if isinstance(value, Columns):
    return tuple(map(shared_value, value.columns))
  return value.value


def zip_columns(value: Any) -> ClientsValue:
  """Zips nested tuples of values at clients into one value at clients."""
  if isinstance(value, tuple):
    return Columns(tuple(map(zip_columns, value)))
  return value


def flatten(value: LocalValue) -> list[tf.Tensor]:
  """Returns the tensors of a local value, in the order of its type."""
  flat = []
  _flatten(value, flat)
  return flat


def _flatten(value: LocalValue, flat: list[tf.Tensor]) -> None:
  if isinstance(value, tuple):
    for element in value:
      _flatten(element, flat)
  else:
    flat.append(value)
