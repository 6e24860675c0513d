"""Learning rates that change from round to round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Optional

import tensorflow as tf

from tff_pfl import errors

# From the number of rounds done to the factor of a learning rate.
Schedule = Callable[[tf.Tensor], tf.Tensor]

FORMS = (
  'constant, warmup:<rounds>, step:<rounds>[:<factor>] or '
  'cosine:<rounds>[:<last>]'
)


@dataclasses.dataclass(frozen=True)
class _Part:
  """A part of a schedule; `number` is the factor or last value, if it has."""

  kind: str
  num_rounds: int
  number: float

  def factor(self, rounds_done):
    progress = rounds_done / self.num_rounds
    if self.kind == 'warmup':
      return tf.minimum(1.0, progress + 1 / self.num_rounds)
    if self.kind == 'step':
      return self.number ** tf.floor(progress)
    angle = math.pi * tf.minimum(1.0, progress)
    return self.number + (1 - self.number) * (1 + tf.cos(angle)) / 2


_DEFAULTS = {'warmup': None, 'step': 0.1, 'cosine': 0.0}


def make_schedule(
  spec: str, argument: str = 'learning_rate_schedule'
) -> Optional[Schedule]:
  """The schedule that a flag value such as `warmup:5+cosine:200` names.

  `warmup:<rounds>` rises linearly, from 1 / rounds in the first round to 1 in
  the last of them. `step:<rounds>:<factor>` multiplies by the factor, 0.1 by
  default, after each so many rounds. `cosine:<rounds>:<last>` falls from 1 to
  the last value, 0 by default, after so many rounds, and stays there. Parts are
  joined by `+`; after a warm-up the others count their rounds from its end.

  Args:
    spec: As above; 'constant' for none.
    argument: What the error calls it.

  Returns:
    From the number of rounds done, an integer tensor, to the factor of the
    learning rate, float32; None for 'constant'.

  Raises:
    ValueError: If the specification has another form.
  """
  if spec == 'constant':
    return None
  parts = [_parse(part, spec, argument) for part in spec.split('+')]

  def schedule(rounds_done):
    rounds_done = tf.cast(rounds_done, tf.float32)
    factor = tf.constant(1.0)
    for part in parts:
      factor *= part.factor(tf.maximum(rounds_done, 0.0))
      if part.kind == 'warmup':
        rounds_done -= part.num_rounds
    return factor

  return schedule


def _parse(text, spec, argument):
  kind, *values = text.split(':')
  wanted = f'{FORMS}, or several of them joined by +'
  errors.expect(kind in _DEFAULTS, argument, wanted, spec)
  number = _DEFAULTS[kind]
  errors.expect(
    1 <= len(values) <= 1 + (number is not None), argument, wanted, spec
  )
  try:
    num_rounds = int(values[0])
    number = float(values[1]) if values[1:] else number
  except ValueError:
    raise ValueError(errors.message(argument, wanted, spec)) from None
  errors.expect(num_rounds > 0, argument, 'a positive number of rounds', spec)
  errors.expect(
    number is None or 0 <= number <= 1,
    argument,
    'a factor in [0, 1]',
    spec,
  )
  return _Part(kind, num_rounds, number)
