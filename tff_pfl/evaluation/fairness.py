"""Describes how evenly a metric is distributed over the clients.

A mean hides the clients that a method serves badly. The summary therefore also
gives the spread, the clients that are worst off, and the fraction that would
have been better off with the global model.
"""

import math
from typing import Any, Optional

import numpy as np


def fairness_summary(
  personal: Any, weights: Any, reference: Optional[Any] = None
) -> dict[str, Optional[float]]:
  """Summarizes a metric of which more is better, such as the accuracy.

  Args:
    personal: Finite floats of shape [clients], at least one: the metric of each
      personal model on its client's test examples.
    weights: Positive numbers of shape [clients]: the number of test examples of
      each client.
    reference: Finite floats of shape [clients]: the metric of the global model
      on the same examples; None where there is no global model.

  Returns:
    A dict of floats:
      mean: Mean over clients.
      weighted_mean: Mean weighted by `weights`, that is, over test examples.
      std: Standard deviation over clients (of the population: divided by
        their number).
      min: The worst client's value.
      max: The best client's value.
      worst_10_percent: Mean over the worst tenth of the clients, rounded up to
        whole clients.
      fraction_hurt: The fraction of clients, in [0, 1], whose value is below
        the global model's; None without `reference`.
  """
  values = np.asarray(personal, np.float64)
  hurt = None
  if reference is not None:
    hurt = float(np.mean(values < np.asarray(reference, np.float64)))
  return {
    'mean': float(np.mean(values)),
    'weighted_mean': float(
      np.average(values, weights=np.asarray(weights, np.float64))
    ),
    'std': float(np.std(values)),
    'min': float(np.min(values)),
    'max': float(np.max(values)),
    'worst_10_percent': worst_10_percent(values),
    'fraction_hurt': hurt,
  }


def worst_10_percent(values: Any) -> float:
  """Returns the mean over the worst tenth, rounded up to whole clients.

  Args:
    values: Finite floats of shape [clients], at least one; more is better.
  """
  values = np.sort(np.asarray(values, np.float64))
  return float(np.mean(values[: math.ceil(values.size / 10)]))
