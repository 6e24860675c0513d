"""Additional metrics of a model on one client, for reports.

Metrics that are means over examples come from Keras. The others come from
scikit-learn, computed from all predictions for a client's test examples:

    auc                   area under the ROC curve of each class against the
                          rest, averaged over the client's classes
    balanced_accuracy     recall, averaged over the client's classes
    f1, precision, recall for class 1 of two classes, else the mean over classes
    f1_macro, …           mean over classes
    f1_weighted, …        mean over classes, weighted by their examples
    log_loss              cross-entropy of the probabilities
    rmse                  root of the mean squared error
    r2                    share of the variance that is explained

Undefined metrics of a client are None: the AUC with a single class, r2 with
fewer than two examples, and f1, precision and recall of two classes without an
example of class 1. Predictions of a classifier that diverged count as wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, Optional

import numpy as np
from sklearn import metrics as sklearn_metrics

from tff_pfl import errors, fields
from tff_pfl.models import split_model


class _ClientMetric(NamedTuple):
  """A metric of all predictions.

  Attributes:
    function: Maps labels `[n]` and probabilities `[n, classes]` to a number. In
      regression it maps labels and outputs, both `[n, numbers]`.
    is_classification: True if the function takes probabilities.
  """

  function: Callable[[np.ndarray, np.ndarray], Optional[float]]
  is_classification: bool = True
  higher_is_better: bool = True


def _area(y, probabilities):
  is_of = y[:, np.newaxis] == np.arange(probabilities.shape[1])
  known = is_of.any(axis=0) & ~is_of.all(axis=0)
  if not known.any():
    return None
  return sklearn_metrics.roc_auc_score(is_of[:, known], probabilities[:, known])


def _balanced_accuracy(y, probabilities):
  # Like `balanced_accuracy_score`, which warns about classes not in y.
  return sklearn_metrics.recall_score(
    y, probabilities.argmax(axis=1), labels=np.unique(y), average='macro'
  )


def _found_score(function, average, y, probabilities):
  if average is None:
    average = 'binary' if probabilities.shape[1] == 2 else 'macro'
  if average == 'binary' and not (y == 1).any():
    return None
  return function(
    y, probabilities.argmax(axis=1), average=average, zero_division=0
  )


def _log_loss(y, probabilities):
  return sklearn_metrics.log_loss(
    y, probabilities, labels=range(probabilities.shape[1])
  )


def _root_mean_squared_error(y, outputs):
  return np.sqrt(np.mean(np.square(y - outputs)))


def _explained(y, outputs):
  if len(y) < 2:
    return None
  if not np.isfinite(outputs).all():
    return math.nan
  return sklearn_metrics.r2_score(y, outputs)


_METRICS = {
  'auc': _ClientMetric(_area),
  'balanced_accuracy': _ClientMetric(_balanced_accuracy),
  **{
    name + suffix: _ClientMetric(
      functools.partial(_found_score, function, average)
    )
    for name, function in (
      ('f1', sklearn_metrics.f1_score),
      ('precision', sklearn_metrics.precision_score),
      ('recall', sklearn_metrics.recall_score),
    )
    for suffix, average in (
      ('', None),
      ('_macro', 'macro'),
      ('_weighted', 'weighted'),
    )
  },
  'log_loss': _ClientMetric(_log_loss, higher_is_better=False),
  'rmse': _ClientMetric(_root_mean_squared_error, False, False),
  'r2': _ClientMetric(_explained, False),
}
NAMES = tuple(_METRICS)


@fields.checked_call
def with_metrics(
  model: split_model.SplitModel, metrics: Iterable[str]
) -> split_model.SplitModel:
  """Returns the model with additional metrics in reports.

  The primary metric does not change.

  Args:
    model: A classifier of single labels, or a regression.
    metrics: Names of metrics in this module, or of Keras metrics that are means
      over examples, such as mse or top_5_accuracy (5 may be any number).
  """
  for metric in metrics:
    if metric in NAMES:
      _check_fits(model, metric)
      added = split_model.PrimaryMetric(
        metric, _METRICS[metric].higher_is_better
      )
    else:
      errors.expect(
        model.metric_of is not None,
        'metrics',
        f'among {", ".join(NAMES)} for a model not made from Keras',
        metric,
      )
      added, function = model.metric_of(metric)
      if added.name == model.primary_metric.name:
        continue
      model = dataclasses.replace(
        model, metrics={**model.metrics, added.name: function}
      )
    if added not in model.reported:
      model = dataclasses.replace(model, reported=(*model.reported, added))
  return model


def _check_fits(model, metric):
  if _METRICS[metric].is_classification:
    split_model.check_has_classes(model, metric)
  else:
    errors.expect(
      model.classifier is None,
      'metrics',
      'metrics of a classifier, such as auc and f1_macro',
      metric,
    )
  errors.expect(
    model.counted is None,
    'metrics',
    f'without {metric} if parts of examples are masked or ignored',
    metric,
  )


def scores(
  model: split_model.SplitModel, y: np.ndarray, predictions: np.ndarray
) -> dict[str, Optional[float]]:
  """Computes `model.client_metrics` on one client.

  Args:
    model: The model that made the predictions.
    y: Labels `[n, ...]`, at least one.
    predictions: The result of `SplitModel.predictions`: probabilities
      `[n, classes]`, or outputs `[n, ...]` in regression.

  Returns:
    A dict from metric name to value, None if the metric is undefined.
  """
  names = model.client_metrics
  if not names:
    return {}
  if model.classifier is None:
    y, predictions = (
      np.reshape(values, [len(y), -1]).astype(np.float64)
      for values in (y, predictions)
    )
  else:
    y = np.asarray(y, np.int64)  # Labels may be floats.
    predictions = _diverged_as_wrong(y, predictions.astype(np.float64))
  values = {name: _METRICS[name].function(y, predictions) for name in names}
  return {n: None if v is None else float(v) for n, v in values.items()}


def _diverged_as_wrong(y, probabilities):
  """Normalizes probabilities, with a wrong class where the model diverged."""
  num_classes = probabilities.shape[1]
  is_finite = np.isfinite(probabilities).all(axis=1, keepdims=True)
  wrong = np.eye(num_classes)[(y + 1) % num_classes]
  probabilities = np.where(is_finite, probabilities, wrong)
  # In float64, probabilities near 1 keep their order.
  return probabilities / probabilities.sum(axis=1, keepdims=True)
