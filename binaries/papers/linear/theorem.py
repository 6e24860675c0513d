"""The rate of convergence in FedRep's Theorem 1, compared with runs.

If all clients train in each round, the distance after T rounds is at most
(1 - eta E_0 s^2 / 2)^(T / 2) times the first distance. E_0 is 1 minus the
square of the first distance, and s the smallest singular value of
W* / sqrt(n). FedDAR's Theorem A.4 is the same with the domains' heads.
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
  """The largest eta that the theorem allows, 1 / (4 S^2), see `rate`."""
  return len(heads) / (4 * np.linalg.norm(heads, 2) ** 2)


def rate(start: float, heads: np.ndarray, learning_rate: float) -> float:
  """Minus the logarithm of the factor by which the distance falls in a round.

  Args:
    start: The first distance, in [0, 1].
    heads: W*, `[n, k]`.
    learning_rate: eta. The theorem allows at most 1 / (4 S^2), where S is the
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
  """Yields the rows of a run, then rows of the theorem's bound by round.

  The bound's rate is for a start at the distance where the fit of a run's rate
  begins.

  Args:
    history: The run.
    heads: As for `rate`.
    learning_rate: As for `rate`.
    columns: Columns that name the run. The bound has its own `method`.
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
  case: str, runs: Numbers, method: str, source: str = ''
) -> Iterator[claims.Claim]:
  """Claims about the bound, the later rate, and a geometric decay.

  Args:
    case: What the runs have in common, in words that begin a sentence.
    runs: Rows of all seeds, from `rows`.
    method: Method that the theorem is about.
    source: Name of the theorem. The default is the study's source.
  """
  distances = runs.curve('distance', 'round', method=method)
  bounds = runs.curve('distance', 'round', method=BOUND)
  last = runs.where(round=max(runs.distinct('round')))
  yield claims.measured(
    f"{case}: {method} keeps the theorem's bound from the start down to "
    f'{simulation.CLOSE:g}: the largest ratio of the distances',
    # Smaller distances are rounding errors.
    np.where(distances > simulation.CLOSE, distances / bounds, 0)[:, 1:],
    source=source,
    below=1,
    of_paper=True,
  )
  yield claims.measured(
    f'{case}: from a distance of {simulation.FIT_START:g} on it is at least as '
    'fast as the theorem says of such a start: the smallest ratio of the rates',
    last.values('rate', method=method) / last.values('rate', method=BOUND),
    source=source,
    above=1,
    of_paper=True,
  )
  yield claims.measured(
    f'{case}: it converges geometrically: the smallest R² of a line through '
    f'the logarithm of the distance, from {simulation.FIT_START:g} down to '
    f'{simulation.CLOSE:g}',
    last.values('r_squared', method=method),
    source=source,
    above=0.98,
  )
