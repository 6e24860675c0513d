"""Learning rates that change from round to round."""

import math
from collections.abc import Callable
from typing import Optional, Union

import tensorflow as tf

from tff_pfl import errors, fields

# The kinds of parts, with their default factor or last value.
_DEFAULTS = {'warmup': None, 'step': 0.1, 'cosine': 0.0}


def make_schedule(spec: str) -> Optional[Callable[[tf.Tensor], tf.Tensor]]:
  """Makes the schedule that a flag value like `warmup:5+cosine:200` names.

  `warmup:<rounds>` rises linearly, from 1 / rounds in the first round to 1 in
  the last of these rounds. `step:<rounds>:<factor>` multiplies by the factor
  (0.1 by default) every `<rounds>` rounds. `cosine:<rounds>:<last>` falls from
  1 to the last value (0 by default) over `<rounds>` rounds and stays there.
  Parts are joined by `+`. After a warm-up, the others count their rounds from
  its end.

  Args:
    spec: As above, or 'constant'.

  Returns:
    A function from the number of completed rounds, an integer tensor, to the
    factor of the learning rate, float32. None for 'constant'.
  """
  if spec == 'constant':
    return None
  parts = [_parse(part, spec) for part in spec.split('+')]

  def schedule(rounds_done):
    rounds_done = tf.cast(rounds_done, tf.int32)
    factor = tf.constant(1.0)
    for kind, num_rounds, number in parts:
      done = tf.maximum(rounds_done, 0)
      progress = tf.cast(done, tf.float32) / num_rounds
      if kind == 'warmup':
        factor *= tf.minimum(1.0, progress + 1 / num_rounds)
        rounds_done -= num_rounds
      elif kind == 'step':
        # Integer division, because compiled 41 * (1 / 41) is less than 1.
        factor *= number ** tf.cast(done // num_rounds, tf.float32)
      else:
        angle = math.pi * tf.minimum(1.0, progress)
        factor *= number + (1 - number) * (1 + tf.cos(angle)) / 2
    return factor

  return schedule


# The name of a schedule, or a function from the number of rounds done to the
# factor of a learning rate.
Schedule = Union[
  fields.checked(str, make_schedule), Callable[[tf.Tensor], tf.Tensor]
]


def factor(schedule: Schedule, rounds_done: tf.Tensor) -> Optional[tf.Tensor]:
  """The factor of the learning rate, float32 scalar, or None for a constant.

  Args:
    rounds_done: int32 scalar, number of rounds before this one.
  """
  if isinstance(schedule, str):
    schedule = make_schedule(schedule)
  if schedule is None:
    return None
  return tf.cast(schedule(rounds_done), tf.float32)


def _parse(text, spec):
  kind, *values = text.split(':')
  try:
    number = _DEFAULTS[kind]
    num_rounds, *others = values
    if others and number is not None:
      (number,) = map(float, others)
      others = []
    num_rounds = int(num_rounds)
    is_right = num_rounds > 0 and not others and 0 <= (number or 0) <= 1
  except (KeyError, ValueError):
    is_right = False
  errors.expect(
    is_right,
    'schedule',
    'constant, warmup:<rounds>, step:<rounds>[:<factor>] or '
    'cosine:<rounds>[:<last>] (factors in [0, 1]), or several of them joined '
    'by +',
    spec,
  )
  return kind, num_rounds, number
