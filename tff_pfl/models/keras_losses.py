"""Losses and metrics by Keras name, object or function, as pure functions."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

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
_ACCURACIES = {
  'sparse': keras.metrics.sparse_categorical_accuracy,
  'categorical': keras.metrics.categorical_accuracy,
}


def default_label_spec(kind: str, output_shape: tuple) -> tf.TensorSpec:
  """The spec of one label where none is given."""
  is_single = output_shape[-1:] == (1,)
  return tf.TensorSpec(
    output_shape[:-1] if kind == 'sparse' or is_single else output_shape,
    tf.float32 if kind in ('categorical', 'regression') else tf.int32,
  )


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


def resolve_loss(loss, model, label_spec, metrics):
  """Returns the kind, whether outputs are logits, and the loss function.

  Args:
    label_spec: See `keras_bridge.from_keras`, as for `metrics`. The two tell
      the kind of a loss that is not one of Keras's.
  """
  gives_logits = not _gives_probabilities(model)
  if isinstance(loss, str):
    try:
      function = keras.losses.get(loss)
    except ValueError as e:
      raise ValueError(
        errors.message('loss', 'the name of a Keras loss', loss)
      ) from e
    name = getattr(function, '__name__', loss)
  elif isinstance(loss, keras.losses.Loss):
    gives_logits = loss.get_config().get('from_logits', gives_logits)
    name, function = type(loss).__name__, loss.call
  elif callable(loss):
    name, function = getattr(loss, '__name__', ''), loss
  else:
    raise TypeError(
      errors.message(
        'loss', 'a Keras loss name, a Keras loss object or a function', loss
      )
    )
  kind = _loss_kind(name)
  if kind == 'regression' and not _is_of_keras(function):
    kind = _kind_of_own_loss(
      function,
      model.output_shape[1:],
      label_spec,
      any(isinstance(m, str) and m in _ACCURACY for m in metrics),
    )
  return kind, gives_logits, _of_outputs(function, gives_logits)


def _is_of_keras(function, module=''):
  """Whether a function is one of those of Keras, or of a module of it."""
  # Of a Keras metric with arguments, the function.
  function = getattr(function, 'func', function)
  return (function.__module__ or '').startswith(f'keras.src.{module}')


def _of_outputs(function, gives_logits):
  """Tells Keras' own cross-entropies whether the outputs are logits."""
  if function in _CROSS_ENTROPIES:
    return functools.partial(function, from_logits=gives_logits)
  return function


def classifier_of(
  kind: str, gives_logits: bool, output_shape: tuple, label_dtype: tf.DType
) -> Optional[split_model.Classifier]:
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


def class_weighted(
  function: Callable[..., tf.Tensor],
  class_weight: Mapping[int, float],
  classifier: Optional[split_model.Classifier],
) -> Callable[..., tf.Tensor]:
  """A loss function times the weight of the label's class.

  Args:
    function: As `resolve_loss` returns it.
    class_weight: See `keras_bridge.from_keras`.
    classifier: See `classifier_of`.

  Raises:
    ValueError: If a class or a weight is out of its range, or there are no
      classes.
  """
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


def resolve_metrics(
  metrics: Iterable[Any],
  kind: str,
  gives_logits: bool,
  higher_is_better: Optional[bool],
) -> tuple[Mapping[str, Callable[..., tf.Tensor]], split_model.PrimaryMetric]:
  """Metric name to `(y, outputs) -> [batch]`, and the primary metric.

  Args:
    higher_is_better: Whether this holds for the first metric; None if Keras
      knows, as it does of its own.
  """
  resolved = collections.OrderedDict()
  primary = split_model.LOSS
  for metric in metrics:
    name, function = _resolve_metric(metric, kind, gives_logits)
    if name in resolved or name in ('loss', 'examples'):
      raise ValueError(
        errors.message('metrics', 'distinct names other than loss', name)
      )
    if not resolved:
      primary = split_model.PrimaryMetric(
        name, _is_higher_better(name, function, higher_is_better)
      )
    resolved[name] = per_example(_of_outputs(function, gives_logits), kind)
  return resolved, primary


def _resolve_metric(metric, kind, gives_logits):
  """The name of a metric and its function."""
  name, function = getattr(metric, '__name__', None), metric
  if isinstance(metric, str):
    if metric in _ACCURACY:
      return 'accuracy', _accuracy(metric, kind, gives_logits)
    name, function = metric, _keras_metric(metric)
  if isinstance(function, keras.metrics.Metric):
    name = name or function.name
    function = _mean_metric_function(function)
  if not callable(function):
    raise TypeError(
      errors.message(
        'metrics', 'Keras metric names, metric objects or functions', metric
      )
    )
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
  if kind == 'regression':
    raise ValueError(
      errors.message(
        'metrics',
        "metrics that fit the loss ('accuracy' needs a classification loss; "
        "try 'mae')",
        metric,
      )
    )
  if kind == 'binary':
    return functools.partial(
      keras.metrics.binary_accuracy, threshold=0.0 if gives_logits else 0.5
    )
  return _ACCURACIES[kind]


def _keras_metric(name):
  try:
    function = keras.metrics.get(name)
  except ValueError:
    function = None
  if not callable(function):
    raise ValueError(errors.message('metrics', 'names of Keras metrics', name))
  return function


def _mean_metric_function(metric):
  if not isinstance(metric, keras.metrics.MeanMetricWrapper):
    raise ValueError(
      errors.message(
        'metrics',
        'metrics that are means over examples (such as '
        'SparseCategoricalAccuracy or MeanAbsoluteError)',
        f'{type(metric).__name__} {metric.name!r}',
      )
    )
  return functools.partial(metric._fn, **metric._fn_kwargs)  # pylint: disable=protected-access


def per_example(function, kind):
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
