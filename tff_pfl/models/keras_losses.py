"""Losses and metrics by Keras name, object or function, as pure functions."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import keras_graph, split_model

keras = tf.keras

# Output activations after which the outputs are no longer logits.
_PROBABILITY_ACTIVATIONS = (
  keras.activations.softmax,
  keras.activations.sigmoid,
  tf.nn.softmax,
  tf.nn.sigmoid,
)
_CROSS_ENTROPIES = (
  keras.losses.sparse_categorical_crossentropy,
  keras.losses.categorical_crossentropy,
  keras.losses.binary_crossentropy,
)
_MOVING = (
  keras.layers.Reshape,
  keras.layers.Flatten,
  keras.layers.Permute,
  keras.layers.Dropout,
)
_ACCURACY = ('accuracy', 'acc')


def resolve(
  model: keras.Model,
  loss: Union[str, keras.losses.Loss, Callable[..., tf.Tensor]],
  metrics: Iterable[Any],
  label_spec: Optional[tf.TensorSpec],
  higher_is_better: Optional[bool],
  class_weight: Optional[Mapping[int, float]],
) -> tuple[tf.TensorSpec, Mapping[str, Any]]:
  """What a loss and metrics make of a model's outputs.

  Args:
    model: The graph of layers; for the others see `keras_bridge.from_keras`.

  Returns:
    The spec of one label, and the fields `loss`, `metrics`, `primary_metric`
    and `classifier` of the `SplitModel`.
  """
  shape = model.output_shape[1:]
  name, function = _loss_function(loss)
  gives_logits = not _gives_probabilities(model)
  if isinstance(loss, keras.losses.Loss):
    gives_logits = loss.get_config().get('from_logits', gives_logits)
  kind = _loss_kind(name)
  if kind == 'regression' and not _is_of_keras(function):
    classifies = any(isinstance(m, str) and m in _ACCURACY for m in metrics)
    kind = _kind_of_own_loss(function, shape, label_spec, classifies)
  if label_spec is None:
    is_scalar = kind == 'sparse' or shape[-1:] == (1,)
    label_spec = tf.TensorSpec(
      shape[:-1] if is_scalar else shape,
      tf.float32 if kind in ('categorical', 'regression') else tf.int32,
    )
  classifier = _classifier(kind, gives_logits, shape, label_spec.dtype)
  function = _of_outputs(function, gives_logits)
  if class_weight is not None:
    function = _class_weighted(function, class_weight, classifier)

  resolved = collections.OrderedDict()
  primary = split_model.LOSS
  for metric in metrics:
    name, of_metric = _metric_function(metric, kind, gives_logits)
    errors.expect(
      name not in (*resolved, 'loss', 'examples'),
      'metrics',
      'distinct names other than loss',
      name,
    )
    if not resolved:
      primary = split_model.PrimaryMetric(
        name, _is_higher_better(name, of_metric, higher_is_better)
      )
    resolved[name] = _per_example(_of_outputs(of_metric, gives_logits), kind)
    if name.endswith('accuracy'):
      resolved[name] = _nothing_right_of_nan(resolved[name])
  return label_spec, {
    'loss': _per_example(function, kind),
    'metrics': resolved,
    'primary_metric': primary,
    'classifier': classifier,
  }


def _loss_function(loss):
  """The name of a loss and its function."""
  if isinstance(loss, str):
    try:
      function = keras.losses.get(loss)
    except ValueError as e:
      raise ValueError(
        errors.message('loss', 'the name of a Keras loss', loss)
      ) from e
    return getattr(function, '__name__', loss), function
  if isinstance(loss, keras.losses.Loss):
    return type(loss).__name__, loss.call
  errors.expect_type(
    loss,
    Callable,
    'loss',
    'a Keras loss name, a Keras loss object or a function',
  )
  return getattr(loss, '__name__', ''), loss


def _loss_kind(name):
  name = name.replace('_', '').lower()
  if 'sparsecategorical' in name:
    return 'sparse'
  if 'categorical' in name:
    return 'categorical'
  if 'binary' in name or 'hinge' in name:
    return 'binary'
  return 'regression'


def _kind_of_own_loss(function, output_shape, label_spec, classifies):
  """The kind of a loss that is not Keras's and whose name does not tell it.

  Args:
    function: Called as it was given.
    label_spec: What labels are, if that was given.
    classifies: Whether the accuracy is wanted.
  """
  if output_shape[-1:] == (1,):
    is_float = label_spec is not None and label_spec.dtype.is_floating
    return 'binary' if classifies and not is_float else 'regression'
  if label_spec is None:
    is_sparse = _takes_classes(function, output_shape)
  else:
    rank = len(output_shape) - 1
    is_sparse = label_spec.dtype.is_integer and label_spec.shape.rank == rank
  if is_sparse:
    return 'sparse'
  return 'categorical' if classifies else 'regression'


def _takes_classes(function, output_shape):
  """Whether a loss can be called with a class for each vector of outputs."""
  shape = [size or 2 for size in output_shape]
  # A size that fits no other, so that nothing is broadcast.
  shape = [max(shape) + 1, *shape]
  try:
    function(tf.zeros(shape[:-1], tf.int32), tf.fill(shape, 0.5))
  except (AttributeError, TypeError, ValueError, tf.errors.OpError):
    return False
  return True


def _gives_probabilities(model):
  """Whether the outputs went through a softmax or sigmoid."""
  node = keras_graph.source_node(model.outputs[0])
  # Layers that only move numbers say nothing about them.
  while isinstance(node.layer, _MOVING) and len(node.keras_inputs) == 1:
    node = keras_graph.source_node(node.keras_inputs[0])
  layer = node.layer
  while isinstance(layer, (keras.Model, keras.layers.TimeDistributed)):
    if isinstance(layer, keras.layers.TimeDistributed):
      layer = layer.layer
    elif getattr(layer, '_is_graph_network', False):
      layer = keras_graph.source_node(layer.outputs[0]).layer
    else:
      return False
  # `function` is that of a TensorFlow operation in a functional model.
  activation = getattr(layer, 'activation', getattr(layer, 'function', None))
  return isinstance(layer, keras.layers.Softmax) or (
    activation in _PROBABILITY_ACTIVATIONS
  )


def _is_of_keras(function, module=''):
  """Whether a function is one of those of Keras, or of a module of it."""
  # Of a Keras metric with arguments, the function.
  function = getattr(function, 'func', function)
  return (function.__module__ or '').startswith(f'tf_keras.src.{module}')


def _of_outputs(function, gives_logits):
  """Tells Keras' own cross-entropies whether the outputs are logits."""
  if function in _CROSS_ENTROPIES:
    return functools.partial(function, from_logits=gives_logits)
  return function


