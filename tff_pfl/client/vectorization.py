"""Lets client work run for many clients as one program.

Client work is written for one client. A runtime may vectorize it
(`tf.vectorized_map`), which TensorFlow does operation by operation. Here are
the rules for operations that client work uses and TensorFlow has no rule for,
and what a loop needs whose length differs between clients.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tff_pfl.client import batched_convolutions  # noqa: F401 (adds rules)
from tff_pfl.runtime.private_api import RegisterPFor, pfor_converters, wrap

# Mark the operations of `change_if` and `apart`.
_CHANGE_IF = '_tff_pfl_change_if'
_APART = '_tff_pfl_apart'


def longest(num_steps: tf.Tensor) -> tf.Tensor:
  """The largest value among the clients that run as one program.

  A loop of so many steps, in which a client that has done its own does nothing
  more, has one length for all. XLA compiles no other.

  Args:
    num_steps: Scalar, the client's own number.

  Returns:
    `num_steps` itself for a client that runs alone.
  """
  # An identity that nothing else uses; the rule below gives it its meaning.
  return tf.raw_ops.Snapshot(input=num_steps)


def change_if(
  is_step: tf.Tensor, changed: tf.Tensor, value: tf.Tensor
) -> tf.Tensor:
  """What a client has after a step of such a loop.

  Args:
    is_step: Bool scalar, whether the client still makes steps.
    changed: The new value.
    value: The old one.

  Returns:
    `changed` itself for a client that runs alone, whose loop has ended
    otherwise.
  """
  return _marked(_CHANGE_IF, [changed, value, is_step])[0]


def apart(values: Any, own: tf.Tensor) -> Any:
  """A structure of tensors, of which each client has its own from here on.

  TensorFlow finds out by itself which of a loop's values differ between
  clients, by converting the loop once more. This spares it that.

  Args:
    values: The structure.
    own: A tensor that differs between clients already.
  """
  _, *flat = _marked(_APART, [own, *tf.nest.flatten(values)])
  return tf.nest.pack_sequence_as(values, flat)


def _marked(mark: str, values: list[tf.Tensor]) -> list[tf.Tensor]:
  outputs = tf.raw_ops.IdentityN(input=values)
  outputs[0].op._set_attr(mark, tf.compat.v1.AttrValue(b=True))
  return outputs


@RegisterPFor('Snapshot')
def _convert_longest(pfor_input: Any) -> Any:
  value = pfor_input.input(0)
  if not value.is_stacked:
    return wrap(value.t, False)
  return wrap(tf.reduce_max(value.t, axis=0), False)


_convert_identities = pfor_converters['IdentityN']


def _convert_marked(pfor_input: Any) -> Any:
  attributes = pfor_input.op.node_def.attr
  if _CHANGE_IF not in attributes and _APART not in attributes:
    return _convert_identities(pfor_input)
  pfor_input.stack_inputs()
  outputs = [pfor_input.stacked_input(i) for i in range(pfor_input.num_inputs)]
  if _CHANGE_IF in attributes:
    changed, value, is_step = outputs
    condition = tf.reshape(is_step, [-1, *[1] * (changed.shape.rank - 1)])
    outputs[0] = tf.where(condition, changed, value)
  return [wrap(output, True) for output in outputs]


pfor_converters['IdentityN'] = _convert_marked


@RegisterPFor('StatelessRandomUniformFullIntV2')
def _convert_random_integers(pfor_input: Any) -> Any:
  pfor_input.stack_inputs([1, 2])
  dtype = pfor_input.get_attr('dtype')
  numbers = tf.map_fn(
    lambda key_and_counter: tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=pfor_input.unstacked_input(0),
      key=key_and_counter[0],
      counter=key_and_counter[1],
      alg=pfor_input.unstacked_input(3),
      dtype=dtype,
    ),
    (pfor_input.stacked_input(1), pfor_input.stacked_input(2)),
    fn_output_signature=dtype,
  )
  return wrap(numbers, True)


@RegisterPFor('Bitcast')
def _convert_bitcast(pfor_input: Any) -> Any:
  # Only the last axis changes, or there is one more.
  numbers = tf.raw_ops.Bitcast(
    input=pfor_input.stacked_input(0), type=pfor_input.get_attr('type')
  )
  return wrap(numbers, True)


@RegisterPFor('MatrixSolveLs')
def _convert_matrix_solve_ls(pfor_input: Any) -> Any:
  pfor_input.stack_inputs([0, 1])
  solution = tf.raw_ops.MatrixSolveLs(
    matrix=pfor_input.stacked_input(0),
    rhs=pfor_input.stacked_input(1),
    l2_regularizer=pfor_input.unstacked_input(2),
    fast=pfor_input.get_attr('fast'),
  )
  return wrap(solution, True)
