"""Sequences (datasets) while the in-process runtime computes."""

import collections
import threading
import weakref
from typing import Any, NamedTuple, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.impl.types import type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from tff_pfl import errors
from tff_pfl.runtime import determinism, values

# `tf.data.experimental.ExternalStatePolicy`: refuse data sets that draw random
# numbers or call Python.
_FAIL_ON_EXTERNAL_STATE = 2
# TensorFlow's classes of data sets that hold tensors and run no function.
_PLAIN_DATASETS = frozenset(
  {
    '_TensorDataset',
    '_TensorSliceDataset',
    '_BatchDataset',
    '_ConcatenateDataset',
    '_PrefetchDataset',
    '_RepeatDataset',
    '_SkipDataset',
    '_TakeDataset',
  }
)


def from_python(
  value: Union[tf.data.Dataset, list[Any]], sequence_type: tff.SequenceType
) -> values.Sequence:
  """Returns the sequence of a data set, or of a list of elements.

  Args:
    value: The data set or list.
    sequence_type: What it must be.

  Raises:
    TypeError: If it is not of that type.
  """
  if isinstance(value, list):
    dataset = tensorflow_utils.make_data_set_from_elements(
      None, value, sequence_type.element
    )
    return values.Sequence(tf.data.experimental.to_variant(dataset))
  errors.expect_type(
    value, tf.data.Dataset, 'sequence', 'a `tf.data.Dataset` or a list'
  )
  element_type = tff.types.tensorflow_to_type(value.element_spec)
  if not sequence_type.element.is_assignable_from(element_type):
    raise TypeError(
      errors.message('sequence', f'of type {sequence_type}', f'{element_type}*')
    )
  _check_order(element_type)
  return values.Sequence(tf.data.experimental.to_variant(value), value)


def _check_order(element_type: tff.Type) -> None:
  """Raises `ValueError` if TensorFlow may order the elements in another way.

  A graph may see another container than the data set's: one that TensorFlow
  orders by name, where it orders named tuples by position.
  """
  if not isinstance(element_type, tff.StructType):
    return
  elements = structure.to_elements(element_type)
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


def to_dataset(
  sequence: values.Sequence, sequence_type: tff.SequenceType
) -> tf.data.Dataset:
  """Returns the dataset for a caller, with the containers of its type."""
  element_type = sequence_type.element
  with tf.device('/device:cpu:0'):
    dataset = tf.data.experimental.from_variant(
      sequence.variant, type_conversions.type_to_tf_structure(element_type)
    )
  return tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(
    dataset, element_type
  )


def is_deterministic(dataset: tf.data.Dataset) -> bool:
  """Whether a data set surely yields the same elements each time it is read.

  Args:
    dataset: Any data set. One that shuffles, draws random numbers, calls Python
      or reads files is not deterministic, however it is seeded.
  """
  if dataset.options().deterministic is False:
    return False
  if _is_plain(dataset):
    return True
  try:
    graph = tf.raw_ops.DatasetToGraphV2(
      input_dataset=tf.data.experimental.to_variant(dataset),
      external_state_policy=_FAIL_ON_EXTERNAL_STATE,
    )
    graph_def = tf.compat.v1.GraphDef.FromString(graph.numpy())
  except (tf.errors.OpError, ValueError):
    return False  # It cannot be serialized, so nothing is known about it.
  return determinism.is_deterministic(graph_def)


def _is_plain(dataset: tf.data.Dataset) -> bool:
  """Whether the data set's classes alone tell that it is deterministic.

  Saves writing all its tensors into a graph.
  """
  return type(dataset).__name__ in _PLAIN_DATASETS and all(
    map(_is_plain, dataset._inputs())
  )


class _Entry(NamedTuple):
  dataset: weakref.ref
  result: values.LocalValue
  num_bytes: int


class DatasetCache:
  """What clients computed from their data sets alone, bounded in bytes.

  A program passes the same `tf.data.Dataset` object whenever it samples a
  client. What a deterministic function makes of a deterministic data set is
  kept while that object lives, so that it is not read again.
  """

  def __init__(self, max_bytes: int = 2**30):
    """Makes an empty cache.

    Args:
      max_bytes: How much it may hold, at least 0, which switches it off; what
        has not been asked for longest is dropped.

    Raises:
      ValueError: If it is negative.
    """
    errors.expect(max_bytes >= 0, 'max_bytes', 'at least 0', max_bytes)
    self._max_bytes = max_bytes
    self._lock = threading.Lock()
    self._num_bytes = 0
    # From a data set's id and a function's content hash, oldest use first.
    self._entries: dict[tuple[int, str], _Entry] = collections.OrderedDict()
    # The keys of data sets that are gone.
    self._dead = collections.deque()
    self._is_deterministic = weakref.WeakKeyDictionary()

  def __len__(self) -> int:
    """The number of results it holds."""
    return len(self._entries)

  @property
  def num_bytes(self) -> int:
    """How much it holds."""
    return self._num_bytes

  @property
  def is_on(self) -> bool:
    """Whether it keeps anything."""
    return self._max_bytes > 0

  def find(
    self, content_hash: str, dataset: tf.data.Dataset
  ) -> Optional[values.LocalValue]:
    """Returns what a function made of a data set; None if it must be read.

    Args:
      content_hash: Of the deterministic function.
      dataset: The data set.
    """
    key = (id(dataset), content_hash)
    with self._lock:
      entry = self._entries.get(key)
      # Another data set may have had the same id before.
      if entry is None or entry.dataset() is not dataset:
        return None
      self._entries.move_to_end(key)
    # Looking into a data set takes time, and pays once it is passed again.
    if dataset not in self._is_deterministic:
      self._is_deterministic[dataset] = is_deterministic(dataset)
    if self._is_deterministic[dataset]:
      return entry.result
    with self._lock:
      self._drop(key)
    return None

  def keep(
    self,
    content_hash: str,
    dataset: tf.data.Dataset,
    result: values.LocalValue,
  ) -> None:
    """Remembers what a deterministic function made of a data set."""
    num_bytes = values.num_bytes(result)
    if (
      num_bytes > self._max_bytes
      or values.contains_sequence(result)
      or not self._is_deterministic.get(dataset, True)
    ):
      return
    key = (id(dataset), content_hash)
    reference = weakref.ref(dataset, lambda _: self._on_death(key))
    with self._lock:
      self._drop(key)
      self._entries[key] = _Entry(reference, result, num_bytes)
      self._num_bytes += num_bytes
      self._drop_dead()
      while self._num_bytes > self._max_bytes:
        self._drop(next(iter(self._entries)))

  def clear(self) -> None:
    """Drops everything."""
    with self._lock:
      self._entries.clear()
      self._num_bytes = 0

  def _on_death(self, key: tuple[int, str]) -> None:
    self._dead.append(key)
    # This may interrupt the thread that has the lock.
    if self._lock.acquire(blocking=False):
      try:
        self._drop_dead()
      finally:
        self._lock.release()

  def _drop_dead(self) -> None:
    while self._dead:
      key = self._dead.popleft()
      entry = self._entries.get(key)
      if entry is not None and entry.dataset() is None:
        self._drop(key)

  def _drop(self, key: tuple[int, str]) -> None:
    entry = self._entries.pop(key, None)
    if entry is not None:
      self._num_bytes -= entry.num_bytes
