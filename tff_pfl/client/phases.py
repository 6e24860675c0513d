"""Phases of local training: which optimizer, how long, in which batches.

A phase is `num_epochs` passes over the client's examples, or `num_steps` steps,
in mini-batches without replacement that are reshuffled each epoch from a seed;
an epoch's last batch is partial. The plan of which example is in which batch is
made first (`plan_batches`), so that the loop only gathers.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.client import example_tensors
from tff_pfl.models import randomness

# After so many epochs of a phase the shuffles come again in the same order.
_MAX_ORDERS = 128
# The plans of batches are int32.
_INT32_END = 2**31

OPTIMIZERS = ('sgd', 'adam')


def build_optimizer(
  name: str, learning_rate: float, momentum: float = 0.0, *, role: str = ''
) -> tff.learning.optimizers.Optimizer:
  """A TFF optimizer by name.

  Args:
    name: 'sgd' or 'adam'.
    learning_rate: Positive and finite.
    momentum: SGD momentum, in [0, 1); ignored by Adam.
    role: What the arguments' names start with in an error, such as 'server_'.

  Raises:
    ValueError: If an argument is out of its range.
  """
  errors.expect_one_of(f'{role}optimizer', name, OPTIMIZERS)
  errors.expect(
    0 < learning_rate < float('inf'),
    f'{role}learning_rate',
    'positive and finite',
    learning_rate,
  )
  errors.expect(0 <= momentum < 1, f'{role}momentum', 'in [0, 1)', momentum)
  if name == 'adam':
    return tff.learning.optimizers.build_adam(learning_rate)
  return tff.learning.optimizers.build_sgdm(learning_rate, momentum or None)


@dataclasses.dataclass(frozen=True)
class Phase:
  """A phase of local training.

  Attributes:
    optimizer: The client's optimizer; its state starts anew with the phase.
    batch_size: Examples per batch; None takes all of a client's examples in one
      batch.
    num_epochs: Passes over the client's examples. Ignored with `num_steps`.
    num_steps: If given, the number of gradient steps, through as many epochs as
      that takes.
    batches_per_step: Batches that the objective takes at each step. The first
      are those of a phase with one; the others go through the same order of the
      examples, each from another place on, so that the batches of a step have
      no example in common. On a client with fewer batches than that, some or
      all of them are the same.
  """

  optimizer: tff.learning.optimizers.Optimizer
  batch_size: Optional[int] = None
  num_epochs: int = 1
  num_steps: Optional[int] = None
  batches_per_step: int = 1

  def __post_init__(self):
    for name in ('batch_size', 'num_steps', 'batches_per_step'):
      value = getattr(self, name)
      may_be_none = name != 'batches_per_step'
      errors.expect(
        (value is None and may_be_none)
        or (isinstance(value, numbers.Integral) and 0 < value < _INT32_END),
        name,
        'a positive 32-bit integer' + ' or None' * may_be_none,
        value,
      )
    errors.expect(
      isinstance(self.num_epochs, numbers.Integral)
      and 0 <= self.num_epochs < _INT32_END,
      'num_epochs',
      'a 32-bit integer, at least 0',
      self.num_epochs,
    )


class BatchPlan(NamedTuple):
  """Which examples each step sees.

  Attributes:
    indices: int32 `[max_steps, batches_per_step, batch_size]`, rows of the
      example tensors.
    example_weights: float32, of the same shape, 0 where there is no example.
    num_steps: int32 scalar, at most `max_steps`.
  """

  indices: tf.Tensor
  example_weights: tf.Tensor
  num_steps: tf.Tensor


def count_steps(
  examples: example_tensors.ExampleTensors, phase: Phase
) -> tf.Tensor:
  """int32, the gradient steps that a client makes in a phase."""
  num_steps = phase.num_steps
  if num_steps is None:
    num_steps = phase.num_epochs * _steps_per_epoch(examples, phase)
  return tf.where(examples.num_examples > 0, num_steps, 0)


def _batch_size(examples, phase):
  # A batch never needs more rows than there are.
  return tf.minimum(phase.batch_size or examples.capacity, examples.capacity)


def _steps_per_epoch(examples, phase):
  return tf.maximum(
    1, -(-examples.num_examples // _batch_size(examples, phase))
  )


def plan_batches(
  examples: example_tensors.ExampleTensors, phase: Phase, seed: tf.Tensor
) -> BatchPlan:
  """Plans the batches of a phase; its size depends on the bucket only."""
  capacity, num_examples = examples.capacity, examples.num_examples
  batch_size = _batch_size(examples, phase)
  steps_per_epoch = _steps_per_epoch(examples, phase)
  num_steps = count_steps(examples, phase)
  if phase.num_steps is None:
    num_epochs = tf.constant(phase.num_epochs)
    max_steps = phase.num_epochs * -(-capacity // batch_size)
  else:
    max_steps = tf.constant(phase.num_steps)
    # As many as the smallest client of the bucket passes through.
    fewest_per_epoch = -(
      -example_tensors.fewest_examples(capacity) // batch_size
    )
    num_epochs = -(-max_steps // fewest_per_epoch)
  num_orders = tf.minimum(num_epochs, _MAX_ORDERS)
  order = randomness.permutations(
    seed,
    num_orders,
    capacity,
    num_examples,
    max_permutations=min(phase.num_steps or phase.num_epochs, _MAX_ORDERS),
  )
  steps = tf.range(max_steps)
  epochs = (steps // steps_per_epoch) % tf.maximum(num_orders, 1)
  # A step's batches are equally far from each other in the epoch.
  offsets = [
    i * steps_per_epoch // phase.batches_per_step
    for i in range(phase.batches_per_step)
  ]
  batches = (steps[:, tf.newaxis] + tf.stack(offsets)) % steps_per_epoch
  positions = batches[:, :, tf.newaxis] * batch_size + tf.range(batch_size)
  is_example = tf.logical_and(
    (steps < num_steps)[:, tf.newaxis, tf.newaxis], positions < num_examples
  )
  # Where a batch has no example left it repeats one with weight 0: a row of
  # padding may be NaN after the body, and its gradient 0 * NaN.
  indices = tf.gather(
    tf.gather(order, epochs),
    tf.minimum(positions, tf.maximum(num_examples, 1) - 1),
    batch_dims=1,
  )
  return BatchPlan(indices, tf.cast(is_example, tf.float32), num_steps)
