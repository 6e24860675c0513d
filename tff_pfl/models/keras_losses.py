"""Losses and metrics by Keras name, object or function, as pure functions.

They have the same meaning as in Keras. A cross-entropy takes probabilities
unless its object says `from_logits=True`. Masked outputs, such as padding of
sequences, and ignored classes do not count. There are three differences:

* A reported loss is a mean over examples, without the weights' regularizers.
* The accuracy of two classes from logits uses the threshold 0, not 0.5.
* The `'accuracy'` of several labels is the share of labels that are right
  (Keras's `BinaryAccuracy`). Keras compares the largest outputs.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Optional, Union

import keras
import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import (
  class_weights,
  client_metrics,
  keras_purity,
  split_model,
)

# The kind of labels that a Keras loss takes.
_KINDS = {
  keras.losses.sparse_categorical_crossentropy: 'sparse',
  keras.losses.categorical_crossentropy: 'categorical',
  keras.losses.categorical_focal_crossentropy: 'categorical',
  keras.losses.categorical_generalized_cross_entropy: 'categorical',
  keras.losses.categorical_hinge: 'categorical',
  keras.losses.binary_crossentropy: 'binary',
  keras.losses.binary_focal_crossentropy: 'binary',
  keras.losses.hinge: 'binary',
  keras.losses.squared_hinge: 'binary',
}
# Losses of scores whose sign or order counts.
_OF_SCORES = (
  keras.losses.categorical_hinge,
  keras.losses.hinge,
  keras.losses.squared_hinge,
)
# The kind of labels of a custom loss, by its task.
TASKS = {
  'classification': 'sparse',
  'one_hot_classification': 'categorical',
  'binary_classification': 'binary',
  'regression': 'regression',
}
# Operations whose results are probabilities, not logits.
_PROBABLE = {
  'sparse': ('Softmax',),
  'categorical': ('Softmax',),
  'binary': ('Sigmoid', 'Softmax'),
  'regression': (),
}
_ACCURACY = ('accuracy', 'acc')
_TOP_ACCURACY = re.compile(r'top_([1-9]\d*)_accuracy')
_TOP = {
  'sparse': keras.metrics.sparse_top_k_categorical_accuracy,
  'categorical': keras.metrics.top_k_categorical_accuracy,
}


class _Loss(NamedTuple):
  """A loss.

  Attributes:
    function: `(y, outputs) -> [batch, ...]`.
    kind: 'sparse', 'categorical', 'binary' or 'regression'.
    from_logits: True if outputs are logits, not probabilities.
    ignored: A class whose labels do not count, or None.
    is_of_keras: True for Keras's own losses.
  """

  function: Callable[..., tf.Tensor]
  kind: str
  from_logits: bool
  ignored: Optional[int]
  is_of_keras: bool


def resolve(
  graph: Any,
  loss: Union[str, keras.losses.Loss, Callable[..., tf.Tensor]],
  metrics: Iterable[Any],
  label_spec: Optional[tf.TensorSpec],
  task: Optional[str],
  higher_is_better: Optional[bool],
  class_weight: Optional[Mapping[int, float]],
) -> tuple[tf.TensorSpec, Mapping[str, Any]]:
  """Makes the fields of a `SplitModel` for a loss and metrics.

  Args:
    graph: The model's `keras_graph.Graph`. See `keras_bridge.from_keras` for
      the other arguments.

  Returns:
    The spec of one label, and fields of the `SplitModel` by name.
  """
  shape = tuple(graph.tensors[graph.output].shape[1:])
  errors.expect(
    shape,
    'model',
    'a model whose outputs have an axis besides the batch (add Reshape((1,)))',
    'outputs [batch]',
  )
  loss = _resolve_loss(loss, task)
  kind = loss.kind
  if label_spec is None:
    is_scalar = kind == 'sparse' or shape[-1:] == (1,)
    label_spec = tf.TensorSpec(
      shape[:-1] if is_scalar else shape,
      tf.float32 if kind in ('categorical', 'regression') else tf.int32,
    )
  classifier = _classifier(kind, loss.from_logits, shape, label_spec.dtype)
  if graph.masks_output and classifier is not None:
    classifier = classifier._replace(
      probabilities=_infinite_where_diverged(classifier)
    )
  elements = _Elements(loss, shape, graph.masks_output)
  training_loss = None
  if class_weight is not None:
    training_loss = elements.mean_of(
      class_weights.weighted(loss.function, class_weight, classifier)
    )

  def metric_of(metric, higher_is_better=None):
    name, metric_function = _named_metric(metric, loss)
    errors.expect_plain('metrics', 'metrics with names', name)
    function = elements.mean_of(metric_function)
    if name.endswith('accuracy'):
      function = elements.wrong_where_diverged(function)
    if higher_is_better is None:
      higher_is_better = _is_higher_better(name, metric_function)
    return split_model.PrimaryMetric(name, higher_is_better), function

  resolved = collections.OrderedDict()
  primary = split_model.LOSS
  for metric in metrics:
    # The primary metric is the first one.
    entry, function = metric_of(metric, True if resolved else higher_is_better)
    errors.expect(
      entry.name not in (*resolved, 'loss', 'examples'),
      'metrics',
      'distinct names other than loss',
      entry.name,
    )
    if not resolved:
      primary = entry
    resolved[entry.name] = function
  return label_spec, {
    'loss': elements.mean_of(loss.function),
    'training_loss': training_loss,
    'metrics': resolved,
    'primary_metric': primary,
    'classifier': classifier,
    'counted': elements.counted,
    'metric_of': metric_of,
  }


def _by_name(get, name, argument, constraint):
  """Returns the Keras loss or metric with a name."""
  try:
    return get(name)
  except ValueError as error:
    raise ValueError(errors.message(argument, constraint, name)) from error


def _resolve_loss(loss, task):
  if isinstance(loss, str):
    loss = _by_name(keras.losses.get, loss, 'loss', 'the name of a Keras loss')
  errors.expect_type(
    loss,
    Callable,
    'loss',
    'one Keras loss name, Keras loss object or function',
  )
  options, function, call = {}, loss, loss
  if isinstance(loss, keras.losses.Loss):
    errors.expect(
      loss.reduction not in ('sum', 'mean_with_sample_weight')
      and type(loss).__call__ is keras.losses.Loss.__call__,
      'loss',
      "a mean over examples (reduction='sum_over_batch_size'), without a "
      'custom `__call__`',
      f'{type(loss).__name__} with reduction={loss.reduction!r}',
    )
    # Keras's loss objects are functions with options.
    options = getattr(loss, '_fn_kwargs', {})
    function, call = getattr(loss, 'fn', loss), loss.call
  elif not _is_of_keras(loss):
    call = _fitted(loss)
  kind = _KINDS.get(function)
  if kind is None:
    kind = 'regression' if task is None else TASKS[task]
  is_of_keras = _is_of_keras(function)
  from_logits = function in _OF_SCORES or bool(
    # A Keras loss with arguments may be a partial function.
    {**options, **getattr(loss, 'keywords', {})}.get('from_logits')
    if is_of_keras
    else getattr(loss, 'from_logits', True)
  )
  return _Loss(
    call, kind, from_logits, options.get('ignore_class'), is_of_keras
  )


def _fitted(function):
  """Wraps a custom function so that labels get the outputs' type."""

  def call(y_true, y_pred):
    if y_true.dtype.is_integer and y_true.shape.rank == y_pred.shape.rank:
      y_true = tf.cast(y_true, y_pred.dtype)
    return function(y_true, y_pred)

  return call


