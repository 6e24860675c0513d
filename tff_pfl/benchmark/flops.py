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

(nothing needs the gradient of the first layer's inputs, nor of frozen kernels).

Work that caching the frozen body's features saves is not counted: the rate that
follows is of what the method needs, not of what a plain loop would do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.client import training_loop
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


def examples_seen(phase: training_loop.Phase, num_examples: int) -> int:
  """How many examples the steps of a client's phase see, repetitions included.

  Args:
    phase: Of local training.
    num_examples: The client's training examples.
  """
  if phase.num_steps is None or not num_examples:
    return phase.num_epochs * num_examples
  batch_size = min(phase.batch_size or num_examples, num_examples)
  steps_per_epoch = -(-num_examples // batch_size)
  num_epochs, num_steps = divmod(phase.num_steps, steps_per_epoch)
  return num_epochs * num_examples + num_steps * batch_size


class Cost(NamedTuple):
  """What one client, or several, do in a round.

  Attributes:
    examples: Examples that training steps see, repetitions included.
    flops: Floating point operations.
  """

  examples: int
  flops: int


def _fed_avg(hparams, forward, num_examples):
  seen = examples_seen(hparams.phase(), num_examples)
  layers = forward.body + forward.head
  return Cost(seen, seen * (3 * sum(layers) - layers[0]))


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
  'fed_rep': _fed_rep,
}


def client_cost(
  algorithm: str,
  hparams: Any,
  model: split_model.SplitModel,
  num_examples: int,
) -> Cost:
  """What a client of `num_examples` examples does in a round.

  Args:
    algorithm: 'fed_avg' or 'fed_rep'.
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
