"""Objectives: the losses that a client's training step differentiates.

An objective maps weights, a step's batches (usually one) and a seed to a
gradient, new values of the moving statistics, and metric sums. Methods differ
in their objectives and share the training loop (`training_loop.train`).
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import example_tensors
from tff_pfl.models import split_model

# The metric sum that counts examples by the share of their parts that count.
COUNTED = 'counted'


class Batch(NamedTuple):
  """A mini-batch.

  Attributes:
    x: `[batch, ...]` or a structure of such tensors.
    y: `[batch, ...]`.
    example_weights: float32 `[batch]`, 1 for examples and 0 for padding.
    weight: float32 `[batch]`, factors of the losses, or `()` for none.
  """

  x: Any
  y: tf.Tensor
  example_weights: tf.Tensor
  weight: Any = ()


def take_batch(
  examples: example_tensors.ExampleTensors,
  rows: tf.Tensor,
  example_weights: tf.Tensor,
) -> Batch:
  """A batch of some rows of the examples."""
  x, y, weight = tf.nest.map_structure(
    lambda value: tf.gather(value, rows),
    (examples.x, examples.y, examples.weight),
  )
  return Batch(x, y, example_weights, weight)


class StepOutput(NamedTuple):
  """One step's result.

  Attributes:
    gradient: Gradients of the trained weights, by name.
    statistics: New values of the moving statistics, by name.
    metrics: Metric sums over the batch's examples, named as in `zero_metrics`.
  """

  gradient: Mapping[str, tf.Tensor]
  statistics: Mapping[str, tf.Tensor]
  metrics: Mapping[str, tf.Tensor]


# (weights, *batches, seed=...) -> StepOutput
Objective = Callable[..., StepOutput]
# (weights, x, mode) -> (outputs, new_statistics) or, for a penalty,
# (outputs, new_statistics, features)
Forward = Callable[..., tuple]
# (features, new_statistics, batch) -> a scalar that is added to the loss and
# ignores padding
Penalty = Callable[..., tf.Tensor]


def zero_metrics(model: split_model.SplitModel) -> collections.OrderedDict:
  """Metric sums of no examples: `loss`, the model's metrics and `examples`.

  They are float32 scalars. If some parts of an example may not count, there is
  also `counted`: the sum over examples of the share that counts.
  """
  counted = () if model.counted is None else (COUNTED,)
  names = ('loss', *model.metrics, *counted, 'examples')
  return collections.OrderedDict((name, tf.zeros([])) for name in names)


def metric_sums(
  model: split_model.SplitModel,
  outputs: tf.Tensor,
  y: tf.Tensor,
  example_weights: tf.Tensor,
  domain: Optional[tf.Tensor] = None,
  weight: Any = (),
) -> collections.OrderedDict:
  """Sums of the loss and the metrics over a batch's real examples.

  Args:
    outputs: `[batch, ...]`.
    y: `[batch, ...]`.
    example_weights: float32 `[batch]`, 0 for padding.
    domain: The examples' domains, int32 `[batch]`. If given, there is one sum
      for each domain, float32 `[domains]`.
    weight: See `Batch`.
  """

  def total(values):
    if domain is None:
      return tf.reduce_sum(values)
    return tf.math.unsorted_segment_sum(values, domain, model.domains.number)

  sums = collections.OrderedDict()
  counted = example_weights
  if model.counted is not None:
    counted = example_weights * model.counted(y, outputs)
  for name, function in {'loss': model.loss, **model.metrics}.items():
    values = tf.cast(function(y, outputs), tf.float32)
    if name == 'loss':
      values = _weighted(values, weight)
    # Padding may give any value, even NaN.
    scores = tf.where(example_weights > 0, values, tf.zeros_like(values))
    sums[name] = total(scores * counted)
  if model.counted is not None:
    sums[COUNTED] = total(counted)
  sums['examples'] = total(example_weights)
  return sums


def per_example(sums: Mapping[str, tf.Tensor]) -> collections.OrderedDict:
  """Scales metric sums from the number counted to the number of examples."""
  factor = 1.0
  if COUNTED in sums:
    factor = tf.math.divide_no_nan(sums['examples'], sums[COUNTED])
  return collections.OrderedDict(
    (name, value if name == 'examples' else value * factor)
    for name, value in sums.items()
    if name != COUNTED
  )


def number_counted(sums: Mapping[str, tf.Tensor]) -> tf.Tensor:
  """The number of examples, each weighted by the share that counts."""
  return sums.get(COUNTED, sums['examples'])


def means(sums: Mapping[str, tf.Tensor]) -> collections.OrderedDict:
  """Divides metric sums by the number counted, with 0 / 0 = 0."""
  number = number_counted(sums)
  return collections.OrderedDict(
    (name, tf.math.divide_no_nan(value, number))
    for name, value in sums.items()
    if name not in ('examples', COUNTED)
  )


def _weighted(losses, weight):
  if isinstance(weight, tuple):
    return losses
  return losses * tf.cast(weight, losses.dtype)


def prediction_loss(
  model: split_model.SplitModel,
  forward: Forward,
  domain_weights: Optional[Any] = None,
  penalty: Optional[Penalty] = None,
) -> Objective:
  """The batch's mean loss, as a function of the trained weights.

  This is the training loss. If examples have weights, it is the sum of weight
  times loss, divided by the number of examples (see `number_counted`). The
  regularizers of the trained weights and the penalty are added to the loss, but
  not to the metrics.

  Args:
    model: The model of the loss, the metrics and the moving statistics.
    forward: `(weights, x, mode) -> (outputs, new_statistics)`, a function of
      the trained weights that holds the frozen ones. For a penalty, it also
      returns features.
    domain_weights: Factors of the examples' losses by domain, float
      `[domains]`. None means 1. The loss is still divided by the number of
      examples, and metrics ignore the factors.
    penalty: Function of the batch's features that is added to the loss, or
      None.
  """
  model = model.in_training

  def objective(weights, batch, *, seed):
    mode = split_model.Mode(True, seed, batch.example_weights)
    trained = {k: v for k, v in weights.items() if k not in model.statistics}
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(trained)
      outputs, statistics, *features = forward(weights, batch.x, mode)
      losses = _weighted(model.loss(batch.y, outputs), batch.weight)
      example_weights = tf.cast(batch.example_weights, losses.dtype)
      losses = tf.where(example_weights > 0, losses, tf.zeros_like(losses))
      if domain_weights is not None:
        losses *= tf.gather(
          tf.cast(domain_weights, losses.dtype), batch.x['domain']
        )
      if model.counted is None:
        number = tf.maximum(tf.reduce_sum(example_weights), 1)
        mean_loss = tf.reduce_sum(losses * example_weights) / number
      else:
        example_weights *= tf.cast(
          model.counted(batch.y, outputs), losses.dtype
        )
        mean_loss = tf.math.divide_no_nan(
          tf.reduce_sum(losses * example_weights),
          tf.reduce_sum(example_weights),
        )
      for name, regularizer in model.regularizers.items():
        if name in trained:
          mean_loss += tf.cast(regularizer(trained[name]), mean_loss.dtype)
      if penalty is not None:
        added = penalty(*features, statistics, batch)
        mean_loss += tf.cast(added, mean_loss.dtype)
    gradient = tape.gradient(
      mean_loss, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return StepOutput(
      # Embeddings have sparse gradients, but the loop keeps everything dense.
      gradient={k: tf.convert_to_tensor(v) for k, v in gradient.items()},
      statistics={k: v for k, v in statistics.items() if k in weights},
      metrics=metric_sums(
        model, outputs, batch.y, batch.example_weights, weight=batch.weight
      ),
    )

  return objective


@fields.checked_call
def joint_loss(
  model: split_model.SplitModel,
  domain_weights: Optional[Any] = None,
  penalty: Optional[Penalty] = None,
) -> Objective:
  """The loss as a function of all of the model's weights.

  Args:
    domain_weights: See `prediction_loss`. None uses the model's own domain
      weights if its domains are reweighted (other losses ignore these).
    penalty: See `prediction_loss`.
  """

  def forward(weights, x, mode):
    features, body_statistics = model.body(weights, x, mode)
    outputs, head_statistics = model.head(weights, features, mode)
    return outputs, {**body_statistics, **head_statistics}, features

  if domain_weights is None and model.domains and model.domains.reweighted:
    domain_weights = model.domains.loss_weights
  return prediction_loss(model, forward, domain_weights, penalty)


@fields.checked_call
def body_loss(
  model: split_model.SplitModel,
  head: split_model.Weights,
  domain_weights: Optional[Any] = None,
  penalty: Optional[Penalty] = None,
) -> Objective:
  """The loss as a function of the body, with the head frozen at `head`."""

  def forward(body, x, mode):
    features, statistics = model.body(body, x, mode)
    outputs, _ = model.head(head, features, split_model.INFERENCE)
    return outputs, statistics, features

  return prediction_loss(model, forward, domain_weights, penalty)


def proximal(
  objective: Objective, center: split_model.Weights, strength: Any
) -> Objective:
  """An objective plus `strength / 2 * |weights - center|^2`.

  The metrics do not include the term.

  Args:
    center: Values by name, for the weights that are pulled to them.
    strength: A number or a scalar tensor, at least 0.
  """

  def add(name, slope, value):
    if name not in center:
      return slope
    return slope + tf.cast(strength, slope.dtype) * (value - center[name])

  return _with_gradient(objective, add)


def shifted(objective: Objective, shift: split_model.Weights) -> Objective:
  """An objective plus the linear term whose gradient is `shift`.

  Args:
    shift: Values by name, for all trained weights.
  """
  return _with_gradient(objective, lambda name, slope, _: slope + shift[name])


def _with_gradient(objective, change):
  """The objective with `change(name, slope, value)` instead of each slope."""

  def changed(weights, *batches, seed):
    output = objective(weights, *batches, seed=seed)
    return output._replace(
      gradient={
        name: change(name, slope, weights[name])
        for name, slope in output.gradient.items()
      }
    )

  return changed


def curvature_along(
  objective: Objective,
  weights: Mapping[str, tf.Tensor],
  direction: Mapping[str, tf.Tensor],
  batch: Batch,
  seed: tf.Tensor,
  difference: Optional[float] = None,
) -> Mapping[str, tf.Tensor]:
  """The Hessian H of a batch's loss times a vector v.

  Args:
    weights: The point w at which the Hessian is taken.
    direction: The vector v, by the names of some of the trained weights. It is
      zero for the others.
    seed: int32 `[2]`, for all forward passes.
    difference: None to differentiate twice, or a positive number d for the
      central difference (gradient(w + d v) - gradient(w - d v)) / (2 d). If the
      loss is smooth, its error falls as d squared, until the rounding error,
      which grows as 1 / d, dominates.

  Returns:
    The product H v, by the names of the gradient.
  """
  weights = {k: tf.convert_to_tensor(v) for k, v in weights.items()}
  if difference is not None:

    def gradient_at(factor):
      moved = {k: weights[k] + factor * v for k, v in direction.items()}
      return objective({**weights, **moved}, batch, seed=seed).gradient

    ahead, behind = gradient_at(difference), gradient_at(-difference)
    return {k: (ahead[k] - behind[k]) / (2 * difference) for k in ahead}

  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(weights)
    gradient = objective(weights, batch, seed=seed).gradient
    # The Hessian is symmetric: the slope of <gradient, v> is H v.
    slope = tf.add_n(
      [
        tf.reduce_sum(gradient[name] * tf.stop_gradient(value))
        for name, value in direction.items()
      ]
    )
  product = tape.gradient(
    slope,
    {name: weights[name] for name in gradient},
    unconnected_gradients=tf.UnconnectedGradients.ZERO,
  )
  return {k: tf.convert_to_tensor(v) for k, v in product.items()}
