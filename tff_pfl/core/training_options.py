"""Options of local training that are the same for every method.

They hold for the training of a round and, without the schedule, for that of a
client that never took part. Fine-tuning before a client's model is scored has
options of its own (`core.personalization`).
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.core import schedules

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
  """Options of local training.

  Attributes:
    weight_decay: Factor of the weights that is added to their gradient, at
      least 0 (L2 regularization, as in PyTorch's SGD and Adam).
    decoupled_weight_decay: Share of the weights, times the learning rate, that
      each step takes off beside the optimizer's move, at least 0 (AdamW, SGDW).
    max_gradient_norm: Gradients of a larger norm, over all trained weights
      together, are scaled down to it, before weight decay; None for no bound.
    learning_rate_schedule: From the number of rounds done to the factor of the
      clients' learning rate in the round; None for 1.
  """

  weight_decay: float = 0.0
  decoupled_weight_decay: float = 0.0
  max_gradient_norm: Optional[float] = None
  learning_rate_schedule: Optional[schedules.Schedule] = None

  def __post_init__(self):
    for name in ('weight_decay', 'decoupled_weight_decay'):
      errors.expect_non_negative(name, getattr(self, name))
    if self.max_gradient_norm is not None:
      errors.expect_positive('max_gradient_norm', self.max_gradient_norm)
    schedules.expect_schedule(
      'learning_rate_schedule', self.learning_rate_schedule
    )


# The options, and what the learning rate is multiplied by (None for 1).
_active = contextvars.ContextVar(
  'training_options', default=(TrainingOptions(), None)
)


@contextlib.contextmanager
def in_force(
  options: TrainingOptions, rounds_done: Optional[tf.Tensor] = None
) -> Iterator[None]:
  """The options hold for the training that is traced in this context.

  So a method need not hand them on to wherever it trains.

  Args:
    options: What holds.
    rounds_done: For the schedule; None for training outside of rounds.
  """
  schedule = options.learning_rate_schedule
  factor = None
  if schedule is not None and rounds_done is not None:
    factor = tf.cast(schedule(rounds_done), tf.float32)
  token = _active.set((options, factor))
  try:
    yield
  finally:
    _active.reset(token)


def scheduled(learning_rate: Any) -> Any:
  """A learning rate times the factor of the round.

  For methods that use their learning rate themselves.
  """
  _, factor = _active.get()
  return learning_rate if factor is None else learning_rate * factor


def initial_state(
  optimizer: tff.learning.optimizers.Optimizer, weights: Mapping[str, Any]
) -> Any:
  """The state of an optimizer of weights, at the learning rate of the round."""
  specs = collections.OrderedDict(
    (name, tf.TensorSpec(value.shape, value.dtype))
    for name, value in weights.items()
  )
  state = optimizer.initialize(specs)
  _, factor = _active.get()
  return state if factor is None else scaled(optimizer, state, factor)


def scaled(
  optimizer: tff.learning.optimizers.Optimizer, state: Any, factor: tf.Tensor
) -> Any:
  """An optimizer's state with its learning rate times a factor."""
  rate = _learning_rate(optimizer, state) * factor
  hparams = optimizer.get_hparams(state)
  return optimizer.set_hparams(state, {**hparams, _LEARNING_RATE: rate})


def _learning_rate(optimizer, state):
  hparams = optimizer.get_hparams(state)
  errors.expect(
    _LEARNING_RATE in hparams,
    'optimizer',
    f'one with {_LEARNING_RATE!r} among its hyperparameters, for a schedule '
    'or decoupled weight decay',
    f'{type(optimizer).__name__} with {sorted(hparams)}',
  )
  return hparams[_LEARNING_RATE]


def change_gradient(
  gradient: Mapping[str, tf.Tensor], weights: Mapping[str, tf.Tensor]
) -> Mapping[str, tf.Tensor]:
  """A step's gradient, clipped, with weight decay."""
  options, _ = _active.get()
  if options.max_gradient_norm is not None:
    clipped, _ = tf.clip_by_global_norm(
      list(gradient.values()), options.max_gradient_norm
    )
    gradient = collections.OrderedDict(zip(gradient, clipped))
  if options.weight_decay:
    gradient = collections.OrderedDict(
      (name, slope + options.weight_decay * weights[name])
      for name, slope in gradient.items()
    )
  return gradient


def decay(
  optimizer: tff.learning.optimizers.Optimizer, state: Any
) -> Optional[tf.Tensor]:
  """The share that a step takes off the weights before it; None for none."""
  options, _ = _active.get()
  if not options.decoupled_weight_decay:
    return None
  return options.decoupled_weight_decay * _learning_rate(optimizer, state)
