"""The choice of hyperparameters by scores on validation examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_pfl.experiments import results, trial


def choose(
  algorithm: str,
  trials: Sequence[trial.Trial],
  points: Sequence[Mapping[str, Any]],
  summaries: Sequence[Optional[Mapping[str, Any]]],
  failures: Sequence[Optional[str]],
  refused: Sequence[tuple[Mapping[str, Any], str]] = (),
) -> results.Tuning:
  """Chooses the point of a method's grid with the best validation score.

  That is the highest personal accuracy, as a mean over clients and the last 10
  rounds, or without accuracies the lowest loss; of equal ones the first. A
  point at which a client's model diverged is a failed one: with the next seed
  it may be any client's.

  Args:
    trials: The trials of the points, at least one.
    summaries: The summaries of the trials' runs (see `report.write_report`);
      None for those that failed.
    failures: Why they failed; None for the others.
    refused: Points that were not tried, and why (see `Comparison.refused`).

  Returns:
    The sweep's table. No point is chosen where all failed or diverged.
  """
  scores = [_scores(summary) for summary in summaries]
  failures = [
    failure or _divergence(summary)
    for failure, summary in zip(failures, summaries)
  ]
  best = max(
    (
      i
      for i, (summary, failure) in enumerate(zip(summaries, failures))
      if summary is not None and failure is None
    ),
    key=lambda i: (_rank(*scores[i]), -i),
    default=None,
  )
  return results.Tuning(
    algorithm=algorithm,
    seed=trials[0].config.seed,
    num_rounds=trials[0].config.num_rounds,
    points=(
      *(
        results.TuningPoint(
          hparams=dict(point),
          accuracy=accuracy,
          loss=loss,
          chosen=i == best,
          failure=failure,
        )
        for i, (point, (accuracy, loss), failure) in enumerate(
          zip(points, scores, failures)
        )
      ),
      *_refused_points(refused),
    ),
  )


def without_choice(
  algorithm: str,
  seed: int,
  point: Mapping[str, Any],
  refused: Sequence[tuple[Mapping[str, Any], str]],
) -> results.Tuning:
  """The table of a grid of which the method allows a single point.

  Args:
    seed: Seed of the comparison's first runs.
    point: The point that it allows, and so is taken untried.
    refused: The other points, and why they are refused, at least one.
  """
  return results.Tuning(
    algorithm=algorithm,
    seed=seed,
    num_rounds=0,
    points=(
      results.TuningPoint(dict(point), None, None, True, None),
      *_refused_points(refused),
    ),
  )


def _refused_points(refused):
  return [
    results.TuningPoint(dict(point), None, None, False, reason)
    for point, reason in refused
  ]


def chosen_point(tuning: results.Tuning) -> Optional[Mapping[str, Any]]:
  """The hyperparameters that a sweep chose, or None if all points failed."""
  return next((p.hparams for p in tuning.points if p.chosen), None)


def _scores(summary):
  """Accuracy and loss of a run on the validation examples."""
  if summary is None:
    return None, None
  accuracy = summary['accuracy'] and summary['accuracy']['last_10_mean']
  return accuracy, summary['loss']


def _divergence(summary):
  """Why a run that ended is not to be chosen; None if it may be."""
  if summary is None:
    return None
  diverged = summary['non_finite_clients']
  if diverged or summary['loss'] is None or not math.isfinite(summary['loss']):
    return f'diverged: the loss of {diverged} of its clients is not finite'
  return None


def _rank(accuracy, loss):
  """What is higher for the better point."""
  return -loss if accuracy is None else accuracy
