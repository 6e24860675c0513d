"""Rules by which TensorFlow vectorizes the operations of client work.

They serve the operations of `core.vectorization`, and others for which
TensorFlow has no rule.
"""

from typing import Any

import tensorflow as tf

from tff_pfl.models import philox
from tff_pfl.runtime import (
  batched_convolutions,  # noqa: F401 (adds rules)
  devices,
)
from tff_pfl.system import graph_defs
from tff_pfl.system.private_api import (
  PFor,
  RegisterPFor,
  convert_function_call,
  pfor_converters,
  wrap,
)

# A GPU starts each pass through a loop about 10 us after the last one. Steps
# that take little longer, because they change few of a client's numbers, share
# a pass.
_STEPS_IN_A_PASS = 5
_FEW_NUMBERS = 2**15


@RegisterPFor('L2Loss')
def _convert_l2_loss(pfor_input: Any) -> Any:
  value = pfor_input.stacked_input(0)
  rows = tf.reshape(value, [tf.shape(value)[0], -1])
  return wrap(tf.reduce_sum(tf.square(rows), axis=1) / 2, True)


@RegisterPFor('Snapshot')
def _convert_longest(pfor_input: Any) -> Any:
  value = pfor_input.input(0)
  if not value.is_stacked:
    return wrap(value.t, False)
  return wrap(tf.reduce_max(value.t, axis=0), False)


_convert_identities = pfor_converters['IdentityN']


def _convert_marked(pfor_input: Any) -> Any:
  attributes = pfor_input.op.node_def.attr
  if (
    graph_defs.CHANGE_IF not in attributes
    and graph_defs.APART not in attributes
  ):
    return _convert_identities(pfor_input)
  pfor_input.stack_inputs()
  outputs = [pfor_input.stacked_input(i) for i in range(pfor_input.num_inputs)]
  if graph_defs.CHANGE_IF in attributes:
    changed, value, is_step = outputs
    condition = tf.reshape(is_step, [-1, *[1] * (changed.shape.rank - 1)])
    outputs[0] = tf.where(condition, changed, value)
  return [wrap(output, True) for output in outputs]


pfor_converters['IdentityN'] = _convert_marked


_convert_any_loop = pfor_converters['While']


def _convert_loop(pfor_input: Any) -> Any:
  """Converts a loop that ends for all clients together.

  TensorFlow's own rule also serves loops that end at different times. It puts
  the body into a condition, for which a GPU waits in each step, and writes
  results client by client.
  """
  if any(wrapped.t.dtype == tf.variant for wrapped in pfor_input.inputs):
    return _convert_any_loop(pfor_input)
  stacked = [wrapped.is_stacked for wrapped in pfor_input.inputs]
  while True:
    loop = _Loop(pfor_input, stacked)
    run = tf.function(loop.run, autograph=False)
    run.get_concrete_function()
    if loop.condition_differs:
      return _convert_any_loop(pfor_input)
    if loop.stacked == stacked:
      return [wrap(*result) for result in zip(run(), stacked)]
    # More values differ between clients than assumed.
    stacked = loop.stacked


