"""Phases of local training: their optimizer, length and batches.

A phase is `num_epochs` passes over the client's examples, or `num_steps` steps,
in mini-batches without replacement that are reshuffled each epoch from a seed.
An epoch's last batch may be partial. `plan_batches` assigns the examples to
batches beforehand, so that the loop only gathers them.
"""

import dataclasses
from typing import Any, Literal, NamedTuple, Optional, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.core import example_tensors
from tff_pfl.models import randomness

# After this many epochs, a phase repeats its shuffles in the same order.
_MAX_ORDERS = 128

# Flags and stored runs use the names.
Optimizer = Union[Literal['sgd', 'adam'], tff.learning.optimizers.Optimizer]


def build_optimizer(
  optimizer: Optimizer, learning_rate: float, momentum: float = 0.0
) -> tff.learning.optimizers.Optimizer:
  """Builds a TFF optimizer by name.

  Args:
    optimizer: 'sgd', 'adam' or an optimizer object with its own learning rate,
      which is returned unchanged.
    learning_rate: Learning rate, positive and finite.
    momentum: SGD momentum, in [0, 1), ignored by Adam.
  """
  if is_object(optimizer):
    return optimizer
  if optimizer == 'adam':
    return tff.learning.optimizers.build_adam(learning_rate)
  return tff.learning.optimizers.build_sgdm(learning_rate, momentum or None)


def is_object(optimizer: Optimizer) -> bool:
  """True for an optimizer object, False for a name."""
  return isinstance(optimizer, tff.learning.optimizers.Optimizer)


def expect_own_rates(
  options: Any, *names: str, optimizer: str = 'optimizer'
) -> None:
  """Raises `ValueError` for a rate given with an optimizer object.

  Args:
    options: A dataclass with an optimizer.
    *names: The fields that only a named optimizer uses.
    optimizer: Name of the optimizer field.
  """
  if is_object(getattr(options, optimizer)):
    for field in dataclasses.fields(options):
      value = getattr(options, field.name)
      errors.expect(
        field.name not in names or value == field.default,
        field.name,
        'left out with an optimizer object, which has its own',
        value,
      )


def describe_optimizer(
  optimizer: tff.learning.optimizers.Optimizer,
) -> dict[str, Any]:
  """An optimizer's name and hyperparameters, as JSON types."""
  hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([])))
  return {
    'name': type(optimizer).__name__,
    **{name: float(value) for name, value in hparams.items()},
  }


@dataclasses.dataclass(frozen=True)
class Phase:
  """A phase of local training.

  Attributes:
    optimizer: The client's optimizer, whose state is new in each phase.
    batch_size: Examples per batch. None or 0 puts all of a client's examples in
      one batch.
    num_epochs: Passes over the client's examples, ignored with `num_steps`.
    num_steps: Gradient steps, over as many epochs as they take. None uses
      `num_epochs`.
    batches_per_step: Batches that the objective takes at each step. The first
      are the batches of a phase with one. The others go through the same order
      of the examples from other starting points, so that the batches of a step
      have no example in common. If a client has fewer batches, some or all are
      the same.
  """

  optimizer: tff.learning.optimizers.Optimizer
  batch_size: Optional[int] = None
  num_epochs: int = 1
  num_steps: Optional[int] = None
  batches_per_step: int = 1


class BatchPlan(NamedTuple):
  """The batches of each step of a phase.

  Attributes:
    indices: int32 `[max_steps, batches_per_step, batch_size]`, rows of the
      example tensors.
    example_weights: float32, of the same shape, 0 for missing examples.
    num_steps: int32 scalar, the client's steps, at most `max_steps`.
  """

  indices: tf.Tensor
  example_weights: tf.Tensor
  num_steps: tf.Tensor


class _Lengths(NamedTuple):
  batch_size: tf.Tensor
  steps_per_epoch: tf.Tensor
  num_steps: tf.Tensor


def _lengths(examples, phase, capacity) -> _Lengths:
  # A batch never needs more rows than exist.
  batch_size = tf.minimum(phase.batch_size or capacity, capacity)
  steps_per_epoch = tf.maximum(1, -(-examples.num_examples // batch_size))
  num_steps = phase.num_steps
  if num_steps is None:
    num_steps = phase.num_epochs * steps_per_epoch
  return _Lengths(
    batch_size,
    steps_per_epoch,
    tf.where(examples.num_examples > 0, num_steps, 0),
  )


def count_steps(
  examples: example_tensors.ExampleTensors, phase: Phase
) -> tf.Tensor:
  """The number of gradient steps of a client in a phase, int32 scalar."""
  return _lengths(examples, phase, examples.capacity).num_steps


def plan_batches(
  examples: example_tensors.ExampleTensors, phase: Phase, seed: tf.Tensor
) -> BatchPlan:
  """Plans a phase's batches, in shapes that depend only on the capacity."""
  capacity, num_examples = examples.capacity, examples.num_examples
  batch_size, steps_per_epoch, num_steps = _lengths(examples, phase, capacity)
  if phase.num_steps is None:
    num_epochs = tf.constant(phase.num_epochs)
    max_steps = phase.num_epochs * -(-capacity // batch_size)
  else:
    max_steps = tf.constant(phase.num_steps)
    # The smallest client of the bucket passes through the most epochs.
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
  # A step's batches are evenly spaced in the epoch.
  offsets = [
    i * steps_per_epoch // phase.batches_per_step
    for i in range(phase.batches_per_step)
  ]
  batches = (steps[:, tf.newaxis] + tf.stack(offsets)) % steps_per_epoch
  positions = batches[:, :, tf.newaxis] * batch_size + tf.range(batch_size)
  is_example = tf.logical_and(
    (steps < num_steps)[:, tf.newaxis, tf.newaxis], positions < num_examples
  )
  # A batch without enough examples repeats one with weight 0. A row of padding
  # may be NaN after the body, and its gradient 0 * NaN.
  positions = tf.minimum(positions, tf.maximum(num_examples, 1) - 1)
  indices = tf.gather(
    tf.reshape(order, [-1]),
    epochs[:, tf.newaxis, tf.newaxis] * capacity + positions,
  )
  return BatchPlan(indices, tf.cast(is_example, tf.float32), num_steps)
