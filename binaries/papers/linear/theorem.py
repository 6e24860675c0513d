"""The rate of convergence in FedRep's Theorem 1, beside that of runs.

With all clients in each round the distance after T rounds is at most
(1 - eta E_0 s^2 / 2)^(T / 2) times the first one, where E_0 is 1 less the
square of the first, and s the smallest singular value of W* / sqrt(n). FedDAR's
Theorem A.4 is the same with the domains' heads.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from binaries.papers.linear import simulation
from tff_pfl.comparisons import claims, panels, paper

BOUND = "theorem's bound"

# A figure of the distances, with a panel for each case.
curves = functools.partial(
  panels.curves,
  'distance',
  over='round',
  x_label='Round',
  y_label='Principal angle distance',
  log_y=True,
  width=4.4,
  sharey=True,
)


def rate(start: float, heads: np.ndarray, learning_rate: float) -> float:
  """Minus the logarithm of the factor by which the distance falls in a round.

  Args:
    start: The first distance, in [0, 1].
    heads: W*, `[n, k]`.
    learning_rate: eta; the theorem is for at most 1 / (4 S^2), where S is the
      largest singular value of W* / sqrt(n).
  """
  singular = np.linalg.svd(heads, compute_uv=False) / np.sqrt(len(heads))
  share = learning_rate * (1 - start**2) * singular[-1] ** 2 / 2
  return -float(np.log1p(-share)) / 2


def rows(
  run_rows: Sequence[Mapping[str, Any]], heads: np.ndarray, learning_rate: float
) -> list[dict[str, Any]]:
  """The bound of the theorem, in the rounds of a run.

  Its rate is of the distance from which on a run's is fitted.

  Args:
    run_rows: The run's rows, of `simulation.rows`.
    heads: As for `rate`.
    learning_rate: As for `rate`.
  """
  start = run_rows[0]['distance']
  promised, fitted_rate = (
    rate(distance, heads, learning_rate)
    for distance in (start, simulation.FIT_START)
  )
  return [
    {
      'method': BOUND,
      'round': row['round'],
      'distance': start * np.exp(-promised * row['round']),
      'rate': fitted_rate,
    }
    for row in run_rows
  ]


def make_claims(
  case: str, runs: paper.Table, method: str, source: str
) -> paper.Claims:
  """Claims on the bound, on the rate later, and on a geometric decay.

  Args:
    case: Words on what the runs have in common, to begin a sentence.
    runs: Rows by seed, of `simulation.rows` and `rows`.
    method: Method that the theorem is about.
    source: Name of the theorem.
  """
  _, distances = runs.curve('distance', 'round', method=method)
  _, bounds = runs.curve('distance', 'round', method=BOUND)
  last = runs.where(round=max(runs.distinct('round')))
  yield claims.measured(
    f"{case}: {method} keeps the theorem's bound from the start down to "
    f'{simulation.CLOSE:g}: the largest ratio of the distances',
    source,
    # What is left in the end is rounding.
    np.where(distances > simulation.CLOSE, distances / bounds, 0)[:, 1:],
    below=1,
  )
  yield claims.measured(
    f'{case}: from a distance of {simulation.FIT_START:g} on it is at least as '
    'fast as the theorem says of such a start: the smallest ratio of the rates',
    source,
    last.values('rate', method=method) / last.values('rate', method=BOUND),
    above=1,
  )
  yield claims.measured(
    f'{case}: it converges geometrically: the smallest R² of a line through '
    f'the logarithm of the distance, from {simulation.FIT_START:g} down to '
    f'{simulation.CLOSE:g}',
    source,
    last.values('r_squared', method=method),
    above=0.98,
  )
