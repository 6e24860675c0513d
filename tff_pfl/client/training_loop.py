"""The only mini-batch gradient descent loop of the library.

A phase of local training is `num_epochs` passes over the client's examples, or
`num_steps` steps, in mini-batches without replacement that are reshuffled each
epoch from a seed; an epoch's last batch is partial. The plan of which example
is in which batch is made first (`plan_batches`), the loop then only gathers, so
that it compiles to one program for all clients of a bucket.
"""

from __future__ import annotations

import collections
import dataclasses
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.client import example_tensors, objectives, vectorization
from tff_pfl.models import randomness, split_model

# After so many epochs of a phase the shuffles come again in the same order.
_MAX_ORDERS = 128
# The plans of batches are int32.
_INT32_END = 2**31

OPTIMIZERS = ('sgd', 'adam')


def build_optimizer(
  name: str, learning_rate: float, momentum: float = 0.0, *, role: str = ''
) -> tff.learning.optimizers.Optimizer:
  """A TFF optimizer by name.

  Args:
    name: 'sgd' or 'adam'.
    learning_rate: Positive and finite.
    momentum: Of 'sgd', in [0, 1); 'adam' has its own and does not read it.
    role: What the arguments' names start with in an error, such as 'server_'.

  Raises:
    ValueError: If an argument is out of its range.
  """
  errors.expect(
    name in OPTIMIZERS,
    f'{role}optimizer',
    f'one of {", ".join(OPTIMIZERS)}',
    name,
  )
  errors.expect(
    0 < learning_rate < float('inf'),
    f'{role}learning_rate',
    'positive and finite',
    learning_rate,
  )
  errors.expect(0 <= momentum < 1, f'{role}momentum', 'in [0, 1)', momentum)
  if name == 'adam':
    return tff.learning.optimizers.build_adam(learning_rate)
  return tff.learning.optimizers.build_sgdm(learning_rate, momentum or None)


@dataclasses.dataclass(frozen=True)
class Phase:
  """A phase of local training.

  Attributes:
    optimizer: The client's optimizer; its state starts anew with the phase.
    batch_size: Examples per batch; None takes all of a client's examples in one
      batch.
    num_epochs: Passes over the client's examples. Ignored with `num_steps`.
    num_steps: If given, the number of gradient steps, through as many epochs as
      that takes.
    batches_per_step: Batches that the objective takes at each step. The first
      are those of a phase with one; the others go through the same order of the
      examples, each from another place on, so that the batches of a step have
      no example in common. On a client with fewer batches than that, some or
      all of them are the same.
  """

  optimizer: tff.learning.optimizers.Optimizer
  batch_size: Optional[int] = None
  num_epochs: int = 1
  num_steps: Optional[int] = None
  batches_per_step: int = 1

  def __post_init__(self):
    for name in ('batch_size', 'num_steps', 'batches_per_step'):
      value = getattr(self, name)
      may_be_none = name != 'batches_per_step'
      errors.expect(
        (value is None and may_be_none)
        or (isinstance(value, numbers.Integral) and 0 < value < _INT32_END),
        name,
        'a positive 32-bit integer' + ' or None' * may_be_none,
        value,
      )
    errors.expect(
      isinstance(self.num_epochs, numbers.Integral)
      and 0 <= self.num_epochs < _INT32_END,
      'num_epochs',
      'a 32-bit integer, at least 0',
      self.num_epochs,
    )


class BatchPlan(NamedTuple):
  """Which examples each step sees.

  Attributes:
    indices: int32 `[max_steps, batches_per_step, batch_size]`, rows of the
      example tensors.
    example_weights: float32, of the same shape, 0 where there is no example.
    num_steps: int32 scalar, at most `max_steps`.
  """

  indices: tf.Tensor
  example_weights: tf.Tensor
  num_steps: tf.Tensor


def count_steps(
  examples: example_tensors.ExampleTensors, phase: Phase
) -> tf.Tensor:
  """int32, the gradient steps that a client makes in a phase."""
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
  """Plans the batches of a phase; its size depends on the bucket only."""
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
  indices = tf.gather(
    tf.gather(order, epochs),
    tf.minimum(positions, tf.maximum(num_examples, 1) - 1),
    batch_dims=1,
  )
  return BatchPlan(indices, tf.cast(is_example, tf.float32), num_steps)


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
  phase: Phase,
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
  optimizer = phase.optimizer
  shuffle_seed, step_seed = (
    randomness.fold_in(seed, 0),
    randomness.fold_in(seed, 1),
  )
  plan = plan_batches(examples, phase, shuffle_seed)
  trained_names = [n for n in initial if n not in model.statistics]

  @tf.function(jit_compile=model.uses_xla, autograph=False)
  def run(initial, x, y, plan, step_seed):
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

  return run(initial, examples.x, examples.y, plan, step_seed)


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
  phase: Phase,
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


