"""Lets client work run for many clients as one program.

Client work is written for one client. A runtime may vectorize it
(`tf.vectorized_map`) with TensorFlow's rules and `runtime.vectorization_rules`.
This module has loops whose length differs between clients, and marks for these
rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_pfl.system import graph_defs


def longest(num_steps: tf.Tensor) -> tf.Tensor:
  """The largest value among the clients that run as one program.

  Args:
    num_steps: Scalar, the client's own number.

  Returns:
    `num_steps` itself for a client that runs alone.
  """
  # A vectorization rule gives this identity, which nothing else uses, its
  # meaning.
  return tf.raw_ops.Snapshot(input=num_steps)


def repeat(
  num_steps: tf.Tensor,
  step: Callable[..., tuple],
  initial: tuple,
  parallel_steps: int = 10,
) -> tuple:
  """Runs the steps of a client, or of all clients of a program together.

  Clients that run as one program make as many steps as the client with the
  most, so that XLA compiles the loop. `step` must change nothing after the
  client's own steps.

  Args:
    num_steps: int32 scalar, the client's own number.
    step: `(index, *values) -> values`. The index counts from 0.
    initial: The values before the first step.
    parallel_steps: Steps that TensorFlow may run at once. Each takes memory.

  Returns:
    The values after the last step.
  """
  number = longest(num_steps)
  outputs = tf.while_loop(
    lambda index, *_: index < number,
    lambda index, *values: (index + 1, *step(index, *values)),
    (0, *initial),
    parallel_iterations=parallel_steps,
  )
  if not tf.executing_eagerly():
    graph_defs.mark(outputs, graph_defs.COUNTED)
  return outputs[1:]


def change_if(
  is_step: tf.Tensor, changed: tf.Tensor, value: tf.Tensor
) -> tf.Tensor:
  """The value that a client has after a step of `repeat`.

  Args:
    is_step: Bool scalar, True while the client still makes steps.
    changed: The new value.
    value: The old one.

  Returns:
    `changed` or `value`. For a client that runs alone, it is always `changed`,
    because its loop ends with its steps.
  """
  return _marked(graph_defs.CHANGE_IF, [changed, value, is_step])[0]


def apart(values: Any, own: tf.Tensor) -> Any:
  """Returns a structure of tensors, marked as differing between clients.

  Without the mark, TensorFlow converts a loop once more to find out which of
  its values differ.

  Args:
    values: The structure.
    own: A tensor that already differs between clients.
  """
  _, *flat = _marked(graph_defs.APART, [own, *tf.nest.flatten(values)])
  return tf.nest.pack_sequence_as(values, flat)


def _marked(mark: str, values: list[tf.Tensor]) -> list[tf.Tensor]:
  outputs = tf.raw_ops.IdentityN(input=values)
  graph_defs.mark(outputs, mark)
  return outputs