def _classifier(kind, gives_logits, output_shape, label_dtype):
  """What the outputs mean; None if they are not scores of classes.

  Of several outputs for two classes, those for numbers as labels (such as an
  autoencoder's) are none.
  """
  if kind == 'regression':
    return None
  num_classes = 2 if kind == 'binary' else output_shape[-1]
  is_multilabel = kind == 'binary' and output_shape[-1:] != (1,)
  if is_multilabel and label_dtype.is_floating:
    return None

  def probabilities(outputs):
    outputs = tf.convert_to_tensor(outputs)
    if is_multilabel:
      outputs = outputs[..., tf.newaxis]
    if kind == 'binary':
      if gives_logits:
        # Not 1 - p, which would be 0 for large logits.
        return tf.sigmoid(tf.concat([-outputs, outputs], axis=-1))
      return tf.concat([1 - outputs, outputs], axis=-1)
    return tf.nn.softmax(outputs) if gives_logits else outputs

  def outputs_of(probabilities):
    if kind == 'binary':
      negative, positive = tf.split(probabilities, 2, axis=-1)
      outputs = positive
      if gives_logits:
        outputs = _log(positive) - _log(negative)
      return outputs[..., 0] if is_multilabel else outputs
    return _log(probabilities) if gives_logits else probabilities

  return split_model.Classifier(
    num_classes, probabilities, outputs_of, is_multilabel
  )


def _log(probabilities):
  # Of no class is a classifier quite sure, or the loss would be infinite.
  return tf.math.log(tf.maximum(probabilities, 1e-30))


