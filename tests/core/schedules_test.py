"""Learning rates by round."""

import math

import pytest
import tensorflow as tf

from tff_pfl.core import schedules


def _factors(spec, rounds):
  schedule = schedules.make_schedule(spec)
  return [float(schedule(tf.constant(r))) for r in rounds]


def test_constant_is_no_schedule():
  assert schedules.make_schedule('constant') is None


def test_steps_multiply():
  found = _factors('step:3:0.5', [0, 2, 3, 6])
  assert found == pytest.approx([1, 1, 0.5, 0.25])
  assert _factors('step:3', [3]) == pytest.approx([0.1])


def test_a_step_comes_in_its_round_when_compiled():
  schedule = schedules.make_schedule('step:41:0.5')
  compiled = tf.function(schedule, jit_compile=True)
  found = [float(compiled(tf.constant(r))) for r in (40, 41, 82)]
  assert found == [1, 0.5, 0.25]


def test_cosine_falls_and_stays():
  found = _factors('cosine:8:0.2', [0, 2, 4, 8, 100])
  quarter = 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2
  assert found == pytest.approx([1, quarter, 0.6, 0.2, 0.2])
  assert _factors('cosine:8', [8]) == pytest.approx([0], abs=1e-6)


def test_warm_up_rises_to_one():
  assert _factors('warmup:4', range(6)) == pytest.approx(
    [0.25, 0.5, 0.75, 1, 1, 1]
  )


def test_rounds_count_from_the_end_of_the_warm_up():
  found = _factors('warmup:2+step:3:0.5', range(9))
  assert found == pytest.approx([0.5, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25])


@pytest.mark.parametrize(
  'spec',
  [
    '',
    'linear:3',
    'step',
    'step:0',
    'step:x',
    'step:3:2',
    'warmup:3:1',
    'step:3:.1:.1',
  ],
)
def test_other_forms_are_refused(spec):
  with pytest.raises(ValueError, match='Expected `rate` to be .* found'):
    schedules.make_schedule(spec, 'rate')
