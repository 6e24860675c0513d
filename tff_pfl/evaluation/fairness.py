"""Describes how evenly a metric is distributed over the clients.

A mean hides the clients that a method serves badly. The summary therefore also
gives the spread, the clients that are worst off, and the fraction that would
have been better off with the global model.
"""

import math
from typing import Any, Optional

import numpy as np

from tff_pfl import errors


def fairness_summary(
  personal: Any, weights: Any, reference: Optional[Any] = None
) -> dict[str, Optional[float]]:
  """Summarizes a metric of which more is better, such as the accuracy.

  Clients with weight 0 have no test examples and are left out.

  Args:
    personal: Floats of shape [clients]: the metric of each personal model on
      its client's test examples.
    weights: Numbers of shape [clients], not negative: the number of test
      examples of each client.
    reference: Floats of shape [clients]: the metric of the global model on
      the same examples; None where there is no global model.

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

  Raises:
    ValueError: If the shapes differ, no client has test examples, or a value of
      a client with test examples is not finite.
  """
  weights = np.asarray(weights, np.float64)
  errors.expect(
    weights.ndim == 1, 'weights', 'of shape [clients]', weights.shape
  )
  errors.expect(
    np.all(np.isfinite(weights)) and np.all(weights >= 0),
    'weights',
    'finite and not negative',
    weights.min(initial=0.0),
  )
  scored = weights > 0
  errors.expect(
    scored.any(),
    'weights',
    'above 0 for at least one client, for a summary needs test examples',
    f'{weights.size} clients without any',
  )
  values = _values_of(scored, personal, 'personal')
  weights = weights[scored]
  hurt = None
  if reference is not None:
    hurt = float(np.mean(values < _values_of(scored, reference, 'reference')))
  return {
    'mean': float(np.mean(values)),
    'weighted_mean': float(np.average(values, weights=weights)),
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


def _values_of(scored: np.ndarray, values: Any, name: str) -> np.ndarray:
  """Returns the values of the scored clients, float64, checked."""
  values = np.asarray(values, np.float64)
  errors.expect(
    values.shape == scored.shape,
    name,
    f'of shape [{scored.size}], like `weights`',
    values.shape,
  )
  bad = np.flatnonzero(scored & ~np.isfinite(values))
  errors.expect(
    bad.size == 0,
    name,
    'finite for every client with test examples',
    f'{values[bad[0]]} at position {bad[0]}' if bad.size else None,
  )
  return values[scored]
