"""The only mini-batch gradient descent loop of the library.

It runs the batches that `phases.plan_batches` planned, and compiles to one
program for all clients of a bucket.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.client import example_tensors, objectives, phases, vectorization
from tff_pfl.models import randomness, split_model


class TrainResult(NamedTuple):
  """Result of `train`.

  Attributes:
    weights: The trained weights.
    metrics: Sums over all examples of all steps, as `objectives.zero_metrics`:
      `loss`, the model's metrics, `examples`.
  """

  weights: Any
  metrics: Any


def train(
  objective: objectives.Objective,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  phase: phases.Phase,
  seed: tf.Tensor,
  *,
  model: split_model.SplitModel,
) -> TrainResult:
  """Runs one phase of local training.

  A pure function of its arguments. A client without examples gets its weights
  back.

  Args:
    objective: Gives the gradient of the weights on a batch.
    weights: The weights to train, with their moving statistics.
    examples: The client's examples (or cached features in the place of `x`).
    phase: Optimizer, batch size, and number of epochs or steps.
    seed: int32 `[2]`; the shuffle of epochs and the seed of every step (for
      dropout) derive from it.
    model: For the metrics, the names of moving statistics, and whether to
      compile.
  """
  initial = collections.OrderedDict(
    (name, tf.convert_to_tensor(value)) for name, value in weights.items()
  )
  if not (phase.num_steps or phase.num_epochs):
    # XLA does not compile a loop over no batches.
    return TrainResult(initial, objectives.zero_metrics(model))
  shuffle_seed, step_seed = (
    randomness.fold_in(seed, 0),
    randomness.fold_in(seed, 1),
  )
  plan = phases.plan_batches(examples, phase, shuffle_seed)
  run = _loop(objective, phase, model)
  return run(initial, examples.x, examples.y, plan, step_seed)


def _loop(objective, phase, model):
  """The phase as a function of tensors, compiled if the model asks for it."""
  optimizer = phase.optimizer

  @tf.function(jit_compile=model.uses_xla, autograph=False)
  def run(initial, x, y, plan, step_seed):
    trained_names = [n for n in initial if n not in model.statistics]
    specs = tf.nest.map_structure(
      lambda v: tf.TensorSpec(v.shape, v.dtype),
      split_model.select(initial, trained_names),
    )
    optimizer_state = tf.nest.map_structure(
      tf.convert_to_tensor, optimizer.initialize(specs)
    )

    # A batch of clients compiles to one loop, in which a client that has done
    # its steps keeps its weights. Without XLA its loop just ends.
    num_steps = plan.num_steps
    if model.uses_xla:
      num_steps = vectorization.longest(num_steps)

    def keep_or_change(index, value, changed):
      if changed is None:
        return value
      if model.uses_xla:
        return tf.where(index < plan.num_steps, changed, value)
      return changed

    def step(index, weights, optimizer_state, metrics):
      batches = [
        objectives.take_batch(x, y, rows, example_weights)
        for rows, example_weights in zip(
          tf.unstack(plan.indices[index], phase.batches_per_step),
          tf.unstack(plan.example_weights[index], phase.batches_per_step),
        )
      ]
      output = objective(
        weights, *batches, seed=randomness.fold_in(step_seed, index)
      )
      optimizer_state, trained = optimizer.next(
        optimizer_state,
        split_model.select(weights, trained_names),
        split_model.select(output.gradient, trained_names),
      )
      changed = {**output.statistics, **trained}
      weights = collections.OrderedDict(
        (name, keep_or_change(index, value, changed.get(name)))
        for name, value in weights.items()
      )
      metrics = tf.nest.map_structure(tf.add, metrics, output.metrics)
      return index + 1, weights, optimizer_state, metrics

    _, final, _, metrics = tf.while_loop(
      lambda index, *_: index < num_steps,
      step,
      (0, initial, optimizer_state, objectives.zero_metrics(model)),
    )
    return TrainResult(final, metrics)

  return run


def frozen_features(
  model: split_model.SplitModel,
  body: split_model.Weights,
  examples: example_tensors.ExampleTensors,
) -> example_tensors.ExampleTensors:
  """The examples with the frozen body's features in the place of `x`.

  A frozen body is constant, so its outputs are computed once for all epochs of
  training the head. It runs in inference mode (no dropout, moving statistics).
  """
  return examples._replace(
    x=example_tensors.in_chunks(
      lambda x: model.body(body, x, split_model.INFERENCE)[0], examples
    )
  )


def train_head(
  model: split_model.SplitModel,
  body: split_model.Weights,
  head: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  phase: phases.Phase,
  seed: tf.Tensor,
) -> TrainResult:
  """Trains the head on the frozen body's features."""
  return train(
    objectives.head_loss(model),
    head,
    frozen_features(model, body, examples),
    phase,
    seed,
    model=model,
  )


def train_part(
  model: split_model.SplitModel,
  part: split_model.Weights,
  whole_of: Callable[[split_model.Weights], split_model.Weights],
  part_of: Callable[[split_model.Weights], split_model.Weights],
  examples: example_tensors.ExampleTensors,
  phase: phases.Phase,
  seed: tf.Tensor,
) -> TrainResult:
  """Trains a part of a model's weights, all others frozen.

  Args:
    model: The model of all weights.
    part: Where the part starts.
    whole_of: From the part to all weights.
    part_of: From some of the model's weights to what the part has of them.
    examples: See `train`, as for the others.
  """

  def forward(part, x, mode):
    outputs, statistics = model.forward(whole_of(part), x, mode)
    return outputs, part_of(statistics)

  objective = objectives.prediction_loss(model, forward)
  return train(objective, part, examples, phase, seed, model=model)