def _class_weighted(function, class_weight, classifier):
  """A loss function times the weight of the label's class."""
  errors.expect(
    classifier is not None,
    'class_weight',
    'None for a loss that is not of classes',
    class_weight,
  )
  factors = np.ones(classifier.num_classes, np.float32)
  for label, weight in class_weight.items():
    errors.expect_int('class_weight', label, 0, classifier.num_classes - 1)
    errors.expect_non_negative('class_weight', weight)
    factors[label] = weight

  def call(y_true, y_pred):
    values = function(y_true, y_pred)
    if y_true.shape.rank == y_pred.shape.rank and y_pred.shape[-1] != 1:
      y_true = tf.argmax(y_true, axis=-1)
    classes = tf.reshape(tf.cast(y_true, tf.int32), tf.shape(values))
    return values * tf.cast(tf.gather(factors, classes), values.dtype)

  return call


def _metric_function(metric, kind, gives_logits):
  """The name of a metric and its function."""
  if isinstance(metric, str) and metric in _ACCURACY:
    return 'accuracy', _accuracy(metric, kind, gives_logits)
  name = getattr(metric, '__name__', None) or getattr(metric, 'name', None)
  function = metric
  if isinstance(metric, str):
    try:
      name, function = metric, keras.metrics.get(metric)
    except ValueError:
      function = None
    errors.expect(
      callable(function), 'metrics', 'names of Keras metrics', metric
    )
  errors.expect_type(
    function,
    Callable,
    'metrics',
    'Keras metric names, metric objects or functions',
  )
  if isinstance(function, keras.metrics.Metric):
    errors.expect(
      isinstance(function, keras.metrics.MeanMetricWrapper),
      'metrics',
      'metrics that are means over examples (such as '
      'SparseCategoricalAccuracy or MeanAbsoluteError)',
      f'{type(function).__name__} {function.name!r}',
    )
    function = functools.partial(function._fn, **function._fn_kwargs)  # pylint: disable=protected-access
  return name or type(metric).__name__, function


def _is_higher_better(name, function, given):
  """Whether a metric is better where it is higher."""
  if given is not None:
    return given
  errors.expect(
    _is_of_keras(function),
    'higher_is_better',
    f'True or False, for the metric {name!r} is not one of Keras',
    given,
  )
  return not _is_of_keras(function, 'losses')


def _accuracy(metric, kind, gives_logits):
  """The accuracy that fits the loss."""
  errors.expect(
    kind != 'regression',
    'metrics',
    "metrics that fit the loss ('accuracy' needs a classification loss; "
    "try 'mae')",
    metric,
  )
  if kind == 'sparse':
    return keras.metrics.sparse_categorical_accuracy
  if kind == 'categorical':
    return keras.metrics.categorical_accuracy
  return functools.partial(
    keras.metrics.binary_accuracy, threshold=0.0 if gives_logits else 0.5
  )


def _nothing_right_of_nan(function):
  """An accuracy by which a model that diverged is wrong.

  Of NaN alone the largest is the first, which would be right for its class.
  """

  def call(y_true, y_pred):
    values = function(y_true, y_pred)
    is_nan = tf.not_equal(y_pred, y_pred)
    has_nan = tf.reduce_any(is_nan, list(range(1, y_pred.shape.rank)))
    return tf.where(has_nan, tf.zeros_like(values), values)

  return call


def _per_example(function, kind):
  """A value for each example: averages over all but the batch dimension."""

  def call(y_true, y_pred):
    if kind != 'sparse':
      if y_true.shape.rank == y_pred.shape.rank - 1:
        # One output for a scalar label: without this it would broadcast.
        y_true = y_true[..., tf.newaxis]
      y_true = tf.cast(y_true, y_pred.dtype)
    values = tf.cast(function(y_true, y_pred), y_pred.dtype)
    rank = values.shape.rank
    errors.expect(
      rank,
      'loss and metrics',
      'functions that return a value per example',
      'a scalar',
    )
    # TensorFlow Lite has no gradient of a mean over nothing.
    axes = list(range(1, rank))
    return tf.reduce_mean(values, axes) if axes else values

  return call
