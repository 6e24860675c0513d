import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.core import example_tensors
from tff_pfl.datasets import examples as examples_lib

SPEC = examples_lib.element_spec(tf.TensorSpec([3], tf.float32))


def _data(num_examples, seed=0):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    x=rng.normal(size=(num_examples, 3)).astype(np.float32),
    y=np.arange(1, num_examples + 1, dtype=np.int32),
  )


def _dataset(data):
  return tf.data.Dataset.from_tensor_slices(data)


def test_buckets_are_powers_of_two():
  for number, expected in {
    **{0: 16, 1: 16, 16: 16, 17: 32, 32: 32, 33: 64, 500: 512},
    **{2**20 + 1: 2**21, 2**30: 2**30},
  }.items():
    assert example_tensors.bucket_size(tf.constant(number)) == expected


_EMPTY = tf.data.Dataset.from_tensors(_data(0))


@pytest.mark.parametrize(
  ('num_examples', 'batched'),
  [
    *(
      (num_examples, lambda data, size=size: data.batch(size))
      for num_examples, size in ((20, 20), (20, 6), (20, 1), (1, 5), (16, 5))
    ),
    (11, lambda data: data.take(4).batch(4).concatenate(data.skip(4).batch(3))),
    (0, lambda data: data.batch(3).take(0)),
    (0, lambda unused_data: _EMPTY),
    (5, lambda data: _EMPTY.concatenate(data.batch(2)).concatenate(_EMPTY)),
  ],
)
def test_batches_of_any_sizes_are_joined_as_arrays_are(num_examples, batched):
  data = _data(num_examples)
  actual = example_tensors.from_dataset(batched(_dataset(data)), SPEC)
  expected = example_tensors.from_arrays(data)
  tf.nest.assert_same_structure(actual, expected)
  for a, b in zip(*map(tf.nest.flatten, (actual, expected))):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('num_examples', [0, 1, 16, 17, 33])
def test_arrays_are_padded_with_zeros(num_examples):
  data = _data(num_examples)
  actual = example_tensors.from_arrays(data)
  capacity = {17: 32, 33: 64}.get(num_examples, 16)
  assert actual.num_examples == num_examples
  assert actual.num_examples.dtype == tf.int32
  assert actual.capacity == capacity
  missing = capacity - num_examples
  x = np.concatenate([data['x'], np.zeros([missing, 3])])
  np.testing.assert_array_equal(actual.x, x)
  np.testing.assert_array_equal(actual.y, [*data['y'], *[0] * missing])


def test_weights_follow_their_examples():
  weight = np.arange(5, dtype=np.float32)
  data = {**_data(5), 'weight': weight}
  spec = {**SPEC, 'weight': tf.TensorSpec([], tf.float32)}
  examples = example_tensors.from_arrays(data)
  read = example_tensors.from_dataset(_dataset(data).batch(2), spec)
  types = '<x=float32[?,3],y=int32[?],num_examples=int32,weight='
  assert str(example_tensors.type_of(SPEC)) == f'{types}<>>'
  assert str(example_tensors.type_of(spec)) == f'{types}float32[?]>'
  for actual in (examples, read):
    np.testing.assert_array_equal(actual.weight, [*weight, *[0] * 11])
  some = example_tensors.select(examples, tf.range(16) % 2 == 1)
  np.testing.assert_array_equal(some.weight[: some.num_examples], [1, 3])


def test_one_trace_serves_datasets_of_all_sizes():
  traces = []

  @tf.function
  def materialize(dataset):
    traces.append(1)
    examples = example_tensors.from_dataset(dataset, SPEC)
    return examples.num_examples, examples.capacity

  for num_examples, capacity in ((0, 16), (3, 16), (100, 128)):
    dataset = _dataset(_data(num_examples)).batch(7)
    assert materialize(dataset) == (num_examples, capacity)
  assert len(traces) == 1


def _padded(x, capacity):
  return example_tensors.ExampleTensors(
    x, tf.zeros([capacity], tf.int32), tf.constant(capacity - 3)
  )


@pytest.mark.parametrize(
  'capacity, rows', [(16, 16), (256, 256), (512, 256), (2048, 256)]
)
def test_a_chunk_has_at_most_256_rows(capacity, rows):
  x = tf.random.stateless_normal([capacity, 4, 2], [1, 2])
  sums, positive, num_rows = example_tensors.in_chunks(
    lambda x: (
      tf.reduce_sum(x, axis=1),
      x[:, 0, 0] > 0,
      tf.fill(tf.shape(x)[:1], tf.shape(x)[0]),
    ),
    _padded(x, capacity),
  )
  np.testing.assert_allclose(sums, tf.reduce_sum(x, axis=1), rtol=1e-6)
  np.testing.assert_array_equal(positive, x[:, 0, 0] > 0)
  np.testing.assert_array_equal(num_rows, np.full([capacity], rows))


@pytest.mark.parametrize('make', [list, tuple, lambda x: dict(zip('ab', x))])
def test_chunks_of_structures_keep_the_structure(make):
  x = make([tf.random.stateless_normal([512, 3], [1, 2]), tf.range(512)])
  results = example_tensors.in_chunks(
    lambda x: tf.nest.map_structure(lambda v: v + v, x), _padded(x, 512)
  )
  tf.nest.assert_same_structure(results, x)
  tf.nest.map_structure(
    lambda actual, value: np.testing.assert_array_equal(actual, value + value),
    results,
    x,
  )


def test_shapes_but_the_rows_are_known_while_tracing():
  @tf.function(input_signature=[tf.TensorSpec([None, 4])])
  def trace(x):
    examples = example_tensors.ExampleTensors(
      x, tf.zeros(tf.shape(x)[:1]), tf.shape(x)[0]
    )
    results = example_tensors.in_chunks(lambda x: x[:, :3], examples)
    assert results.shape.as_list() == [None, 3]
    return results

  assert trace(tf.zeros([512, 4])).shape == (512, 3)