def _is_of_keras(function, module=''):
  """Returns True for a function from Keras, or from one of its modules."""
  # A Keras metric with arguments is a partial function.
  function = getattr(function, 'func', function)
  module_name = getattr(function, '__module__', None) or ''
  return module_name.startswith(f'keras.src.{module}')


class _Elements:
  """Means over the elements of an example, such as steps of a sequence.

  `keras_bridge` makes the outputs of a masked element NaN, and outputs that
  diverged to NaN infinite.
  """

  def __init__(self, loss, shape, has_mask):
    self._loss = loss
    self._has_mask = has_mask
    # True if the last axis holds the output vector of an element.
    self._is_vector = loss.kind in ('sparse', 'categorical') or tuple(
      shape[-1:]
    ) == (1,)
    self.counted = (
      self._part_counted if has_mask or loss.ignored is not None else None
    )

  def _counts(self, y, outputs, rank):
    """Returns 1 for elements that count, else 0, with `rank` axes."""
    counts = tf.ones_like(self._per_element(outputs))
    if self._has_mask:
      masked = self._per_element(tf.math.is_nan(outputs))
      counts = tf.where(masked, tf.zeros_like(counts), counts)
    if self._loss.ignored is not None:
      labels = tf.reshape(y, tf.shape(counts))
      ignored = tf.equal(labels, tf.cast(self._loss.ignored, labels.dtype))
      counts = tf.where(ignored, tf.zeros_like(counts), counts)
    return _at_rank(rank, counts, tf.reduce_max)

  def _per_element(self, outputs):
    return outputs[..., 0] if self._is_vector else outputs

  def _part_counted(self, y, outputs):
    counts = self._counts(y, outputs, outputs.shape.rank)
    return tf.cast(_over_all_but_batch(tf.reduce_mean, counts), tf.float32)

  def wrong_where_diverged(self, accuracy):
    """Returns an accuracy that is 0 where the model diverged.

    Otherwise examples of class 0 would be right, as the first of NaN outputs
    counts as the largest.
    """
    is_diverged = tf.math.is_inf if self._has_mask else tf.math.is_nan

    def call(y, outputs):
      values = accuracy(y, outputs)
      diverged = _over_all_but_batch(tf.reduce_any, is_diverged(outputs))
      return tf.where(diverged, tf.zeros_like(values), values)

    return call

  def mean_of(self, function):
    """Returns the mean of a function's elements, `(y, outputs) -> [batch]`."""

    def call(y, outputs):
      outputs = tf.convert_to_tensor(outputs)
      y = tf.convert_to_tensor(y)
      raw_outputs = outputs
      if self._has_mask:
        # Equal for all classes, as losses cannot take a probability of 0.
        harmless = 1 / outputs.shape[-1] if self._is_vector else 0.5
        outputs = tf.where(
          tf.math.is_nan(outputs), tf.cast(harmless, outputs.dtype), outputs
        )
      labels = y
      if self._loss.kind != 'sparse':
        if y.shape.rank == outputs.shape.rank - 1:
          # Otherwise the scalar label of one output would broadcast.
          labels = y[..., tf.newaxis]
        labels = tf.cast(labels, outputs.dtype)
      with keras_purity.eager_tensors_as_constants():
        values = function(labels, outputs)
      values = tf.cast(values, outputs.dtype)
      if self._has_mask:
        diverged = self._per_element(tf.math.is_inf(outputs))
        diverged = _at_rank(values.shape.rank, diverged, tf.reduce_any)
        nan = tf.constant(np.nan, values.dtype)
        values = tf.where(diverged, nan, values)
      errors.expect(
        values.shape.rank,
        'loss and metrics',
        'functions that return a value per example',
        'a scalar',
      )
      if self.counted is None:
        return _over_all_but_batch(tf.reduce_mean, values)
      counts = self._counts(y, raw_outputs, values.shape.rank)
      counts = tf.cast(counts, values.dtype)
      counted_values = tf.where(counts > 0, values, tf.zeros_like(values))
      return tf.math.divide_no_nan(
        _over_all_but_batch(tf.reduce_sum, counted_values),
        _over_all_but_batch(tf.reduce_sum, counts + tf.zeros_like(values)),
      )

    return call


