"""Figures of an evaluation, which summarize the scores of its clients.

A mean over clients hides clients with poor scores. So `fairness` also gives the
spread, the worst tenth, and the fraction that a global model serves better.

A metric of a domain is the mean over all its test examples, each scored by the
model of the client that holds it.

Predictions of two classes are pooled over clients, because many clients have
examples of only one class. AUC, the area under the ROC curve, is the
probability that an example of class 1 gets a higher score than an example of
class 0. The pooled AUC also compares the scores of different clients. For
several labels, these scores are means over the labels that have examples of
both classes.

References:
  A. Zhong, H. He, Z. Ren, N. Li, Q. Li. FedDAR: Federated Domain-Aware
    Representation Learning. ICLR 2023. Tables 1 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
from sklearn import metrics as sklearn_metrics

from tff_pfl import errors
from tff_pfl.models import split_model

AUC = 'auc'
# A client's predictions of two classes. `before` and `after` personalization
# are scores of class 1 (higher is more likely), float32 `[n]` or `[n, labels]`.
# `y` has the labels, 0 or 1. `domain`, if there is one, is int32 `[n]`.
Predictions = Mapping[str, np.ndarray]


def summarize(
  rows: Sequence[Mapping[str, Any]],
  has_global_model: bool,
  model: split_model.SplitModel,
  predictions: Sequence[Predictions] = (),
) -> dict[str, Any]:
  """Summarizes the scores of clients.

  Args:
    rows: The rows of an `evaluation.Evaluation`.
    has_global_model: True if `before` is the score of a global model.
    predictions: The clients' predictions, of two classes.

  Returns:
    personal: From each metric to its mean over the clients that have it, or NaN
      without any.
    global: The same for the global model, or None without one.
    fairness: The `fairness` of the personal models' primary metric.
    non_finite_clients: Number of clients whose personal model has a loss that
      is not finite (it diverged, or their training data are not finite).
    primary_metric: Only if it is not the accuracy: `name`, `higher_is_better`.
    reported: Only for further metrics, by name: `higher_is_better`,
      `num_clients` (clients that have the metric) and `num_scored` (all
      clients).
    two_classes: Only with predictions, for `personal` and `global`: `auc`,
      `balanced_accuracy` and `f1` over all test examples (see
      `two_class_score`), and `client_auc`, the mean over the clients that have
      examples of both classes, or None without any.
    domains: Only for a model with domains: `num_test_examples` by domain,
      `without_test_examples` (the domains that have none), `personal` and
      `global`. The last two map each metric, with predictions also 'auc', to
      `by_domain` (a value or None), `min`, `mean` and `max` over the domains,
      and `client_mean` over the clients that have a value, or None without any.
  """
  errors.expect(rows, 'rows', 'of at least one client with test examples', rows)
  metric = model.primary_metric

  def values(which, name):
    return [row[which][name] for row in rows]

  def means(which):
    return {
      name: _of_known(np.mean, values(which, name), math.nan)
      for name in rows[0][which]
    }

  summary = {
    **_of_models(means, has_global_model),
    'fairness': fairness(
      values('after', metric.name),
      [row['num_test_examples'] for row in rows],
      values('before', metric.name) if has_global_model else None,
      metric,
    ),
    'non_finite_clients': int(np.sum(~np.isfinite(values('after', 'loss')))),
  }
  if metric != split_model.ACCURACY:
    summary['primary_metric'] = metric._asdict()
  if model.reported:
    summary['reported'] = {
      name: {
        'higher_is_better': higher_is_better,
        'num_clients': len(rows) - values('after', name).count(None),
        'num_scored': len(rows),
      }
      for name, higher_is_better in model.reported
    }
  if predictions:
    summary['two_classes'] = _of_models(
      lambda which: _two_classes(predictions, which), has_global_model
    )
  if model.domains is not None:
    summary['domains'] = _domains(
      rows, model.domains.names, has_global_model, predictions
    )
  return summary


def _of_models(figures, has_global_model):
  return {
    'personal': figures('after'),
    'global': figures('before') if has_global_model else None,
  }


def _of_known(function, values, otherwise=None):
  """A figure over the values that are not None. NaN counts."""
  known = [value for value in values if value is not None]
  # NumPy's min and max return NaN if a value is NaN, unlike Python's.
  return float(function(known)) if known else otherwise


def fairness(
  personal: Any,
  weights: Any,
  reference: Optional[Any] = None,
  metric: split_model.PrimaryMetric = split_model.ACCURACY,
) -> dict[str, Optional[float]]:
  """Describes how evenly a metric is distributed over the clients.

  Args:
    personal: Floats `[clients]`, at least one: the metric of each personal
      model on its client's test examples. NaN, from a diverged model, is worse
      than any other value.
    weights: Numbers of test examples `[clients]`, positive.
    reference: Floats `[clients]`: the metric of the global model on the same
      examples, or None without a global model.
    metric: Metric of the values, which knows whether higher is better.

  Returns:
    A dict of floats: `mean`, `std` (of the population), `min` and `max` over
    clients, `weighted_mean` over test examples, `worst_10_percent` (the mean
    over the worst tenth of the clients, rounded up to whole clients) and
    `fraction_hurt` (the fraction of clients, in [0, 1], with a value worse than
    the global model's, None without `reference`).
  """
  values, weights = (np.asarray(v, np.float64) for v in (personal, weights))
  merit = metric.merit(values)
  worst = np.argsort(merit, kind='stable')[: math.ceil(len(values) / 10)]
  return {
    'mean': float(np.mean(values)),
    'weighted_mean': float(np.average(values, weights=weights)),
    'std': float(np.std(values)),
    'min': float(np.min(values)),
    'max': float(np.max(values)),
    'worst_10_percent': float(np.mean(values[worst])),
    'fraction_hurt': None
    if reference is None
    else float(np.mean(merit < metric.merit(reference))),
  }


def client_domains(
  sums: Mapping[str, Any], names: Sequence[str]
) -> dict[str, dict]:
  """A client's scores by domain, for its row.

  Args:
    sums: The `domains` of a result of `process.evaluate_clients`: `examples`,
      the number of test examples in each domain `[M]`, and `before` and
      `after`, from metric to sums over these examples `[M]`.
    names: The names of the M domains.

  Returns:
    From each domain that has test examples to `num_test_examples`, and to
    `before` and `after`, from metric to the mean over these examples.
  """
  counts = np.asarray(sums['examples'])
  return {
    names[m]: {
      'num_test_examples': round(float(counts[m])),
      **{
        which: {
          metric: float(totals[m]) / float(counts[m])
          for metric, totals in sums[which].items()
        }
        for which in ('before', 'after')
      },
    }
    for m in np.flatnonzero(counts > 0)
  }


def _domains(rows, names, has_global_model, predictions):
  parts = {
    name: [row['domains'][name] for row in rows if name in row['domains']]
    for name in names
  }
  counts = {
    name: sum(one['num_test_examples'] for one in part)
    for name, part in parts.items()
  }

  def mean(name, which, metric):
    total = sum(
      one[which][metric] * one['num_test_examples'] for one in parts[name]
    )
    return total / counts[name] if counts[name] else None

  def figures(which):
    # Metrics over all predictions of a client do not exist for its domains.
    metrics = next(iter(rows[0]['domains'].values()))[which]
    table = {
      metric: _domain_figure(
        {name: mean(name, which, metric) for name in names},
        [row[which][metric] for row in rows],
      )
      for metric in metrics
    }
    if predictions:
      y, scores, domain = _pooled(predictions, 'y', which, 'domain')
      by_domain = {
        name: two_class_score(y[domain == m], scores[domain == m])
        for m, name in enumerate(names)
      }
      table[AUC] = _domain_figure(by_domain, _client_areas(predictions, which))
    return table

  return {
    'num_test_examples': counts,
    'without_test_examples': [name for name in names if not counts[name]],
    **_of_models(figures, has_global_model),
  }


def _domain_figure(by_domain, client_values):
  overall = {'min': np.min, 'mean': np.mean, 'max': np.max}
  return {
    'by_domain': by_domain,
    **{n: _of_known(f, by_domain.values()) for n, f in overall.items()},
    'client_mean': _of_known(np.mean, client_values),
  }


_TWO_CLASS_SCORES = {
  AUC: sklearn_metrics.roc_auc_score,
  'balanced_accuracy': lambda y, scores: (
    sklearn_metrics.balanced_accuracy_score(y, scores > 0)
  ),
  'f1': lambda y, scores: sklearn_metrics.f1_score(y, scores > 0),
}


def two_class_score(y: Any, scores: Any, name: str = AUC) -> Optional[float]:
  """A score of predictions of two classes.

  Args:
    y: Labels `[n]` or `[n, labels]`, 0 or 1.
    scores: Scores of class 1, of the same shape. A score above 0 predicts class
      1. Scores that are not finite, from a diverged model, count as wrong.
    name: 'auc', 'balanced_accuracy' or 'f1'.

  Returns:
    The score, in [0, 1], or None without examples of both classes.
  """
  is_positive = np.equal(y, 1)
  # Beyond the range of float32, because scikit-learn rejects infinities.
  wrong = np.where(is_positive, -1e300, 1e300)
  scores = np.where(np.isfinite(scores), scores, wrong)
  values = [
    _TWO_CLASS_SCORES[name](*label)
    for label in zip(np.atleast_2d(is_positive.T), np.atleast_2d(scores.T))
    if label[0].any() and not label[0].all()
  ]
  return _of_known(np.mean, values)


def _two_classes(predictions, which):
  pooled = _pooled(predictions, 'y', which)
  return {
    **{name: two_class_score(*pooled, name) for name in _TWO_CLASS_SCORES},
    'client_auc': _of_known(np.mean, _client_areas(predictions, which)),
  }


def _pooled(predictions, *names):
  return [np.concatenate([one[name] for one in predictions]) for name in names]


def _client_areas(predictions, which):
  return [two_class_score(one['y'], one[which]) for one in predictions]
