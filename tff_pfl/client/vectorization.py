"""Lets client work run for many clients as one program.

Client work is written for one client. A runtime may vectorize it
(`tf.vectorized_map`), which TensorFlow does operation by operation. Here are
the rules for operations that client work uses and TensorFlow has no rule for,
and what a loop needs whose length differs between clients.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tff_pfl.runtime.private_api import RegisterPFor, wrap


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


@RegisterPFor('Snapshot')
def _convert_longest(pfor_input: Any) -> Any:
  value = pfor_input.input(0)
  if not value.is_stacked:
    return wrap(value.t, False)
  return wrap(tf.reduce_max(value.t, axis=0), False)


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


@RegisterPFor('TopKV2')
def _convert_top_k(pfor_input: Any) -> Any:
  # Sorting is along the last axis anyway.
  numbers, indices = tf.raw_ops.TopKV2(
    input=pfor_input.stacked_input(0),
    k=pfor_input.unstacked_input(1),
    sorted=pfor_input.get_attr('sorted'),
    index_type=pfor_input.get_attr('index_type'),
  )
  return wrap(numbers, True), wrap(indices, True)


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
