"""Values of `values` as what another process can be sent, and back."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import values


@dataclasses.dataclass(frozen=True)
class _Dataset:
  """A sequence: the serialized graph of its data set."""

  graph: bytes


def encode(value: Any) -> Any:
  """Returns a value with arrays for tensors."""
  if isinstance(value, tf.Tensor):
    return value.numpy()
  if isinstance(value, values.Sequence):
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=value.variant)
    return _Dataset(graph.numpy())
  return _map(encode, value)


def decode(
  value: Any, load: Optional[Callable[[values.Reference], Any]] = None
) -> Any:
  """Returns what was encoded.

  Args:
    load: Returns what a reference is to: tensors in containers that TFF knows.
      None where there are no references.
  """
  if isinstance(value, (np.ndarray, np.generic, bytes, str)):
    return tf.constant(value)
  if isinstance(value, _Dataset):
    return values.Sequence(tf.raw_ops.DatasetFromGraph(graph_def=value.graph))
  if isinstance(value, values.Reference):
    return _local_value(load(value))
  return _map(functools.partial(decode, load=load), value)


def _local_value(value: Any) -> values.LocalValue:
  if isinstance(value, tf.Tensor):
    return value
  parts = tff.structure.from_container(value)
  return tuple([_local_value(part) for part in parts])


def _map(function: Any, value: Any) -> Any:
  """Applies a function to the parts of a value."""
  if isinstance(value, tuple):
    return tuple([function(element) for element in value])
  if isinstance(value, dict):
    return {name: function(element) for name, element in value.items()}
  if isinstance(value, values.AllEqual):
    return values.AllEqual(function(value.value))
  if isinstance(value, values.PerClient):
    return values.PerClient([function(row) for row in value.values])
  if isinstance(value, values.Columns):
    return values.Columns(tuple(map(function, value.columns)))
  return value  # A reference, or None for what is not there.


def num_bytes(value: Any) -> int:
  """Returns the size of the arrays in what `encode` returned."""
  return sum(
    len(leaf.graph) if isinstance(leaf, _Dataset) else np.asarray(leaf).nbytes
    for leaf in leaves(value)
    if not isinstance(leaf, values.Reference)
  )


def references(value: Any) -> list[values.Reference]:
  """Returns the references in a value."""
  return [x for x in leaves(value) if isinstance(x, values.Reference)]


def leaves(value: Any) -> Iterator[Any]:
  """Yields the parts of a value that have no parts, without `None`."""
  if isinstance(value, dict):
    parts = value.values()
  elif isinstance(value, (tuple, list)):
    parts = value
  elif isinstance(value, values.AllEqual):
    parts = (value.value,)
  elif isinstance(value, values.PerClient):
    parts = value.values
  elif isinstance(value, values.Columns):
    parts = value.columns
  else:
    if value is not None:
      yield value
    return
  for part in parts:
    yield from leaves(part)


def of_clients(value: Any, begin: int, end: int) -> Any:
  """Returns a computation's argument for some clients.

  Args:
    value: The argument, as a `python_values.reader` returns it.
    begin: The first of the clients.
    end: The one after the last.

  Returns:
    The same structure, with None for what is the server's.
  """
  if isinstance(value, values.AllEqual):
    return value
  if isinstance(value, values.PerClient):
    return values.PerClient(list(value.values[begin:end]))
  if isinstance(value, (tuple, values.Columns)):
    return _map(functools.partial(of_clients, begin=begin, end=end), value)
  return None