def _at_rank(rank, values, reduce):
  """Brings values of elements to a rank by adding or reducing axes."""
  while values.shape.rank < rank:
    values = values[..., tf.newaxis]
  # All values of a vector are the same.
  return reduce(values, list(range(rank, values.shape.rank)))


def _over_all_but_batch(reduce, values):
  # TensorFlow Lite has no gradient of a mean over no axes.
  axes = list(range(1, values.shape.rank))
  return reduce(values, axes) if axes else values


def _classifier(kind, gives_logits, output_shape, label_dtype):
  """Returns the `Classifier`, or None if outputs are not scores of classes.

  Several binary outputs with float labels, such as an autoencoder's, are not.
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
        # 1 - p would be 0 for large logits.
        return tf.sigmoid(tf.concat([-outputs, outputs], axis=-1))
      return tf.concat([1 - outputs, outputs], axis=-1)
    return tf.nn.softmax(outputs) if gives_logits else outputs

  def outputs_of(probabilities):
    if kind == 'binary':
      negative, positive = tf.split(probabilities, 2, axis=-1)
      outputs = positive
      if gives_logits:
        outputs = _log(positive) - _log(negative)
        # Infinite where the model diverged, not NaN, which would be masked.
        outputs = tf.where(tf.math.is_inf(positive), positive, outputs)
      return outputs[..., 0] if is_multilabel else outputs
    return _log(probabilities) if gives_logits else probabilities

  return split_model.Classifier(
    num_classes, probabilities, outputs_of, is_multilabel
  )


def _infinite_where_diverged(classifier):
  """Returns probabilities that are infinite where outputs are infinite.

  NaN stands for masked elements, also in mixtures and ensembles.
  """

  def probabilities(outputs):
    diverged = tf.math.is_inf(outputs)
    if classifier.is_multilabel:
      diverged = diverged[..., tf.newaxis]
    else:
      diverged = tf.reduce_any(diverged, axis=-1, keepdims=True)
    values = classifier.probabilities(outputs)
    return tf.where(diverged, tf.constant(np.inf, values.dtype), values)

  return probabilities


def _log(probabilities):
  # A probability of 0 would make the loss infinite.
  return tf.math.log(tf.maximum(probabilities, 1e-30))


def _named_metric(metric, loss):
  if isinstance(metric, str) and metric in _ACCURACY:
    return 'accuracy', _accuracy(metric, loss)
  top = isinstance(metric, str) and _TOP_ACCURACY.fullmatch(metric)
  if top and loss.kind in _TOP:
    return metric, functools.partial(_TOP[loss.kind], k=int(top[1]))
  name = getattr(metric, '__name__', None) or getattr(metric, 'name', None)
  function = metric
  if isinstance(metric, str):
    own = ', '.join(['top_5_accuracy', *client_metrics.NAMES])
    name, function = (
      metric,
      _by_name(
        keras.metrics.get,
        metric,
        'metrics',
        f'names of Keras metrics, or {own}',
      ),
    )
  errors.expect_type(
    function, Callable, 'metrics', 'names, metric objects or functions'
  )
  if isinstance(function, keras.metrics.Metric):
    mean_metric = keras.metrics.MeanMetricWrapper
    errors.expect(
      isinstance(function, mean_metric)
      and type(function).update_state is mean_metric.update_state
      and type(function).result is mean_metric.result,
      'metrics',
      f'means over examples, or names of {", ".join(client_metrics.NAMES)}',
      f'{type(function).__name__} {function.name!r}',
    )
    options = function._fn_kwargs  # pylint: disable=protected-access
    errors.expect(
      not loss.from_logits or options.get('from_logits') is not False,
      'metrics',
      'of logits, like the loss '
      f'(`{type(function).__name__}(from_logits=True)`)',
      metric if isinstance(metric, str) else function.name,
    )
    function = functools.partial(function._fn, **options)  # pylint: disable=protected-access
  elif not _is_of_keras(function):
    function = _fitted(function)
    function.__module__ = getattr(metric, '__module__', None)
  errors.expect(
    loss.kind != 'sparse'
    or not _is_of_keras(function)
    or getattr(function, 'func', function).__name__.startswith('sparse_'),
    'metrics',
    'metrics of classes as integers, like the loss (accuracy, top_5_accuracy, '
    'sparse_...)',
    name,
  )
  return name or type(metric).__name__, function


def _is_higher_better(name, function):
  """Returns True if higher values of a Keras metric are better."""
  errors.expect(
    _is_of_keras(function),
    'higher_is_better',
    f'True or False, because {name!r} is not a Keras metric',
    None,
  )
  return not _is_of_keras(function, 'losses')


def _accuracy(metric, loss):
  """Returns the accuracy that fits the loss."""
  errors.expect(
    loss.kind != 'regression',
    'metrics',
    "metrics of a regression, such as 'mae' (or give a `task`)",
    metric,
  )
  if loss.kind == 'sparse':
    return keras.metrics.sparse_categorical_accuracy
  if loss.kind == 'categorical':
    return keras.metrics.categorical_accuracy
  return functools.partial(
    keras.metrics.binary_accuracy, threshold=0.0 if loss.from_logits else 0.5
  )


def check(
  model: split_model.SplitModel,
  loss: Any,
  task: Optional[str],
  last_operations: Collection[str],
) -> None:
  """Raises `ValueError` if a loss cannot train the model.

  If the loss takes logits, the model must not end in a softmax or sigmoid. If
  it takes probabilities, the outputs must be probabilities on random inputs.
  The loss must have a gradient.

  Args:
    model: Made with the loss.
    loss: The argument of `keras_bridge.from_keras`.
    task: The argument of `keras_bridge.from_keras`.
    last_operations: Types of the operations that end the model.
  """
  rng = np.random.default_rng(0)
  x = some_inputs(model, rng)
  y = _some(model.element_spec['y'], rng)
  outputs, _ = model.forward(model.initial_weights, x)
  name = loss
  if not isinstance(loss, str):
    name = getattr(loss, '__name__', type(loss).__name__)
  resolved = _resolve_loss(loss, task)
  for operation in _PROBABLE[resolved.kind]:
    errors.expect(
      not resolved.from_logits or operation not in last_operations,
      'loss',
      f'a loss of probabilities, as the model ends in a {operation.lower()} '
      '(`from_logits` False)',
      name,
    )
  if (
    resolved.is_of_keras
    and model.classifier is not None
    and not resolved.from_logits
  ):
    # NaN, which marks masked outputs, passes.
    is_none = tf.logical_or(outputs < 0, outputs > 1)
    errors.expect(
      not tf.reduce_any(is_none) and tf.reduce_any(outputs > 0),
      'loss',
      'a loss of logits (from_logits=True), for outputs that are no '
      'probabilities',
      name,
    )
  with tf.GradientTape() as tape:
    tape.watch(outputs)
    value = tf.reduce_sum(model.loss(y, outputs))
  slope = tape.gradient(value, outputs)
  errors.expect(
    slope is not None and tf.reduce_any(slope != 0),
    'loss',
    'a loss with a gradient',
    f'{name!r}, whose gradient is 0',
  )


def some_examples(
  model: split_model.SplitModel, rng: np.random.Generator, num_classes: int
) -> dict[str, Any]:
  """Returns a batch of eight random examples, without weights."""
  examples = {
    'x': some_inputs(model, rng),
    'y': _some(model.element_spec['y'], rng, num_classes),
  }
  if model.domains is not None:
    spec = model.element_spec['domain']
    examples['domain'] = _some(spec, rng, model.domains.number)
  return examples


def some_inputs(model: split_model.SplitModel, rng: np.random.Generator) -> Any:
  """Returns a batch of eight random inputs, with integers 0 and 1."""
  return tf.nest.map_structure(
    lambda spec: _some(spec, rng), model.element_spec['x']
  )


def _some(spec, rng, num_integers=2):
  shape = [8, *(size or 2 for size in spec.shape)]
  if spec.dtype.is_floating:
    return tf.constant(rng.normal(size=shape), spec.dtype)
  return tf.cast(tf.constant(rng.integers(0, num_integers, shape)), spec.dtype)
