import collections
import types
from typing import Any, NamedTuple

import attrs
import numpy as np
import pytest
import tree

from tff_pfl.runs import value_codec


class Head(NamedTuple):
  kernel: Any
  bias: Any


@attrs.frozen
class Clipping:
  norm: Any


def make_value(seed=0):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    weights=[rng.standard_normal((3, 2)).astype(np.float32), np.zeros((0, 4))],
    head=Head(
      kernel=rng.standard_normal((2, 2)).astype(np.float32),
      bias=np.float64(rng.standard_normal()),
    ),
    step=(np.int64(2**62 + seed), np.bool_(seed)),
    mask=np.array([True, False, bool(seed)]),
    empty={},
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


_CASES = [
  np.arange(6, dtype=np.int32).reshape(2, 3).T,
  np.arange(10.0)[::-2],
  np.zeros((2, 0, 3), np.float32),
  np.array([1, 2], '>i4'),
  # A NaN with a payload, minus zero, minus infinity, the smallest number.
  np.uint32([0x7FC00001, 0x80000000, 0xFF800000, 1]).view(np.float32),
  {'a/b': np.array([1.0]), 'a': {'b': np.array([2.0])}},
  (),
  {'a': {}, 'b': []},
]


@pytest.mark.parametrize(
  ('value', 'template'),
  [(make_value(0), make_value(1)), *zip(_CASES, _CASES)],
)
def test_round_trip_keeps_every_bit_type_and_container(value, template):
  encoded = value_codec.encode(value)
  decoded = value_codec.decode(encoded, template)
  assert_same(decoded, value)
  assert value_codec.encode(decoded) == encoded


def test_size_of_a_dimension_may_differ_from_the_template():
  data = value_codec.encode(np.arange(5))
  decoded = value_codec.decode(data, np.zeros(2, np.int64))
  np.testing.assert_array_equal(decoded, np.arange(5))
  decoded += 1  # It can be written to.


@pytest.mark.parametrize(
  ('template', 'words'),
  [
    ({'b': np.zeros(1), 'w': np.zeros(2)}, 'float64 of rank 1 at w'),
    ({'b': np.zeros(1)}, "no more, found 'float32 of rank 1 at w'"),
    (
      {'b': np.zeros(1), 'w': np.zeros(2, np.float32), 'x': {'d': 1}},
      "at x/d, found 'no more'",
    ),
  ],
  ids=['dtype', 'fewer', 'more'],
)
def test_another_structure_is_refused_naming_the_leaf(template, words):
  data = value_codec.encode({'w': np.zeros(2, np.float32), 'b': np.zeros(1)})
  with pytest.raises(ValueError, match=words):
    value_codec.decode(data, template)


@pytest.mark.parametrize('leaf', ['text', None, object(), np.array([{}])])
def test_leaf_of_another_type_is_refused_naming_it(leaf):
  with pytest.raises(TypeError, match='at head/1'):
    value_codec.encode({'head': [1, leaf]})


def test_to_json_gives_plain_python_numbers():
  converted = value_codec.to_json(
    {
      'loss': np.float32(0.1),
      'round': np.int64(3),
      'rate': np.float64(0.5),
      'per_class': np.array([1, 2]),
      'nested': types.MappingProxyType({2: (b'x', None)}),
      'head': Head(kernel=Clipping(np.float32(1.5)), bias=True),
    }
  )
  assert converted == {
    'loss': float(np.float32(0.1)),
    'round': 3,
    'rate': 0.5,
    'per_class': [1, 2],
    'nested': {'2': ['x', None]},
    'head': {'kernel': {'norm': 1.5}, 'bias': True},
  }
  actual = [type(converted[name]) for name in ('loss', 'round', 'rate')]
  assert actual == [float, int, float]
  with pytest.raises(TypeError, match='made of numbers'):
    value_codec.to_json({'a': object()})


def test_flatten_joins_names_and_drops_empty_mappings():
  nested = {'a': 1, 'b': {'c': [2], 'd': {'e': 3}, 'f': {}}}
  assert value_codec.flatten(nested, '.') == {'a': 1, 'b.c': [2], 'b.d.e': 3}
