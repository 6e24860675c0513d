"""A `SplitModel` in the forms of `tff.learning`."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.core import example_tensors, objectives
from tff_pfl.models import domains, split_model


def model_weights(
  model: split_model.SplitModel, weights: split_model.Weights
) -> tff.learning.models.ModelWeights:
  """Named weights as TFF's: trained ones, and moving statistics, in order."""
  trained, statistics = _names(model)
  return tff.learning.models.ModelWeights(
    tuple(weights[name] for name in trained),
    tuple(weights[name] for name in statistics),
  )


def named_weights(
  model: split_model.SplitModel, weights: Any
) -> collections.OrderedDict:
  """TFF's weights as named ones: the other way round."""
  trained, statistics = weights
  names = [name for part in _names(model) for name in part]
  values = dict(zip(names, [*trained, *statistics]))
  return split_model.select(values, model.initial_weights)


def functional_model(
  model: split_model.SplitModel,
) -> tff.learning.models.FunctionalModel:
  """The model for TFF's own algorithms and evaluations.

  A forward pass in training mode does not update moving statistics, which
  TFF's functional models cannot, and draws no numbers (dropout is off). The
  loss is without regularizers.

  Args:
    model: The model. Its metrics are evaluated, and the mean loss. Of a model
      with domains, batches are `{x: {inputs, domain}, y}` (`domains.join`).

  Raises:
    ValueError: If examples have weights.
  """
  errors.expect(
    'weight' not in model.element_spec,
    'model',
    "one without weights of examples, which TFF's algorithms do not look at",
    f'{model.name!r} with',
  )

  @tf.function
  def predict_on_batch(weights, x, training=True):
    del training  # Only inference is a pure function of these arguments.
    return model.forward(named_weights(model, weights), x)[0]

  def loss(output, label, sample_weight=None):
    del sample_weight
    losses = model.in_training.loss(label, output)
    return model.mean(losses, label, output)

  @tf.function
  def update_metrics(state, labels, batch_output, sample_weight=None):
    del sample_weight
    sums = objectives.metric_sums(
      model,
      batch_output.predictions,
      labels,
      tf.ones(tf.shape(labels)[:1]),
    )
    return tf.nest.map_structure(tf.add, state, sums)

  return tff.learning.models.FunctionalModel(
    initial_weights=tuple(model_weights(model, model.initial_weights)),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=loss,
    metrics_fns=(
      tf.function(lambda: objectives.zero_metrics(model)),
      update_metrics,
      tf.function(objectives.means),
    ),
    input_spec=collections.OrderedDict(
      zip('xy', domains.join(example_tensors.batched_spec(model.element_spec)))
    ),
  )


def _names(model):
  """The names of trained weights, and those of moving statistics."""
  return (
    [n for n in model.initial_weights if n not in model.statistics],
    [n for n in model.initial_weights if n in model.statistics],
  )
