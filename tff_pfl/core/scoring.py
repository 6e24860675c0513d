"""Scores a model on a client's examples, in inference mode."""

import collections
from typing import Any, NamedTuple

import tensorflow as tf

from tff_pfl.core import example_tensors, objectives, vectorization
from tff_pfl.models import split_model


class Scores(NamedTuple):
  """Result of `score`.

  Attributes:
    sums: Metric sums, named as in `objectives.zero_metrics`.
    by_domain: The same sums for each domain, `[domains]`, or `()` without
      domains.
    class_1: Log odds of class 1, float32: `[capacity]` for two classes with
      scalar labels, `[capacity, labels]` for several labels, `()` for other
      models.
    predictions: `SplitModel.predictions` of each example, `[capacity, ...]`, if
      the model has metrics of all predictions of a client, otherwise `()`.
  """

  sums: Any
  by_domain: Any = ()
  class_1: Any = ()
  predictions: Any = ()


def score(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  *,
  training_loss: bool = False,
) -> Scores:
  """Scores a model on a client's examples, in inference mode.

  Args:
    training_loss: True for the training loss, with class weights and example
      weights.
  """
  weight = ()
  if training_loss:
    model, weight = model.in_training, examples.weight
  outputs = example_tensors.in_chunks(
    lambda x: model.forward(weights, x)[0], examples
  )
  is_example = tf.cast(examples.is_example, tf.float32)
  scores = Scores(
    objectives.metric_sums(
      model, outputs, examples.y, is_example, weight=weight
    )
  )
  if model.domains is not None:
    scores = scores._replace(
      by_domain=objectives.metric_sums(
        model, outputs, examples.y, is_example, examples.x['domain'], weight
      )
    )
  if model.client_metrics:
    scores = scores._replace(predictions=model.predictions(outputs))
  classifier = model.classifier
  if (
    classifier is None
    or classifier.num_classes != 2
    or model.element_spec['y'].shape.rank != int(classifier.is_multilabel)
  ):
    return scores
  # Log odds, because probabilities near 1 would round to ties.
  log = tf.math.log(
    tf.maximum(tf.cast(classifier.probabilities(outputs), tf.float32), 1e-37)
  )
  return scores._replace(class_1=log[..., 1] - log[..., 0])


def mean_gradient(
  model: split_model.SplitModel,
  weights: split_model.Weights,
  examples: example_tensors.ExampleTensors,
) -> collections.OrderedDict:
  """The gradient of the mean loss over all of a client's examples.

  The network runs in inference mode, so that the loss is a fixed function of
  the weights. A bounded number of examples passes through it at a time.

  Returns:
    The gradients by name, for the weights that have one. Without examples, they
    are gradients of padding, which may be NaN.
  """
  objective = objectives.prediction_loss(
    model, lambda weights, x, mode: model.forward(weights, x)
  )
  # Plans before the loop, so that the loop can be vectorized and compiled.
  rows_per_call = tf.minimum(examples.capacity, example_tensors.CHUNK_SIZE)
  positions = tf.reshape(tf.range(examples.capacity), [-1, rows_per_call])
  is_example = tf.cast(positions < examples.num_examples, tf.float32)
  # A row of padding may be NaN after the body, and its gradient 0 * NaN.
  last = tf.maximum(examples.num_examples, 1) - 1
  rows = tf.minimum(positions, last)
  shares = tf.reduce_sum(is_example, axis=1) / tf.cast(last + 1, tf.float32)
  num_calls = -(-examples.num_examples // rows_per_call)

  def add(index, total, number):
    batch = objectives.take_batch(examples, rows[index], is_example[index])
    # The forward pass takes no mode, so nothing reads the seed.
    step = objective(weights, batch, seed=tf.zeros([2], tf.int32))
    share = step.metrics.get(objectives.COUNTED, shares[index])
    total = collections.OrderedDict(
      (name, value + tf.cast(share, value.dtype) * step.gradient[name])
      for name, value in total.items()
    )
    return total, number + share

  zeros = collections.OrderedDict(
    (name, tf.zeros_like(value))
    for name, value in weights.items()
    if name not in model.statistics
  )
  gradient, number = vectorization.repeat(
    num_calls, add, (zeros, tf.zeros([])), parallel_steps=1
  )
  if model.counted is None:
    return gradient
  return collections.OrderedDict(
    (name, tf.math.divide_no_nan(value, tf.cast(number, value.dtype)))
    for name, value in gradient.items()
  )
