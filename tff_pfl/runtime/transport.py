"""Conversion between runtime values and messages for other processes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tree

from tff_pfl import tff_api as tff
from tff_pfl.runtime import values


@dataclasses.dataclass(frozen=True)
class _Dataset:
  """A sequence, as the serialized graph of its dataset."""

  graph: bytes


def encode(value: Any) -> Any:
  """Returns a value with arrays instead of tensors."""
  return tree.map_structure(_encode, value)


def _encode(leaf: Any) -> Any:
  if not isinstance(leaf, tf.Tensor):
    return leaf  # A reference, or None for a missing part.
  if leaf.dtype == tf.variant:
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=leaf)
    return _Dataset(graph.numpy())
  return leaf.numpy()


def decode(
  value: Any, load: Optional[Callable[[values.Reference], Any]] = None
) -> Any:
  """Decodes a value that `encode` returned.

  Args:
    value: The encoded value.
    load: Function from a reference to its value, which has tensors in
      containers that TFF knows. None if there are no references.
  """
  return tree.map_structure(functools.partial(_decode, load), value)


def _decode(load: Any, leaf: Any) -> Any:
  if isinstance(leaf, (np.ndarray, np.generic, bytes, str)):
    return tf.constant(leaf)
  if isinstance(leaf, _Dataset):
    return tf.raw_ops.DatasetFromGraph(graph_def=leaf.graph)
  if isinstance(leaf, values.Reference):
    return _local_value(load(leaf))
  return leaf


def _local_value(value: Any) -> values.LocalValue:
  if isinstance(value, tf.Tensor):
    return value
  parts = tff.structure.from_container(value)
  return tuple([_local_value(part) for part in parts])


def references(value: Any) -> list[values.Reference]:
  """Returns the references in a value."""
  return [x for x in tree.flatten(value) if isinstance(x, values.Reference)]


def client_part(value: Any, begin: int, end: int) -> Any:
  """Returns the part of a computation's argument for some clients.

  Args:
    value: The argument, as returned by a `python_values.reader`.
    begin: Index of the first client.
    end: Index after the last client.

  Returns:
    The same structure, with None for the server's values.
  """

  def part(value):
    if isinstance(value, values.AllEqual):
      return value
    if isinstance(value, values.PerClient):
      return values.PerClient(list(value.values[begin:end]))
    if isinstance(value, values.Stacked):
      return values.Stacked(value.tensor[begin:end])
    if isinstance(value, (tuple, values.Columns)):
      return None  # `traverse` visits its elements next.
    return tree.MAP_TO_NONE

  return tree.traverse(part, value)
