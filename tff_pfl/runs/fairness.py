"""Describes how evenly a metric is distributed over the clients.

A mean hides the clients that a method serves badly. The summary therefore also
gives the standard deviation, the mean over the clients that are worst off, and
the fraction that would have been better off with the global model.
"""

import math
from typing import Any, Optional

import numpy as np

from tff_pfl.models import split_model


def fairness_summary(
  personal: Any,
  weights: Any,
  reference: Optional[Any] = None,
  metric: split_model.PrimaryMetric = split_model.ACCURACY,
) -> dict[str, Optional[float]]:
  """Summarizes a metric, such as the accuracy.

  Args:
    personal: Floats of shape [clients], at least one: the metric of each
      personal model on its client's test examples. NaN, of a model that
      diverged, is worse than any other.
    weights: Positive numbers of shape [clients]: the number of test examples of
      each client.
    reference: Floats of shape [clients]: the metric of the global model on the
      same examples; None where there is no global model.
    metric: Metric of the values, with the direction that is better.

  Returns:
    A dict of floats:
      mean: Mean over clients.
      weighted_mean: Mean weighted by `weights`, that is, over test examples.
      std: Standard deviation over clients (of the population: divided by
        their number).
      min: The lowest value.
      max: The highest value.
      worst_10_percent: Mean over the worst tenth of the clients, rounded up to
        whole clients.
      fraction_hurt: The fraction of clients, in [0, 1], whose value is worse
        than the global model's; None without `reference`.
  """
  values = np.asarray(personal, np.float64)
  hurt = None
  if reference is not None:
    hurt = float(np.mean(metric.merit(values) < metric.merit(reference)))
  # NaN is worst.
  order = np.argsort(metric.merit(values), kind='stable')
  worst = order[: math.ceil(order.size / 10)]
  return {
    'mean': float(np.mean(values)),
    'weighted_mean': float(
      np.average(values, weights=np.asarray(weights, np.float64))
    ),
    'std': float(np.std(values)),
    'min': float(np.min(values)),
    'max': float(np.max(values)),
    'worst_10_percent': float(np.mean(values[worst])),
    'fraction_hurt': hurt,
  }
