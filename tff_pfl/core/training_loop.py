"""The only mini-batch gradient descent loop of the library.

It runs the batches of `phases.plan_batches` in one of two forms: with weights
as values, which compiles to one program for all clients of a bucket, or with
weights that change in place (see `in_place`).
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl.core import (
  example_tensors,
  in_place,
  objectives,
  phases,
  training_options,
  vectorization,
)
from tff_pfl.models import randomness, split_model

_notes: list[dict[str, str]] = []


@contextlib.contextmanager
def noting_forms() -> Iterator[Mapping[str, str]]:
  """Notes the training form of each phase traced in this context.

  Yields:
    A mapping from each phase's number of weights to its form, in words.
  """
  notes = {}
  _notes.append(notes)
  try:
    yield notes
  finally:
    _notes.remove(notes)


class TrainResult(NamedTuple):
  """Result of `train`.

  Attributes:
    weights: The trained weights.
    metrics: Metric sums over the examples of all steps, named as in
      `objectives.zero_metrics`.
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
  inputs: Optional[Callable[[Any, tf.Tensor], Any]] = None,
) -> TrainResult:
  """Runs one phase of local training.

  This is a pure function of its arguments. A client without examples gets its
  weights back.

  Args:
    weights: The weights to train, with their moving statistics.
    examples: The client's examples (or cached features instead of `x`).
    seed: int32 `[2]`. The shuffles and the seed of each step (for dropout and
      augmentation) derive from it.
    model: The model of the metrics and the moving statistics. It also decides
      whether to compile.
    inputs: Maps a batch's `x` and the step's seed to the objective's `x` (see
      `head_inputs`). None uses `x` itself.
  """
  initial = collections.OrderedDict(
    (name, tf.convert_to_tensor(value)) for name, value in weights.items()
  )
  if not (phase.num_steps or phase.num_epochs):
    # XLA cannot compile a loop without batches.
    return TrainResult(initial, objectives.zero_metrics(model))
  shuffle_seed, step_seed = (
    randomness.fold_in(seed, 0),
    randomness.fold_in(seed, 1),
  )
  arguments = (initial, examples, shuffle_seed, step_seed)
  loop = _Loop(objective, phase, model, initial, inputs)
  if not loop.is_in_place:
    return loop.by_value(*arguments)
  return in_place.choose_kernel(
    lambda: loop.in_place(*arguments), lambda: loop.by_value(*arguments)
  )


class _Loop:
  """A phase as functions of tensors, in two forms with the same result."""

  def __init__(self, objective, phase, model, initial, inputs):
    self._objective = objective
    self._phase = phase
    self._model = model
    self._inputs = inputs
    self._trained = [name for name in initial if name not in model.statistics]
    trained = split_model.select(initial, self._trained)
    self._optimizer = training_options.OptimizerChain.of(phase.optimizer)
    self.is_in_place = not model.uses_xla and in_place.is_faster(
      trained, self._optimizer
    )
    self.by_value = tf.function(
      self._by_value, jit_compile=model.uses_xla, autograph=False
    )
    self.in_place = tf.function(self._in_place, autograph=False)
    form = 'compiled by XLA' if model.uses_xla else 'by TensorFlow'
    number = sum(value.shape.num_elements() for value in trained.values())
    for notes in _notes:
      notes[f'{number:,} weights'] = 'in place' if self.is_in_place else form

  def _by_value(self, initial, examples, shuffle_seed, step_seed):
    """Makes new weights in each step. Can be compiled and vectorized."""
    optimizer = self._optimizer
    plan = phases.plan_batches(examples, self._phase, shuffle_seed)
    trained = split_model.select(initial, self._trained)
    optimizer_state = tf.nest.map_structure(
      tf.convert_to_tensor,
      optimizer.initialize(training_options.specs_of(trained)),
    )
    start = vectorization.apart(
      (initial, optimizer_state, objectives.zero_metrics(self._model)),
      plan.num_steps,
    )

    def step(index, weights, optimizer_state, metrics):
      output = self._step(weights, examples, plan, index, step_seed)
      optimizer_state, trained = optimizer.next(
        optimizer_state,
        split_model.select(weights, self._trained),
        output.gradient,
      )
      changed = {**output.statistics, **trained}
      is_step = index < plan.num_steps
      weights = collections.OrderedDict(
        (name, vectorization.change_if(is_step, changed[name], value))
        if name in changed
        else (name, value)
        for name, value in weights.items()
      )
      metrics = tf.nest.map_structure(tf.add, metrics, output.metrics)
      return weights, optimizer_state, metrics

    # Clients that run together share one loop, in which a client that has done
    # its steps keeps its weights.
    final, _, metrics = vectorization.repeat(plan.num_steps, step, start)
    return TrainResult(final, metrics)

  def _in_place(self, initial, examples, shuffle_seed, step_seed):
    """Changes the weights in each step (see `in_place.Variables`)."""
    plan = phases.plan_batches(examples, self._phase, shuffle_seed)
    variables = in_place.Variables(
      split_model.select(initial, self._trained), self._optimizer
    )

    def step(index, others, metrics):
      trained = variables.read()
      output = self._step(
        {**others, **trained}, examples, plan, index, step_seed
      )
      gradient = self._optimizer.changed(output.gradient, trained)
      variables.update(index, trained, gradient)
      others = {
        name: output.statistics.get(name, value)
        for name, value in others.items()
      }
      metrics = tf.nest.map_structure(tf.add, metrics, output.metrics)
      return index + 1, others, metrics

    others = {n: v for n, v in initial.items() if n not in self._trained}
    _, others, metrics = tf.while_loop(
      lambda index, *_: index < plan.num_steps,
      step,
      (0, others, objectives.zero_metrics(self._model)),
      parallel_iterations=1,
    )
    final = split_model.select({**others, **variables.read()}, initial)
    variables.free()
    return TrainResult(final, metrics)

  def _step(self, weights, examples, plan, index, step_seed):
    batches_per_step = self._phase.batches_per_step
    batches = [
      objectives.take_batch(examples, rows, example_weights)
      for rows, example_weights in zip(
        tf.unstack(plan.indices[index], batches_per_step),
        tf.unstack(plan.example_weights[index], batches_per_step),
      )
    ]
    seed = randomness.fold_in(step_seed, index)
    if self._inputs is not None:
      batches = [b._replace(x=self._inputs(b.x, seed)) for b in batches]
    output = self._objective(weights, *batches, seed=seed)
    return output._replace(
      gradient=split_model.select(output.gradient, self._trained)
    )


def frozen_features(
  model: split_model.SplitModel,
  body: split_model.Weights,
  examples: example_tensors.ExampleTensors,
) -> example_tensors.ExampleTensors:
  """The examples with a frozen body's features instead of `x`.

  The body runs in inference mode (no dropout, moving statistics).
  """
  return examples._replace(
    x=example_tensors.in_chunks(
      lambda x: model.body(body, x, split_model.INFERENCE)[0], examples
    )
  )


def head_inputs(
  model: split_model.SplitModel,
  body: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  features: Optional[example_tensors.ExampleTensors] = None,
) -> tuple:
  """The arguments `(examples, inputs)` of `train` for a head on a frozen body.

  The body is constant, so its features are computed once for all epochs. An
  augmented model changes `x`, so its features are computed in each step.

  Args:
    features: The `frozen_features`, if already computed.
  """
  if model.is_augmented:
    return examples, lambda x, seed: model.body(
      body, x, split_model.Mode(seed=seed)
    )[0]
  if features is None:
    features = frozen_features(model, body, examples)
  return features, None
