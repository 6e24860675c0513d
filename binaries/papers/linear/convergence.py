"""How fast a run came close to the ground truth, and what theory promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from binaries.papers.linear import simulation

# How close "converged" is, and what slower methods get to as well.
CLOSE, NEAR = 1e-6, 1e-3
# Both theorems' rates are of a start that is away from distance 1, and grow
# with how far; from here on they hardly change.
FIT_START = 0.5
# What figures need of long histories.
_ROUNDS_PER_ROW = 10


def fit_decay(distance: np.ndarray) -> dict[str, float]:
  """Fits a line to the natural logarithm of a distance that falls to 1e-6.

  Args:
    distance: After each round, positive, `[num_rounds + 1]`.

  Returns:
    `rate`, minus the slope per round, and `r_squared`, the variance's share
    that the line explains; from the first round at 0.5 or below (or the first
    of all) to the first one at 1e-6 or below (or the last).
  """
  begun = np.flatnonzero(distance <= FIT_START)
  first = begun[0] if begun.size else 0
  last = rounds_to(distance, CLOSE)
  rounds = np.arange(first, last + 1)
  logs = np.log(distance[first : last + 1])
  slope, intercept = np.polyfit(rounds, logs, 1)
  residuals = logs - (slope * rounds + intercept)
  return {
    'rate': -float(slope),
    'r_squared': float(1 - residuals.var() / logs.var()),
  }


def rounds_to(distances: np.ndarray, distance: float) -> int:
  """Rounds until a distance is reached; where it is not, all there are.

  Args:
    distances: `[num_rounds + 1]`, by round.
    distance: What is to be reached.
  """
  reached = np.flatnonzero(distances <= distance)
  return int(reached[0]) if reached.size else len(distances) - 1


def theorem_rate(
  start: float, heads: np.ndarray, learning_rate: float
) -> float:
  """The rate that FedRep's Theorem 1 promises at least, per round.

  With all clients in each round the distance after T rounds is at most
  (1 - eta E_0 s^2 / 2)^(T / 2) times the first one, where E_0 is 1 less the
  square of the first, and s the smallest singular value of W* / sqrt(n). The
  rate is minus the logarithm of the factor per round.

  FedDAR's Theorem A.4 is the same with the domains' heads.

  Args:
    start: The first distance, in [0, 1].
    heads: W*, float64 `[n, k]`. For rows of length sqrt(k), as the theorem has
      them, s and S are at most and at least 1; for orthonormal columns times
      sqrt(n) both are 1.
    learning_rate: eta; the theorem is for at most 1 / (4 S^2), where S is the
      largest singular value of W* / sqrt(n).
  """
  singular = np.linalg.svd(heads, compute_uv=False) / np.sqrt(len(heads))
  share = learning_rate * (1 - start**2) * singular[-1] ** 2 / 2
  return -float(np.log1p(-share)) / 2


def rows(history: simulation.History) -> Iterator[dict[str, Any]]:
  """Some states of a run with a record of every round.

  Yields:
    `round`, `distance` and `gradient_norm` of every tenth round and the last
    one, whose row has also what is of the whole run: `rate`, `r_squared`,
    `rounds_to_near` and `rounds_to_close`.
  """
  num_rounds = int(history.rounds[-1])
  for index in sorted({*range(0, num_rounds, _ROUNDS_PER_ROW), num_rounds}):
    row = {
      'round': index,
      'distance': history.distance[index],
      'gradient_norm': history.gradient_norm[index],
    }
    if index == num_rounds:
      row.update(
        fit_decay(history.distance),
        rounds_to_near=rounds_to(history.distance, NEAR),
        rounds_to_close=rounds_to(history.distance, CLOSE),
      )
    yield row