class _Loop:
  """A loop converted for the values that differ between clients.

  Attributes:
    stacked: For each value, True if it differs before or after a step.
    condition_differs: True if one client may make more steps than another.
  """

  def __init__(self, pfor_input: Any, stacked: list[bool]):
    self.stacked = stacked
    self.condition_differs = False
    self._input = pfor_input
    self._initially = stacked
    graph = pfor_input.op.graph
    self._condition, self._body = (
      graph._get_function(pfor_input.get_attr(name).name)
      for name in ('cond', 'body')
    )

  def run(self) -> list[tf.Tensor]:
    """Returns the values after the last step."""
    initial = [
      wrapped.t
      if wrapped.is_stacked or not is_stacked
      else self._per_client(wrapped.t)
      for wrapped, is_stacked in zip(self._input.inputs, self._initially)
    ]
    condition, body = self._convert_condition, self._convert_body
    num_together = self._steps_in_a_pass()
    if num_together > 1:
      body = tf.function(body, autograph=False)

      def several(*values):
        for _ in range(num_together):
          values = body(*values)
        return values

      initial = self._loop(
        # True if even the last of these steps is still to be made.
        lambda *values: condition(*self._ahead(values, num_together - 1)),
        several,
        initial,
      )
    return self._loop(condition, body, initial)

  def _loop(self, condition, body, initial):
    shapes = [
      tf.TensorShape([None]).concatenate(output.shape)
      if is_stacked
      else output.shape
      for output, is_stacked in zip(self._input.op.outputs, self._initially)
    ]
    return tf.while_loop(
      condition,
      body,
      initial,
      shape_invariants=shapes,
      parallel_iterations=1,
    )

  def _steps_in_a_pass(self) -> int:
    operation = self._input.op
    changing = zip(
      self._body.graph.inputs, self._body.graph.outputs, operation.outputs
    )
    sizes = [
      output.shape.num_elements()
      for before, after, output in changing
      if before is not after
    ]
    is_short = None not in sizes and sum(sizes) <= _FEW_NUMBERS
    is_counted = graph_defs.COUNTED in operation.node_def.attr
    if devices.traced_for_gpu() and is_counted and is_short:
      return _STEPS_IN_A_PASS
    return 1

  def _ahead(self, values, num_steps: int):
    """Returns the values that a condition sees some steps later."""
    # TensorFlow's counter, its bound, and the index of `repeat`.
    counter, bound, index, *others = values
    return counter + num_steps, bound, index + num_steps, *others

  def _convert_condition(self, *arguments: tf.Tensor) -> tf.Tensor:
    (condition,) = self._convert(self._condition, arguments)
    self.condition_differs = condition.is_stacked
    return tf.reduce_any(condition.t)

  def _convert_body(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
    outputs = self._convert(self._body, arguments)
    self.stacked = [
      output.is_stacked or is_stacked
      for output, is_stacked in zip(outputs, self._initially)
    ]
    if self.stacked != self._initially:
      return list(arguments)  # The loop is converted again.
    return [
      output.t
      if output.is_stacked == is_stacked
      else self._per_client(output.t)
      for output, is_stacked in zip(outputs, self.stacked)
    ]

  def _convert(self, function: Any, arguments: Any) -> Any:
    pfor = self._input.pfor
    converter = PFor(
      loop_var=pfor.loop_var,
      loop_len=pfor.loop_len_vector[0],
      pfor_ops=function.graph.get_operations(),
      fallback_to_while_loop=pfor.fallback_to_while_loop,
      all_indices=pfor.all_indices,
      all_indices_partitioned=pfor.all_indices_partitioned,
      pfor_config=pfor.pfor_config,
    )
    wrapped = [wrap(*pair) for pair in zip(arguments, self._initially)]
    return convert_function_call(function, converter, wrapped)

  def _per_client(self, value: tf.Tensor) -> tf.Tensor:
    shape = tf.concat([self._input.pfor.loop_len_vector, tf.shape(value)], 0)
    return tf.broadcast_to(value, shape)


for _kind in ('While', 'StatelessWhile'):
  pfor_converters[_kind] = _convert_loop


@RegisterPFor('StatelessRandomUniformFullIntV2')
def _convert_random_integers(pfor_input: Any) -> Any:
  dtype = pfor_input.get_attr('dtype')
  if dtype.size != 4:
    raise NotImplementedError('Random integers of 64 bits do not vectorize.')
  pfor_input.stack_inputs([1, 2])
  numbers = philox.integers(
    pfor_input.unstacked_input(0),
    pfor_input.stacked_input(1),
    pfor_input.stacked_input(2),
  )
  return wrap(tf.bitcast(numbers, dtype), True)


@RegisterPFor('Bitcast')
def _convert_bitcast(pfor_input: Any) -> Any:
  # A bitcast changes only the last axis, or adds one.
  numbers = tf.raw_ops.Bitcast(
    input=pfor_input.stacked_input(0), type=pfor_input.get_attr('type')
  )
  return wrap(numbers, True)
