"""Learning rates by round."""

import math

import pytest
import tensorflow as tf

from tff_pfl.core import schedules, training_options


def test_a_step_comes_in_its_round_when_compiled():
  schedule = schedules.make_schedule('step:41:0.5')
  compiled = tf.function(schedule, jit_compile=True)
  actual = [float(compiled(tf.constant(r))) for r in (40, 41, 82)]
  assert actual == [1, 0.5, 0.25]


_QUARTER = 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2


@pytest.mark.parametrize(
  ('spec', 'rounds', 'expected'),
  [
    ('step:3:0.5', [0, 2, 3, 6], [1, 1, 0.5, 0.25]),
    ('step:3', [3], [0.1]),
    ('cosine:8:0.2', [0, 2, 4, 8, 100], [1, _QUARTER, 0.6, 0.2, 0.2]),
    ('cosine:8', [8], [0]),
    ('warmup:4', range(6), [0.25, 0.5, 0.75, 1, 1, 1]),
    # Rounds count from the end of the warm-up.
    ('warmup:2+step:3:0.5', range(9), [0.5, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]),
  ],
)
def test_factors_by_round(spec, rounds, expected):
  schedule = schedules.make_schedule(spec)
  actual = [float(schedule(tf.constant(r))) for r in rounds]
  assert actual == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
  'spec',
  ',linear:3,step,step:0,step:x,step:3:2,warmup:3:1,step:3:.1:.1'.split(','),
)
def test_other_forms_are_refused(spec):
  message = 'Expected `learning_rate_schedule` to be constant, warmup.* found'
  with pytest.raises(ValueError, match=message):
    training_options.TrainingOptions(learning_rate_schedule=spec)


def test_constant_is_no_schedule():
  assert schedules.factor('constant', tf.constant(0)) is None
