"""Scores of models of two classes, over all clients' test examples.

The predictions of all clients, each for its own test examples, are pooled: many
a client has examples of one class only, of which there are no such scores.

* The area under the ROC curve (AUC) is the probability that an example of class
  1 gets a higher score than one of class 0. Pooled, it asks that the scores of
  different clients can be compared, too.
* The balanced accuracy is the mean of the two classes' accuracies, and F1 the
  harmonic mean of precision and recall of class 1.

Of several labels they are means over those that have examples of both classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from sklearn import metrics as sklearn_metrics

AUC = 'auc'


class Predictions(NamedTuple):
  """Predictions of a client's models for its test examples, of two classes.

  Attributes:
    before: float32 `[n]`, of several labels `[n, labels]`: the score of class 1
      before personalization; higher is more likely.
    after: The same of the personal model.
    y: int32, of the same shape, the labels, 0 or 1.
    domain: int32 `[n]`, the domains, in [0, M); None without domains.
  """

  before: np.ndarray
  after: np.ndarray
  y: np.ndarray
  domain: Optional[np.ndarray] = None


def area_under_curve(y: Any, scores: Any) -> Optional[float]:
  """The area under the ROC curve.

  Args:
    y: Labels `[n]` or `[n, labels]`, 0 or 1.
    scores: Scores of class 1, of the same shape. One that is not finite, of a
      model that diverged, counts as wrong: below all others for an example of
      class 1, above them for one of class 0.

  Returns:
    The area, in [0, 1]; None unless there are examples of both classes.
  """
  return _over_labels(_area, y, scores)


def _over_labels(function, y, scores):
  """The mean of a score over the labels that have examples of both classes."""
  y, scores = (np.atleast_2d(np.transpose(values)) for values in (y, scores))
  known = [
    function(is_positive, label_scores)
    for is_positive, label_scores in zip(y == 1, scores)
    if is_positive.any() and not is_positive.all()
  ]
  return float(np.mean(known)) if known else None


def _counted(is_positive, scores):
  """The scores, with those that are not finite as wrong as can be."""
  wrong = np.where(is_positive, -np.inf, np.inf)
  return np.where(np.isfinite(scores), scores, wrong)


def _area(is_positive, scores):
  scores = _counted(is_positive, scores)
  # The area depends on the order alone, and infinities would be refused.
  _, ranks = np.unique(scores, return_inverse=True)
  return sklearn_metrics.roc_auc_score(is_positive, ranks)


def _balanced_accuracy(is_positive, scores):
  is_found = _counted(is_positive, scores) > 0
  return sklearn_metrics.balanced_accuracy_score(is_positive, is_found)


def _f1(is_positive, scores):
  is_found = _counted(is_positive, scores) > 0
  return sklearn_metrics.f1_score(is_positive, is_found, zero_division=0)


def summarize(
  predictions: Sequence[Predictions], has_global_model: bool
) -> dict[str, Optional[dict]]:
  """Sums up an evaluation of all clients.

  Args:
    predictions: Predictions of all clients, at least one.
    has_global_model: True if `before` is the score of a global model.

  Returns:
    `personal` and `global` (None without a global model): `auc`,
    `balanced_accuracy` and `f1`, None unless there are test examples of both
    classes, and `client_auc`, the mean over clients that have both (None
    without any).
  """
  return {
    'personal': _figures(predictions, 'after'),
    'global': _figures(predictions, 'before') if has_global_model else None,
  }


def _figures(predictions, which):
  y, scores = (
    np.concatenate([getattr(one, field) for one in predictions])
    for field in ('y', which)
  )
  areas = [area_under_curve(one.y, getattr(one, which)) for one in predictions]
  known = [area for area in areas if area is not None]
  return {
    AUC: area_under_curve(y, scores),
    'balanced_accuracy': _over_labels(_balanced_accuracy, y, scores),
    'f1': _over_labels(_f1, y, scores),
    'client_auc': float(np.mean(known)) if known else None,
  }
