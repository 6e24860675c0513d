import collections
import gc
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.runtime import sequences

_ELEMENT = collections.OrderedDict(y=np.int32, x=np.float32)


class _Unsorted(NamedTuple):
  y: Any
  x: Any


def _dataset():
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      y=np.arange(3, dtype=np.int32), x=np.ones(3, np.float32)
    )
  )


def test_dataset_keeps_its_elements_and_its_source():
  dataset = _dataset()
  sequence_type = tff.SequenceType(_ELEMENT)
  sequence = sequences.from_python(dataset, sequence_type)
  assert sequence.source is dataset
  elements = list(sequences.to_dataset(sequence, sequence_type))
  assert [list(element) for element in elements] == [['y', 'x']] * 3
  assert [int(element['y']) for element in elements] == [0, 1, 2]


@pytest.mark.parametrize('elements', [[], [1], [1, 2, 3]])
def test_list_is_a_sequence_without_source(elements):
  sequence_type = tff.SequenceType(np.int32)
  sequence = sequences.from_python(elements, sequence_type)
  assert sequence.source is None
  dataset = sequences.to_dataset(sequence, sequence_type)
  assert list(dataset.as_numpy_iterator()) == elements


@pytest.mark.parametrize('value', [3, (1, 2), _dataset().batch(2)])
def test_other_values_are_refused(value):
  with pytest.raises(TypeError, match='Expected `sequence` to be'):
    sequences.from_python(value, tff.SequenceType(_ELEMENT))


def test_named_tuples_that_tensorflow_orders_otherwise_are_refused():
  dataset = _dataset().map(lambda e: _Unsorted(e['y'], e['x']))
  with pytest.raises(ValueError, match='names in sorted order'):
    sequences.from_python(dataset, tff.SequenceType(_ELEMENT))


def _from_generator():
  return tf.data.Dataset.from_generator(
    lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)
  )


def _any_order():
  options = tf.data.Options()
  options.deterministic = False
  return _dataset().with_options(options)


@pytest.mark.parametrize(
  'make, expected',
  [
    (_dataset, True),
    (lambda: _dataset().batch(2).repeat(2).prefetch(1).cache(), True),
    (lambda: tf.data.Dataset.range(9).map(lambda x: x + 1).take(3), True),
    (lambda: _dataset().shuffle(3, seed=1), False),
    (lambda: _dataset().map(lambda e: tf.random.uniform([])), False),
    (lambda: _dataset().flat_map(lambda e: _dataset().shuffle(3)), False),
    (_from_generator, False),
    (_any_order, False),
    (lambda: tf.data.TextLineDataset('path'), False),
  ],
)
def test_only_datasets_of_fixed_content_are_deterministic(make, expected):
  assert sequences.is_deterministic(make()) == expected


def test_cache_returns_what_a_function_made_of_a_dataset():
  cache = sequences.DatasetCache()
  first, second = _dataset(), _dataset()
  cache.keep('f', first, (tf.zeros([4]),))
  assert cache.find('f', first)[0].shape == [4]
  assert cache.find('g', first) is None
  assert cache.find('f', second) is None
  assert cache.num_bytes == 16
  cache.clear()
  assert cache.find('f', first) is None
  assert cache.num_bytes == 0


def test_cache_does_not_return_results_of_random_datasets():
  cache = sequences.DatasetCache()
  dataset = _dataset().shuffle(3)
  for _ in range(2):
    cache.keep('f', dataset, tf.zeros([4]))
    assert cache.find('f', dataset) is None
  assert cache.num_bytes == 0


def test_cache_forgets_datasets_that_are_gone():
  cache = sequences.DatasetCache()
  dataset = _dataset()
  cache.keep('f', dataset, tf.zeros([4]))
  assert cache.find('f', dataset) is not None
  del dataset
  gc.collect()
  assert len(cache) == 0
  assert cache.num_bytes == 0


def test_cache_drops_what_was_not_asked_for_longest():
  cache = sequences.DatasetCache(max_bytes=40)
  datasets = [_dataset() for _ in range(3)]
  for dataset in datasets[:2]:
    cache.keep('f', dataset, tf.zeros([4]))
  assert cache.find('f', datasets[0]) is not None
  cache.keep('f', datasets[2], tf.zeros([4]))
  found = [cache.find('f', dataset) is not None for dataset in datasets]
  assert found == [True, False, True]
  assert cache.num_bytes == 32
  # What is larger than the cache drops nothing.
  cache.keep('g', datasets[0], tf.zeros([100]))
  assert cache.num_bytes == 32


def test_cache_without_bytes_is_off_and_negative_bytes_are_refused():
  assert not sequences.DatasetCache(0).is_on
  with pytest.raises(ValueError, match='Expected `max_bytes` to be at least 0'):
    sequences.DatasetCache(-1)
