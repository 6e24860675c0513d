import collections
from typing import Any, NamedTuple

import attr
import numpy as np
import pytest
import tensorflow as tf
import tree

from tff_pfl.runs import value_codec


class Head(NamedTuple):
  kernel: Any
  bias: Any


@attr.define
class Finalizer:
  momentum: Any
  step: Any


def make_value(seed=0):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    weights=[rng.standard_normal((3, 2)).astype(np.float32), np.zeros((0, 4))],
    head=Head(
      kernel=tf.constant(rng.standard_normal((2, 2)), tf.float32),
      bias=np.array(rng.standard_normal(), np.float64),
    ),
    finalizer=Finalizer(momentum=(), step=np.int64(2**62 + seed)),
    mask=np.array([True, False, bool(seed)]),
    empty={},
    rates=(0.1 + seed, 7 + seed, True),
    counts=rng.integers(0, 9, [2, 2], np.uint8),
  )


def assert_same(left, right):
  """Checks bits, types and containers."""
  tree.assert_same_structure(left, right)
  for a, b in zip(tree.flatten(left), tree.flatten(right)):
    assert type(a) is type(b)
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def test_round_trip_keeps_every_bit_type_and_container():
  value = make_value(0)

  encoded = value_codec.encode(value)
  decoded = value_codec.decode(encoded, make_value(1))

  assert_same(decoded, value)
  assert encoded == value_codec.encode(decoded)
  # It can be written to.
  decoded['mask'] &= False


@pytest.mark.parametrize(
  'value',
  [
    np.arange(6, dtype=np.int32).reshape(2, 3).T,
    np.arange(10.0)[::-2],
    np.array(5, np.int64),
    np.zeros((2, 0, 3), np.float32),
    np.array([1, 2], '>i4'),
    # A NaN with a payload, minus zero, minus infinity, the smallest number.
    np.uint32([0x7FC00001, 0x80000000, 0xFF800000, 1]).view(np.float32),
    {'a/b': np.array([1.0]), 'a': {'b': np.array([2.0])}},
    (),
    {'a': {}, 'b': []},
  ],
)
def test_layouts_that_need_care_round_trip(value):
  assert_same(value_codec.decode(value_codec.encode(value), value), value)


def test_leaves_are_matched_by_name_and_not_by_order():
  data = value_codec.encode({'bias': np.float32(1), 'kernel': np.float32(2)})

  decoded = value_codec.decode(data, Head(np.float32(0), np.float32(0)))

  assert decoded == Head(kernel=2, bias=1)


def test_size_of_a_dimension_may_differ_from_the_template():
  data = value_codec.encode(np.arange(5))
  decoded = value_codec.decode(data, np.zeros(2, np.int64))
  np.testing.assert_array_equal(decoded, np.arange(5))


@pytest.mark.parametrize(
  ('template', 'words'),
  [
    ({'w': np.zeros(2), 'b': np.zeros(1)}, 'float32 of rank 1'),
    ({'w': np.zeros((2, 1), np.float32), 'b': np.zeros(1)}, 'rank 2 at w'),
    ({'w': np.zeros(2, np.float32)}, 'b, which the template lacks'),
    (
      {'w': np.zeros(2, np.float32), 'b': np.zeros(1), 'c': {'d': 1}},
      'a leaf at c/d',
    ),
    ([np.zeros(2, np.float32), np.zeros(1)], 'a leaf at 0'),
  ],
  ids=['dtype', 'rank', 'fewer', 'more', 'list'],
)
def test_another_structure_is_refused_naming_the_leaf(template, words):
  data = value_codec.encode({'w': np.zeros(2, np.float32), 'b': np.zeros(1)})

  with pytest.raises(ValueError, match=words) as error:
    value_codec.decode(data, template)

  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'leaf',
  ['text', None, object(), np.array(['text']), np.array([{}])],
)
def test_leaf_of_another_type_is_refused_naming_it(leaf):
  with pytest.raises(TypeError, match='at head/1'):
    value_codec.encode({'head': [1, leaf]})


def test_to_json_gives_plain_python_numbers():
  value = collections.OrderedDict(
    loss=np.float32(0.1),
    round=np.int64(3),
    rate=np.float64(0.5),
    per_class=np.array([1, 2]),
    head=Head(kernel=tf.constant(1.5), bias=None),
    finalizer=Finalizer(momentum=(True,), step=tf.constant(b'x')),
  )

  converted = value_codec.to_json(value)

  assert converted == {
    'loss': float(np.float32(0.1)),
    'round': 3,
    'rate': 0.5,
    'per_class': [1, 2],
    'head': {'kernel': 1.5, 'bias': None},
    'finalizer': {'momentum': [True], 'step': 'x'},
  }
  assert type(converted['loss']) is float
  assert type(converted['round']) is int
  assert type(converted['rate']) is float
  with pytest.raises(TypeError, match='made of numbers'):
    value_codec.to_json({'a': object()})


def test_flatten_joins_names_and_drops_empty_mappings():
  nested = {'a': 1, 'b': {'c': [2], 'd': {'e': 3}, 'f': {}}}
  assert value_codec.flatten(nested, '.') == {'a': 1, 'b.c': [2], 'b.d.e': 3}
