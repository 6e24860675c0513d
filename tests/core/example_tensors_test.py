import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.core import example_tensors

SPEC = collections.OrderedDict(
  x=tf.TensorSpec([3], tf.float32), y=tf.TensorSpec([], tf.int32)
)


def _data(num_examples, seed=0):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    x=rng.normal(size=(num_examples, 3)).astype(np.float32),
    y=np.arange(1, num_examples + 1, dtype=np.int32),
  )


def _dataset(data):
  return tf.data.Dataset.from_tensor_slices(data)


def _check(examples, data, capacity):
  num_examples = len(data['y'])
  assert examples.num_examples == num_examples
  assert examples.num_examples.dtype == tf.int32
  assert examples.capacity == capacity
  np.testing.assert_array_equal(examples.x[:num_examples], data['x'])
  np.testing.assert_array_equal(examples.y[:num_examples], data['y'])
  np.testing.assert_array_equal(
    examples.x[num_examples:], np.zeros([capacity - num_examples, 3])
  )
  np.testing.assert_array_equal(
    examples.y[num_examples:], np.zeros([capacity - num_examples])
  )


@pytest.mark.parametrize(
  'num_examples, expected',
  [
    (0, 16),
    (1, 16),
    (16, 16),
    (17, 32),
    (32, 32),
    (33, 64),
    (500, 512),
    (2**20 + 1, 2**21),
    (2**30, 2**30),
  ],
)
def test_buckets_are_powers_of_two(num_examples, expected):
  assert example_tensors.bucket_size(tf.constant(num_examples)) == expected


def test_batched_spec_adds_an_unknown_dimension():
  assert example_tensors.batched_spec(SPEC) == collections.OrderedDict(
    x=tf.TensorSpec([None, 3], tf.float32), y=tf.TensorSpec([None], tf.int32)
  )


_EMPTY = tf.data.Dataset.from_tensors(_data(0))


@pytest.mark.parametrize(
  'num_examples, capacity, batched',
  [
    *(
      (num_examples, capacity, lambda data, size=size: data.batch(size))
      for num_examples, size, capacity in (
        (20, 20, 32),
        (20, 6, 32),
        (20, 1, 32),
        (1, 5, 16),
        (16, 5, 16),
      )
    ),
    (
      11,
      16,
      lambda data: data.take(4).batch(4).concatenate(data.skip(4).batch(3)),
    ),
    (0, 16, lambda data: data.batch(3).take(0)),
    (0, 16, lambda unused_data: _EMPTY),
    (
      5,
      16,
      lambda data: _EMPTY.concatenate(data.batch(2)).concatenate(_EMPTY),
    ),
  ],
)
def test_batches_of_any_sizes_are_joined_in_order(
  num_examples, capacity, batched
):
  data = _data(num_examples)
  dataset = batched(_dataset(data))
  _check(example_tensors.from_dataset(dataset, SPEC), data, capacity)


@pytest.mark.parametrize('num_examples', [0, 1, 16, 17, 33])
def test_arrays_become_what_their_dataset_becomes(num_examples):
  data = _data(num_examples)
  examples = example_tensors.from_arrays(data)
  expected = example_tensors.from_dataset(_dataset(data).batch(4), SPEC)
  tf.nest.assert_same_structure(examples, expected)
  for found, wanted in zip(*map(tf.nest.flatten, (examples, expected))):
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_type_is_that_of_the_examples():
  examples = example_tensors.from_arrays(_data(3))
  assert str(example_tensors.type_of(SPEC)) == (
    '<x=float32[?,3],y=int32[?],num_examples=int32,weight=<>>'
  )
  assert examples.x.shape == (16, 3)


def test_weights_follow_their_examples():
  weight = np.arange(5, dtype=np.float32)
  data = {**_data(5), 'weight': weight}
  spec = {**SPEC, 'weight': tf.TensorSpec([], tf.float32)}
  examples = example_tensors.from_arrays(data)
  read = example_tensors.from_dataset(_dataset(data).batch(2), spec)
  assert str(example_tensors.type_of(spec)).endswith(',weight=float32[?]>')
  for found in (examples, read):
    np.testing.assert_array_equal(found.weight, [*weight, *[0] * 11])
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


@pytest.mark.parametrize(
  'make',
  [
    lambda a, b: [a, b],
    lambda a, b: (a, b),
    lambda a, b: {'first': a, 'second': b},
  ],
  ids=['list', 'tuple', 'dict'],
)
def test_chunks_of_structures_keep_the_structure(make):
  a = tf.random.stateless_normal([512, 3], [1, 2])
  b = tf.range(512)
  x = make(a, b)
  results = example_tensors.in_chunks(
    lambda x: tf.nest.map_structure(lambda v: v + v, x), _padded(x, 512)
  )
  tf.nest.assert_same_structure(results, x)
  tf.nest.map_structure(
    lambda found, value: np.testing.assert_array_equal(found, value + value),
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