class Scores(NamedTuple):
  """Result of `score`.

  Attributes:
    sums: Metric sums, as `objectives.zero_metrics`.
    by_domain: Of models with domains, the same for each domain: `[domains]`.
    class_1: Of models with domains and two classes, float32 `[capacity]`: the
      logarithm of the odds of class 1.
  """

  sums: Any
  by_domain: Any = ()
  class_1: Any = ()


def score(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
) -> Scores:
  """Scores a model on a client's examples, in inference mode."""
  outputs = example_tensors.in_chunks(
    lambda x: model.forward(weights, x)[0], examples
  )
  is_example = tf.cast(examples.is_example, tf.float32)
  scores = Scores(
    objectives.metric_sums(model, outputs, examples.y, is_example)
  )
  if model.domains is None:
    return scores
  scores = scores._replace(
    by_domain=objectives.metric_sums_by_domain(
      model, outputs, examples.y, examples.x['domain'], is_example
    )
  )
  if model.num_classes != 2:
    return scores
  # Probabilities near 1 would round to ties.
  log = tf.math.log(
    tf.maximum(tf.cast(model.probabilities(outputs), tf.float32), 1e-37)
  )
  return scores._replace(class_1=log[..., 1] - log[..., 0])


def evaluate(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
) -> collections.OrderedDict:
  """Metric sums of a model over a client's examples, in inference mode."""
  return score(model, weights, examples).sums


def train_part(
  model: split_model.SplitModel,
  part: split_model.Weights,
  whole_of: Callable[[split_model.Weights], split_model.Weights],
  part_of: Callable[[split_model.Weights], split_model.Weights],
  examples: example_tensors.ExampleTensors,
  phase: Phase,
  seed: tf.Tensor,
) -> TrainResult:
  """Trains a part of a model's weights, all others frozen.

  Args:
    model: The model.
    part: Where the part starts.
    whole_of: From the part to all weights.
    part_of: From some of the model's weights to what the part has of them.
    examples: As for `train`, like the others.
    phase: As said.
    seed: As said.
  """

  def forward(part, x, mode):
    outputs, statistics = model.forward(whole_of(part), x, mode)
    return outputs, part_of(statistics)

  objective = objectives.prediction_loss(model, forward)
  return train(objective, part, examples, phase, seed, model=model)


def mean_gradient(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
) -> collections.OrderedDict:
  """The gradient of the mean loss over all of a client's examples.

  The network runs in inference mode, so that the loss is one function of the
  weights, and a bounded number of examples goes through it at a time.

  Returns:
    Name of each weight that has a gradient to its value; without examples,
    that of padding, which may be NaN.
  """
  objective = objectives.prediction_loss(
    model, lambda weights, x, mode: model.forward(weights, x)
  )
  # The plan is made before the loop, so that it can be vectorized and compiled.
  rows_per_call = tf.minimum(examples.capacity, example_tensors.CHUNK_SIZE)
  positions = tf.reshape(tf.range(examples.capacity), [-1, rows_per_call])
  is_example = tf.cast(positions < examples.num_examples, tf.float32)
  # A row of padding may be NaN after the body, and its gradient 0 * NaN.
  last = tf.maximum(examples.num_examples, 1) - 1
  rows = tf.minimum(positions, last)
  shares = tf.reduce_sum(is_example, axis=1) / tf.cast(last + 1, tf.float32)
  num_calls = vectorization.longest(-(-examples.num_examples // rows_per_call))

  def add(index, total):
    batch = objectives.take_batch(
      examples.x, examples.y, rows[index], is_example[index]
    )
    # Nothing in inference mode reads the seed.
    part = objective(weights, batch, seed=tf.zeros([2], tf.int32)).gradient
    return index + 1, collections.OrderedDict(
      (name, value + tf.cast(shares[index], value.dtype) * part[name])
      for name, value in total.items()
    )

  zeros = collections.OrderedDict(
    (name, tf.zeros_like(value))
    for name, value in weights.items()
    if name not in model.statistics
  )
  _, gradient = tf.while_loop(
    lambda index, _: index < num_calls,
    add,
    (0, zeros),
    parallel_iterations=1,
  )
  return gradient
