"""A client's examples as padded tensors, the input of processes.

The tensors are made once for each client, and all epochs index into them. They
are padded to a power of two, so that clients of many sizes share a few compiled
programs.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.models import domains

# The smallest bucket, and the most rows that pass through a network at once
# outside training (a bound on the memory of activations). Both are powers of
# two.
SMALLEST_BUCKET = 16
CHUNK_SIZE = 256


class ExampleTensors(NamedTuple):
  """Padded examples, with a power of two as capacity (`bucket_size`).

  Attributes:
    x: `[capacity, ...]`, or a structure of such tensors (cached features,
      inputs with their domain).
    y: `[capacity, ...]`.
    num_examples: int32 scalar. Rows from here on are padding.
    weight: float32 `[capacity]`, the factors of the examples' losses in
      training, or `()` for none.
  """

  x: Any
  y: tf.Tensor
  num_examples: tf.Tensor
  weight: Any = ()

  @property
  def capacity(self) -> tf.Tensor:
    """The number of rows, including padding."""
    return tf.shape(self.y)[0]

  @property
  def is_example(self) -> tf.Tensor:
    """Bool `[capacity]`, True for rows that are not padding."""
    return tf.range(self.capacity) < self.num_examples


def bucket_size(num_examples: tf.Tensor) -> tf.Tensor:
  """The smallest power of two that holds `num_examples` (at least 16)."""
  doublings = tf.range(31)
  sizes = tf.bitwise.left_shift(tf.ones_like(doublings), doublings)
  fits = tf.logical_and(sizes >= num_examples, sizes >= SMALLEST_BUCKET)
  return tf.reduce_min(tf.boolean_mask(sizes, fits))


def fewest_examples(capacity: tf.Tensor) -> tf.Tensor:
  """The fewest examples (at least 1) whose `bucket_size` is `capacity`."""
  return tf.where(capacity > SMALLEST_BUCKET, capacity // 2 + 1, 1)


def type_of(element_spec) -> tff.Type:
  """TFF's type of the `ExampleTensors` of elements with `element_spec`."""
  return tff.types.tensorflow_to_type(
    _joined(domains.batched_spec(element_spec), tf.TensorSpec([], tf.int32))
  )


def _joined(rows, num_examples):
  x, y = domains.join(rows)
  return ExampleTensors(x, y, num_examples, rows.get('weight', ()))


def from_arrays(arrays: Mapping[str, np.ndarray]) -> ExampleTensors:
  """Pads a client's examples, in the host's memory.

  Args:
    arrays: `x` `[n, ...]` or a structure of such arrays, and `y` `[n, ...]`.
      Optional entries are `weight`, float32 `[n]`, and `domain`, int32 `[n]`.
      n may be 0.

  Returns:
    The examples in order, padded with zeros. If there are domains,
    `domains.join` makes `x`.
  """
  number = len(arrays['y'])
  capacity = max(SMALLEST_BUCKET, 1 << (number - 1).bit_length())

  def pad(value):
    value = np.asarray(value)
    padded = np.zeros([capacity, *value.shape[1:]], value.dtype)
    padded[:number] = value
    return tf.constant(padded)

  with tf.device('CPU'):
    rows = tf.nest.map_structure(pad, dict(arrays))
    return _joined(rows, tf.constant(number, tf.int32))


def from_dataset(dataset: tf.data.Dataset, element_spec) -> ExampleTensors:
  """Converts a dataset of batches into padded tensors.

  Args:
    dataset: Batches `OrderedDict(x=[batch, ...], y=[batch, ...])` of any sizes.
      Optional entries are `weight=[batch]` and `domain=[batch]`. One large
      batch is the fastest.
    element_spec: Spec of one example, `OrderedDict(x=..., y=...)`.

  Returns:
    All examples in the dataset's order, padded with zeros. If there are
    domains, `domains.join` makes `x`.
  """
  # Reading one element is many times faster than a loop over batches, but the
  # dataset must have one. An extra last row ensures this.
  sentinel = tf.data.Dataset.from_tensors(
    tf.nest.map_structure(
      lambda spec: tf.zeros([1, *spec.shape], spec.dtype), element_spec
    )
  )
  whole = dataset.concatenate(sentinel).rebatch(tf.int32.max)
  rows = whole.get_single_element()
  rows = {
    name: tf.nest.map_structure(lambda value: value[:-1], rows[name])
    for name in element_spec
  }
  return from_rows(rows)


