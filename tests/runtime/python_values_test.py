import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.runtime import python_values, values

_VECTOR = tff.TensorType(np.float32, [None])


def _from_python(value, value_type):
  return python_values.reader(value_type)(value)


def _to_python(value, value_type, num_clients):
  return python_values.writer(value_type)(value, num_clients)


_ELEMENT = collections.OrderedDict(y=np.int32, x=np.float32)


class _Point(NamedTuple):
  x: Any
  y: Any


class _Unsorted(NamedTuple):
  y: Any
  x: Any


def _dataset():
  return tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(
      y=np.arange(3, dtype=np.int32), x=np.ones(3, np.float32)
    )
  )


@pytest.mark.parametrize(
  'value',
  [
    [1.0, 2.0],
    (1.0, 2.0),
    np.array([1.0, 2.0], np.float32),
    tf.constant([1.0, 2.0]),
    tf.Variable([1.0, 2.0]),
    [tf.constant(1.0), 2.0],
    np.array([1.0, 2.0], np.float16),
  ],
)
def test_arrays_of_any_kind_become_tensors(value):
  tensor = _from_python(value, _VECTOR)
  assert tensor.dtype == tf.float32
  np.testing.assert_array_equal(tensor, [1.0, 2.0])


def test_tensor_of_the_type_is_not_copied():
  tensor = tf.constant([1.0])
  assert _from_python(tensor, _VECTOR) is tensor


_PAIR = tff.to_type(collections.OrderedDict(a=np.int32, b=np.int32))


@pytest.mark.parametrize(
  'value, value_type, words',
  [
    # It would lose information.
    *(
      (value, _VECTOR, 'a value of type float32')
      for value in (
        1.0,
        [[1.0]],
        ['text'],
        [1, None],
        np.array([1.0], np.float64),
        tf.constant([1]),
        None,
      )
    ),
    *(
      (value, _PAIR, 'structure of type <a=int32,b=int32>')
      for value in ([1], 3, collections.OrderedDict(b=1, a=2))
    ),
    *(
      (value, tff.SequenceType(_ELEMENT), '`sequence` to be')
      for value in (
        [1, 2],
        _dataset().batch(2),
        # TensorFlow orders its elements otherwise.
        _dataset().map(lambda e: _Unsorted(e['y'], e['x'])),
      )
    ),
  ],
)
def test_what_is_of_another_type_is_refused(value, value_type, words):
  with pytest.raises(TypeError, match=f'Expected .*{words}'):
    _from_python(value, value_type)


def test_strings_keep_their_bytes():
  text_type = tff.TensorType(np.str_, [2])
  tensor = _from_python(np.array(['é', b'a\0'], np.object_), text_type)
  result = _to_python(tensor, text_type, 0)
  assert result.tolist() == ['é'.encode(), b'a\0']


@pytest.mark.parametrize(
  'value',
  [
    _Point(1, (2, 3)),
    {'x': 1, 'y': [2, 3]},
    [1, (2, 3)],
  ],
)
def test_containers_become_tuples_and_the_types_containers(value):
  value_type = tff.to_type(_Point(np.int32, [np.int32, np.int64]))
  local = _from_python(value, value_type)
  assert [int(t) for t in values.flatten(local)] == [1, 2, 3]
  result = _to_python(local, value_type, 0)
  assert result == _Point(1, [2, 3])
  assert type(result) is _Point
  assert isinstance(result.y[1], np.int64)


def test_client_values_are_stored_for_each_client_or_once():
  each = tff.FederatedType(np.int32, tff.CLIENTS)
  once = tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True)
  local = _from_python([1, 2], each)
  assert isinstance(local, values.PerClient)
  assert _to_python(local, each, 2) == [1, 2]
  local = _from_python(3, once)
  assert isinstance(local, values.AllEqual)
  assert _to_python(local, once, 2) == 3
  assert _to_python(local, each, 2) == [3, 3]
  with pytest.raises(TypeError, match='to be a `list` or `tuple`'):
    _from_python(3, each)


_STATE = tff.to_type(collections.OrderedDict(n=np.int64, w=(np.float32, [2])))


def test_small_arrays_of_clients_are_one_tensor_and_come_back_alone():
  states = tff.FederatedType(_STATE, tff.CLIENTS)
  given = [
    collections.OrderedDict(n=np.int64(n), w=np.float32([n, 2 * n]))
    for n in range(3)
  ]
  local = _from_python(given, states)
  number, weights = local.columns
  assert number.tensor.shape == [3]
  assert weights.tensor.shape == [3, 2]
  assert values.rows(local, 3)[2][1].numpy().tolist() == [2, 4]
  actual = _to_python(local, states, 3)
  for one, expected in zip(actual, given, strict=True):
    assert list(one) == ['n', 'w']
    assert one['n'] == expected['n'] and isinstance(one['n'], np.int64)
    np.testing.assert_array_equal(one['w'], expected['w'])
    # One client's does not keep the others' in memory.
    assert one['w'].base is None


@pytest.mark.parametrize(
  'second',
  [
    {'n': 1, 'w': [1.0, 2.0]},
    {'n': np.int64(1), 'w': tf.constant([1.0, 2.0])},
    {'n': np.int32(1), 'w': np.float16([1.0, 2.0])},
  ],
)
def test_clients_values_may_be_of_several_kinds(second):
  states = tff.FederatedType(_STATE, tff.CLIENTS)
  first = collections.OrderedDict(n=np.int64(0), w=np.zeros(2, np.float32))
  local = _from_python([first, collections.OrderedDict(second)], states)
  actual = _to_python(local, states, 2)
  assert [one['n'] for one in actual] == [0, 1]
  assert all(one['w'].dtype == np.float32 for one in actual)
  np.testing.assert_array_equal(actual[1]['w'], [1, 2])
  wrong = collections.OrderedDict(n=np.int64(0), w=np.zeros(3, np.float32))
  with pytest.raises(TypeError, match=r'type float32\[2\], found an array'):
    _from_python([first, wrong], states)
