"""Phases of local training: their optimizer, length and batches.

A phase is `num_epochs` passes over the client's examples, or `num_steps` steps,
in mini-batches without replacement that are reshuffled each epoch from a seed;
an epoch's last batch is partial. `plan_batches` assigns the examples to batches
beforehand, so that the loop only gathers them.
"""

import dataclasses
from typing import Any, Literal, NamedTuple, Optional, Union

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.core import example_tensors
from tff_pfl.models import randomness

# After so many epochs of a phase the shuffles come again in the same order.
_MAX_ORDERS = 128

# Names are for flags and for stored runs.
Optimizer = Union[Literal['sgd', 'adam'], tff.learning.optimizers.Optimizer]


def build_optimizer(
  optimizer: Optimizer, learning_rate: float, momentum: float = 0.0
) -> tff.learning.optimizers.Optimizer:
  """Builds a TFF optimizer by name.

  Args:
    optimizer: 'sgd' or 'adam'; or the optimizer itself, which is returned as it
      is and has a learning rate of its own.
    learning_rate: Learning rate, positive and finite.
    momentum: SGD momentum, in [0, 1); ignored by Adam.
  """
  if is_object(optimizer):
    return optimizer
  if optimizer == 'adam':
    return tff.learning.optimizers.build_adam(learning_rate)
  return tff.learning.optimizers.build_sgdm(learning_rate, momentum or None)


def is_object(optimizer: Optimizer) -> bool:
  """True for the optimizer itself, False for its name."""
  return isinstance(optimizer, tff.learning.optimizers.Optimizer)


def expect_own_rates(
  options: Any, *names: str, optimizer: str = 'optimizer'
) -> None:
  """Raises `ValueError` for a rate beside an optimizer that has its own.

  Args:
    options: A dataclass with an optimizer.
    *names: Its fields that only an optimizer by name takes.
    optimizer: Name of the field of the optimizer.
  """
  if is_object(getattr(options, optimizer)):
    for field in dataclasses.fields(options):
      value = getattr(options, field.name)
      errors.expect(
        field.name not in names or value == field.default,
        field.name,
        'left out beside an optimizer that is no name, for that has its own',
        value,
      )


def describe_optimizer(
  optimizer: tff.learning.optimizers.Optimizer,
) -> dict[str, Any]:
  """An optimizer's name and its hyperparameters, as JSON types."""
  hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([])))
  return {
    'name': type(optimizer).__name__,
    **{name: float(value) for name, value in hparams.items()},
  }


@dataclasses.dataclass(frozen=True)
class Phase:
  """A phase of local training.

  Attributes:
    optimizer: The client's optimizer; its state starts anew with the phase.
    batch_size: Examples per batch; None or 0 for all of a client's examples in
      one batch.
    num_epochs: Passes over the client's examples. Ignored with `num_steps`.
    num_steps: Gradient steps, through as many epochs as that takes; None for
      `num_epochs`.
    batches_per_step: Batches that the objective takes at each step. The first
      are those of a phase with one. The others go through the same order of the
      examples, each from another place on, so that the batches of a step have
      no example in common. On a client with fewer batches some or all are the
      same.
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
    example_weights: float32, of the same shape, 0 where there is no example.
    num_steps: int32 scalar, the client's steps, at most `max_steps`.
  """

  indices: tf.Tensor
  example_weights: tf.Tensor
  num_steps: tf.Tensor


def count_steps(
  examples: example_tensors.ExampleTensors, phase: Phase
) -> tf.Tensor:
  """Number of gradient steps that a client makes in a phase, int32 scalar."""
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
  """Plans the batches of a phase; the shapes depend only on the capacity."""
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
  positions = tf.minimum(positions, tf.maximum(num_examples, 1) - 1)
  indices = tf.gather(
    tf.reshape(order, [-1]),
    epochs[:, tf.newaxis, tf.newaxis] * capacity + positions,
  )
  return BatchPlan(indices, tf.cast(is_example, tf.float32), num_steps)