def from_rows(rows: Mapping[str, Any]) -> ExampleTensors:
  """Pads a client's examples as `from_arrays` does, in a graph."""
  num_examples = tf.shape(rows['y'])[0]
  padding = bucket_size(num_examples) - num_examples

  def pad(value):
    padded = tf.pad(value, [[0, padding]] + [[0, 0]] * (value.shape.rank - 1))
    # A loaded graph would otherwise know less of the shape than tracing does.
    return tf.ensure_shape(padded, [None, *value.shape[1:]])

  return _joined(tf.nest.map_structure(pad, rows), num_examples)


def select(examples: ExampleTensors, is_wanted: tf.Tensor) -> ExampleTensors:
  """Selects some of the examples, in order, with the same capacity.

  Args:
    is_wanted: Bool `[capacity]`, with any value for padding.
  """
  is_wanted = tf.logical_and(is_wanted, examples.is_example)
  # The other rows follow as padding.
  order = tf.argsort(tf.cast(tf.logical_not(is_wanted), tf.int32), stable=True)
  x, y, weight = tf.nest.map_structure(
    lambda value: tf.gather(value, order),
    (examples.x, examples.y, examples.weight),
  )
  number = tf.reduce_sum(tf.cast(is_wanted, tf.int32))
  return ExampleTensors(x, y, number, weight)


def build_examples_of(element_spec) -> tff.Computation:
  """Builds `from_dataset` as a computation: `(D* -> ExampleTensors)`.

  TFF's forms of a process need it, because they take a client's data as a
  sequence.
  """
  data_type = tff.SequenceType(
    tff.types.tensorflow_to_type(domains.batched_spec(element_spec))
  )

  @tff.tensorflow.computation(data_type)
  def examples_of(dataset):
    return from_dataset(dataset, element_spec)

  return examples_of


def in_chunks(function: Callable[[Any], Any], examples: ExampleTensors) -> Any:
  """Applies a function of `x` to all rows, a bounded number at a time.

  Args:
    function: Maps `x` `[rows, ...]` to a structure of `[rows, ...]`, each row
      independently of the others.

  Returns:
    The function's results for all `capacity` rows.
  """
  capacity = examples.capacity
  rows = tf.minimum(capacity, CHUNK_SIZE)
  num_chunks = capacity // rows
  specs = tf.nest.map_structure(
    lambda value: tf.TensorSpec([None, *value.shape[1:]], value.dtype),
    examples.x,
  )
  traced = tf.function(function, autograph=False).get_concrete_function(specs)
  outputs = traced.structured_outputs
  # Results are written into one tensor, because an array of tensors cannot be
  # vectorized and compiled.
  results = tf.nest.map_structure(
    lambda value: tf.zeros(
      tf.concat([[num_chunks, rows], value.shape[1:]], 0), value.dtype
    ),
    outputs,
  )

  chunks = tf.nest.map_structure(
    lambda value: tf.reshape(
      value, tf.concat([[num_chunks, rows], tf.shape(value)[1:]], 0)
    ),
    examples.x,
  )

  def write(index, results):
    chunk = tf.nest.map_structure(lambda value: value[index], chunks)
    results = tf.nest.map_structure(
      lambda all_rows, new: tf.tensor_scatter_nd_update(
        all_rows, [[index]], [new]
      ),
      results,
      traced(chunk),
    )
    return index + 1, results

  _, results = tf.while_loop(
    lambda index, _: index < num_chunks,
    write,
    (0, results),
    parallel_iterations=1,
  )
  return tf.nest.map_structure(
    # Tracing knows the shape except for the number of rows.
    lambda all_rows, value: tf.ensure_shape(
      tf.reshape(all_rows, tf.concat([[capacity], value.shape[1:]], 0)),
      [None, *value.shape[1:]],
    ),
    results,
    outputs,
  )
