"""Training of large weights in place, without XLA.

On a CPU, a step on large weights takes as long as moving them through memory.
XLA's programs read and write each number once. For models that are not meant
for XLA (`SplitModel.uses_xla`), so do TensorFlow's fused kernels if the weights
and the optimizer's state are variables. The variables have no names. Each
execution of the graph makes its own and frees them at its end, so clients that
train at the same time share nothing. The clients' work remains a pure function.

Unlike values, variables cannot be vectorized. The graph therefore has two forms
of such training, marked by `graph_defs.FORMS_ATTRIBUTE`, with the same result
up to rounding. TensorFlow uses the first for a client that runs alone. A
runtime that runs several clients as one program uses the second.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.core import training_options
from tff_pfl.system import graph_defs

# With fewer weights less is gained, and two forms have to be traced.
_MANY_WEIGHTS = 120_000

_SGD = type(tff.learning.optimizers.build_sgdm(1.0))
_ADAM = type(tff.learning.optimizers.build_adam(1.0))


class Variables:
  """Weights and their optimizer's state during one execution of a graph.

  They are made, used and freed in the same graph, including its loops.
  """

  def __init__(
    self,
    weights: Mapping[str, tf.Tensor],
    optimizer: training_options.OptimizerChain,
  ):
    """Makes the variables.

    Args:
      weights: Initial weights by name.
      optimizer: A chain that `is_faster` accepts. This class makes the step of
        its last link.
    """
    self._dtypes = {name: value.dtype for name, value in weights.items()}
    self._weights = _variables(weights)
    state = optimizer.initialize(training_options.specs_of(weights))
    self._hparams = optimizer.last.get_hparams(state)
    self._decay = optimizer.decay(state)
    self._slots = {
      slot: _variables(state[slot])
      for slot in ('accumulator', 'preconditioner')
      if slot in state
    }

  def read(self) -> collections.OrderedDict:
    """Returns the weights by name."""
    return collections.OrderedDict(
      (
        name,
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=self._dtypes[name]),
      )
      for name, handle in self._weights.items()
    )

  def update(
    self,
    step: tf.Tensor,
    weights: Mapping[str, tf.Tensor],
    gradient: Mapping[str, tf.Tensor],
  ) -> None:
    """Makes an optimizer step.

    Args:
      step: int32 scalar, the number of previous steps.
      weights: The weights from `read`. Do not use them afterwards.
    """
    for name, handle in self._weights.items():
      order = weights[name].consumers()
      if self._decay is not None:
        with tf.control_dependencies(order):
          decay = tf.cast(self._decay, weights[name].dtype)
          order = [
            tf.raw_ops.AssignSubVariableOp(
              resource=handle, value=decay * weights[name]
            )
          ]
      # The kernel would copy weights that other operations have yet to read.
      with tf.control_dependencies(order):
        self._update(name, handle, step, gradient[name])

  def _update(self, name, handle, step, gradient):
    numbers = {
      name: tf.cast(value, gradient.dtype)
      for name, value in self._hparams.items()
    }
    slots = {slot: handles[name] for slot, handles in self._slots.items()}
    if 'preconditioner' in slots:
      count = tf.cast(step + 1, gradient.dtype)
      tf.raw_ops.ResourceApplyAdam(
        var=handle,
        m=slots['accumulator'],
        v=slots['preconditioner'],
        beta1_power=numbers['beta_1'] ** count,
        beta2_power=numbers['beta_2'] ** count,
        lr=numbers['learning_rate'],
        beta1=numbers['beta_1'],
        beta2=numbers['beta_2'],
        epsilon=numbers['epsilon'],
        grad=gradient,
      )
    elif 'accumulator' in slots:
      tf.raw_ops.ResourceApplyMomentum(
        var=handle,
        accum=slots['accumulator'],
        lr=numbers['learning_rate'],
        grad=gradient,
        momentum=numbers['momentum'],
      )
    else:
      tf.raw_ops.ResourceApplyGradientDescent(
        var=handle, alpha=numbers['learning_rate'], delta=gradient
      )

  def free(self) -> None:
    """Frees the variables. Weights that were read remain valid."""
    for handles in (self._weights, *self._slots.values()):
      for handle in handles.values():
        tf.raw_ops.DestroyResourceOp(resource=handle)


def is_faster(
  weights: Mapping[str, Any], optimizer: training_options.OptimizerChain
) -> bool:
  """True if weights are many, and a fused kernel makes the optimizer's step.

  Args:
    weights: Arrays or tensors by name.
    optimizer: The optimizer. The kernel makes the step of its last link.
  """
  sizes = [tf.TensorShape(v.shape).num_elements() for v in weights.values()]
  return sum(sizes) >= _MANY_WEIGHTS and isinstance(
    optimizer.last, (_SGD, _ADAM)
  )


def choose_kernel(alone: Callable[[], Any], together: Callable[[], Any]) -> Any:
  """Returns the results of one of two functions of tensors.

  Args:
    alone: The function for a client that runs alone.
    together: The function for clients that run as one program.
  """
  if tf.executing_eagerly():
    return alone()
  outputs = tf.switch_case(tf.constant(graph_defs.ALONE), [alone, together])
  graph_defs.mark(outputs, graph_defs.FORMS_ATTRIBUTE)
  return outputs


def _variables(values: Mapping[str, Any]) -> dict[str, tf.Tensor]:
  """Makes variables and returns their handles."""
  handles = {}
  for name, value in values.items():
    handles[name] = tf.raw_ops.VarHandleOp(
      dtype=value.dtype, shape=value.shape, shared_name=graph_defs.ANONYMOUS
    )
    tf.raw_ops.AssignVariableOp(resource=handles[name], value=value)
  return handles
