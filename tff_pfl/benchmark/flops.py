"""Floating point operations of a round, from the shapes of a model's layers.

Counted are matrix products and convolutions, a multiplication with its addition
as 2; activations, losses and optimizers are not. For one example, the forward
pass of a layer takes

    dense:        2 * inputs * outputs
    convolution:  2 * positions * kernel area * channels in * channels out

operations, the gradient of its kernel takes as many, and so does the gradient
of its inputs. With f_1, f_2, ... of the layers in order, F their sum, F_B that
of the body, F_H that of the head and f_H the head's first layer:

    step on all weights:                     3 F - f_1
    step on the head, from cached features:  3 F_H - f_H
    step on the body, with the head frozen:  3 F - f_1 - F_H
    features of the frozen body, once:       F_B
    Hessian of all weights times a vector:   8 F - 5 f_1

(nothing needs the gradient of the first layer's inputs, nor of frozen kernels).
The last is Pearlmutter's: forward F and backward F - f_1 once, and their
derivatives along the vector, where each product has two terms: forward
2 F - f_1, backward 2 (F - f_1), gradients of kernels 2 F - f_1 (the first
layer's inputs do not move).

Work that caching the frozen body's features saves is not counted: the rate that
follows is of what the method needs, not of what a plain loop would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.client import phases
from tff_pfl.models import split_model


class ForwardFlops(NamedTuple):
  """Operations of a forward pass of one example.

  Attributes:
    body: Of each layer of the body that has any, in order.
    head: Likewise, of the head.
  """

  body: tuple
  head: tuple


def forward_flops(model: split_model.SplitModel) -> ForwardFlops:
  """Counts a model's operations, layer by layer.

  Args:
    model: Its layers must come to matrix products and convolutions of known
      shapes, as dense and convolution layers do.
  """
  weights = {
    name: tf.TensorSpec(value.shape, value.dtype)
    for name, value in model.initial_weights.items()
  }

  def trace(part, inputs):
    function = tf.function(
      lambda weights, x: part(weights, x, split_model.INFERENCE)[0],
      autograph=False,
    ).get_concrete_function(weights, inputs)
    counts = map(_operation_flops, function.graph.get_operations())
    return tuple(filter(None, counts)), function.structured_outputs

  x = model.element_spec['x']
  body, features = trace(model.body, tf.TensorSpec([1, *x.shape], x.dtype))
  head, _ = trace(
    model.head,
    tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype), features
    ),
  )
  return ForwardFlops(body, head)


def _operation_flops(operation: tf.Operation) -> int:
  """Operations of one node of a graph for one example."""
  if operation.type == 'MatMul':
    num_outputs = operation.outputs[0].shape.num_elements()
    left = operation.inputs[0].shape
    return 2 * num_outputs * left[0 if operation.get_attr('transpose_a') else 1]
  if operation.type == 'Conv2D':
    num_outputs = operation.outputs[0].shape.num_elements()
    # [height, width, channels in, channels out]
    return 2 * num_outputs * operation.inputs[1].shape[:3].num_elements()
  return 0


def examples_seen(
  phase: phases.Phase, num_examples: int, place: int = 0
) -> int:
  """How many examples the steps of a client's phase see, repetitions included.

  Args:
    phase: Of local training.
    num_examples: The client's training examples.
    place: Which of a step's batches is counted, of `phase.batches_per_step`.
  """
  if phase.num_steps is None or not num_examples:
    return phase.num_epochs * num_examples
  batch_size = min(phase.batch_size or num_examples, num_examples)
  steps_per_epoch = -(-num_examples // batch_size)
  num_epochs, num_steps = divmod(phase.num_steps, steps_per_epoch)
  first = place * steps_per_epoch // phase.batches_per_step
  seen = num_epochs * num_examples + num_steps * batch_size
  # The epoch's last batch lacks what does not go into whole ones.
  if first + num_steps >= steps_per_epoch and num_steps:
    seen -= steps_per_epoch * batch_size - num_examples
  return seen


class Cost(NamedTuple):
  """What one client, or several, do in a round.

  Attributes:
    examples: Examples that training steps see, repetitions included.
    flops: Floating point operations.
  """

  examples: int
  flops: int


def _step(forward):
  """Of an example in a step on all weights."""
  layers = forward.body + forward.head
  return 3 * sum(layers) - layers[0]


def _fed_avg(hparams, forward, num_examples):
  seen = examples_seen(hparams.phase(), num_examples)
  return Cost(seen, seen * _step(forward))


def _per_fed_avg(hparams, forward, num_examples):
  errors.expect(
    hparams.inner_scope == 'all',
    'inner_scope',
    "'all' where operations are counted",
    hparams.inner_scope,
  )
  phase = hparams.phase()
  seen = [
    examples_seen(phase, num_examples, place)
    for place in range(phase.batches_per_step)
  ]
  num_gradients = 1 + hparams.num_inner_steps
  layers = forward.body + forward.head
  curvature = {
    'first_order': 0,
    'hessian_free': 2 * _step(forward),
    'exact': 8 * sum(layers) - 5 * layers[0],
  }[hparams.variant]
  return Cost(
    sum(seen),
    sum(seen[:num_gradients]) * _step(forward)
    + sum(seen[num_gradients:]) * curvature,
  )


def _fed_rep(hparams, forward, num_examples):
  head_seen = examples_seen(hparams.head_phase(), num_examples)
  body_seen = examples_seen(hparams.body_phase(), num_examples)
  body, head = sum(forward.body), sum(forward.head)
  head_step = 3 * head - forward.head[0]
  body_step = 3 * (body + head) - forward.body[0] - head
  return Cost(
    head_seen + body_seen,
    num_examples * body + head_seen * head_step + body_seen * body_step,
  )


_CLIENT_COSTS: Mapping[str, Callable[..., Cost]] = {
  'fed_avg': _fed_avg,
  # The sums of its factor analysis are not credited.
  'fed_fac': _fed_avg,
  'fed_rep': _fed_rep,
  'per_fed_avg': _per_fed_avg,
}


def client_cost(
  algorithm: str,
  hparams: Any,
  model: split_model.SplitModel,
  num_examples: int,
) -> Cost:
  """What a client of `num_examples` examples does in a round.

  Args:
    algorithm: 'fed_avg', 'fed_fac', 'fed_rep' or 'per_fed_avg'.
    hparams: The method's hyperparameters.
    model: The model.
    num_examples: The client's training examples.

  Raises:
    ValueError: If the operations of `algorithm` are not known here.
  """
  errors.expect(
    algorithm in _CLIENT_COSTS,
    'algorithm',
    f'one of {", ".join(_CLIENT_COSTS)}',
    algorithm,
  )
  return _CLIENT_COSTS[algorithm](hparams, forward_flops(model), num_examples)
