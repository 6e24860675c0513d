"""The rate of convergence in FedRep's Theorem 1, beside that of runs.

With all clients in each round the distance after T rounds is at most
(1 - eta E_0 s^2 / 2)^(T / 2) times the first one, where E_0 is 1 less the
square of the first, and s the smallest singular value of W* / sqrt(n). FedDAR's
Theorem A.4 is the same with the domains' heads.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tff_pfl.studies import claims
from tff_pfl.studies.numbers import Numbers

from .. import panels
from . import simulation

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


def largest_learning_rate(heads: np.ndarray) -> float:
  """The largest eta that the theorem is for, 1 / (4 S^2); see `rate`."""
  return len(heads) / (4 * np.linalg.norm(heads, 2) ** 2)


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
  history: simulation.History,
  heads: np.ndarray,
  learning_rate: float,
  columns: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
  """The rows of a run, then those of the theorem's bound in its rounds.

  The bound's rate is of the distance from which on a run's is fitted.

  Args:
    heads: As for `rate`.
    learning_rate: As for `rate`.
    columns: What names the run, of which `method` is not the bound's.
  """
  of_run = list(simulation.rows(history, columns))
  yield from of_run
  start = history.distance[0]
  promised = rate(start, heads, learning_rate)
  for row in of_run:
    yield {
      **columns,
      'method': BOUND,
      'round': row['round'],
      'distance': start * np.exp(-promised * row['round']),
      'rate': rate(simulation.FIT_START, heads, learning_rate),
    }


def make_claims(
  case: str, runs: Numbers, method: str, source: str
) -> Iterator[claims.Claim]:
  """Claims on the bound, on the rate later, and on a geometric decay.

  Args:
    case: Words on what the runs have in common, to begin a sentence.
    runs: Rows by seed, of `simulation.rows` and `rows`.
    method: Method that the theorem is about.
    source: Name of the theorem.
  """
  distances = runs.curve('distance', 'round', method=method)
  bounds = runs.curve('distance', 'round', method=BOUND)
  last = runs.where(round=max(runs.distinct('round')))
  yield claims.measured(
    f"{case}: {method} keeps the theorem's bound from the start down to "
    f'{simulation.CLOSE:g}: the largest ratio of the distances',
    source,
    # What is left in the end is rounding.
    np.where(distances > simulation.CLOSE, distances / bounds, 0)[:, 1:],
    below=1,
    of_paper=True,
  )
  yield claims.measured(
    f'{case}: from a distance of {simulation.FIT_START:g} on it is at least as '
    'fast as the theorem says of such a start: the smallest ratio of the rates',
    source,
    last.values('rate', method=method) / last.values('rate', method=BOUND),
    above=1,
    of_paper=True,
  )
  yield claims.measured(
    f'{case}: it converges geometrically: the smallest R² of a line through '
    f'the logarithm of the distance, from {simulation.FIT_START:g} down to '
    f'{simulation.CLOSE:g}',
    source,
    last.values('r_squared', method=method),
    above=0.98,
  )
