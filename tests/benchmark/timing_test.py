import time
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from binaries.benchmark import timing


class _Lazy:
  """A number that is there when it is asked for."""

  def __init__(self):
    self.is_asked_for = False

  def __array__(self, dtype=None):
    self.is_asked_for = True
    return tf.zeros([2]).numpy()


class _Result(NamedTuple):
  state: Any
  clients: Any


def test_force_asks_for_every_number_of_a_result():
  lazy = [_Lazy() for _ in range(4)]
  timing.force(
    _Result(
      {'weights': lazy[0], 'none': ()}, [(lazy[1], 3), [lazy[2], lazy[3]]]
    )
  )
  assert all(value.is_asked_for for value in lazy)


def test_rounds_take_turns():
  calls = []
  seconds = timing.time_in_turns(
    {
      'a': lambda round_number: calls.append(('a', round_number)),
      'b': lambda round_number: calls.append(('b', round_number)),
    },
    2,
    lambda: calls.append('progress'),
  )
  assert [call for call in calls if call != 'progress'] == [
    (name, round_number) for round_number in range(3) for name in 'ab'
  ]
  assert calls[1::2] == ['progress'] * 6
  assert {name: len(values) for name, values in seconds.items()} == {
    'a': 3,
    'b': 3,
  }


def test_seconds_are_those_of_the_round():
  seconds = timing.time_in_turns(
    {'a': lambda round_number: time.sleep(0.02 * (1 - round_number))}, 1
  )
  first, second = seconds['a']
  assert first >= 0.02
  assert 0 <= second < first


def test_summary_of_rounds():
  assert timing.summarize([3.0, 1.0, 2.0, 10.0]) == {
    'median': 2.5,
    'min': 1.0,
    'max': 10.0,
  }
  with pytest.raises(ValueError):
    timing.summarize([])
