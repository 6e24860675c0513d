"""Sweeps: a method's hyperparameters, chosen by scores on validation examples.

A point of a method's grid, or of a search, is chosen by the best primary metric
of the personal models, as a mean over clients and the last 10 rounds; of equal
ones the first. A point at which a client's model diverged is a failed one: with
the next seed it may be any client's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from absl import logging

from tff_pfl import errors
from tff_pfl.comparisons import execution, page, plan, trial
from tff_pfl.models import split_model
from tff_pfl.runs import report


def tune(
  comparison: plan.Comparison, directory: str, **options: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """Runs the sweeps of a comparison, as far as not yet done.

  Args:
    directory: The comparison's folder.
    **options: Further arguments of `execution.run_trials`.

  Returns:
    The `tunings` of the results (see `table`), and the failures of their
    trials. No point is chosen where all of a method's failed or diverged.
  """
  for algorithm in comparison.algorithms:
    for point, reason in comparison.refused(algorithm):
      _warn_of_refused(algorithm, point, reason)
  if comparison.num_search_trials is not None:
    tried, failed = _search(comparison, directory, options)
  else:
    tried = {
      algorithm: {
        one.name: (point, one)
        for point, one in zip(comparison.points(algorithm), trials)
      }
      for algorithm, trials in comparison.tuning_trials().items()
    }
    failed = _settled_failures(comparison, directory, tried)
    _run(tried, failed, directory, options)
  tunings = []
  for algorithm in comparison.algorithms:
    refused = comparison.refused(algorithm)
    if algorithm in tried:
      trials = [one for _, one in tried[algorithm].values()]
      tunings.append(
        table(
          trials[0].config,
          [
            (point, _summary(one, directory), failed.get(one.name))
            for point, one in tried[algorithm].values()
          ],
          refused,
        )
      )
      if chosen_point(tunings[-1]) is None:
        # Its runs may all have ended, and yet the method is not compared.
        reason = tunings[-1]['points'][0]['failure']
        failed.setdefault(trials[0].name, reason)
    elif refused:
      # The only point that the method allows is taken untried.
      (only,) = comparison.points(algorithm)
      tunings.append(
        {
          'algorithm': algorithm,
          'seed': comparison.seeds[0],
          'num_rounds': 0,
          'points': [
            _untried(only, None, chosen=True),
            *(_untried(*one) for one in refused),
          ],
        }
      )
  return tunings, failures_of(_trials_of(tried), failed)


def table(
  config: Any,
  tried: Sequence[
    tuple[Mapping[str, Any], Optional[Mapping[str, Any]], Optional[str]]
  ],
  refused: Sequence[tuple[Mapping[str, Any], str]] = (),
) -> dict[str, Any]:
  """The table of a method's sweep, with the best point chosen.

  Args:
    config: The settings of one of the runs, whose method, seed and number of
      rounds are those of all.
    tried: For each point its hyperparameters, the summary of its run (see
      `report.write_report`; None if there is none), and the reason if the run
      failed.
    refused: Points that were not tried, each with the reason (see
      `Comparison.refused`).

  Returns:
    As in the `tunings` of `results`, the primary metric called `score`.
  """
  judged = [_judged(*one) for one in tried]
  merits = [merit for _, merit in judged if merit is not None]
  for point, merit in judged:
    if merit is not None and merit == max(merits):
      point['chosen'] = True
      break
  return {
    'algorithm': config.algorithm,
    'seed': config.seed,
    'num_rounds': config.num_rounds,
    'points': [
      *(point for point, _ in judged),
      *(_untried(*one) for one in refused),
    ],
  }


def chosen_point(tuning: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
  """The hyperparameters that a sweep chose, or None if all points failed."""
  return next((p['hparams'] for p in tuning['points'] if p['chosen']), None)


def failures_of(
  trials: Iterable[trial.Trial], reasons: Mapping[str, str]
) -> list[dict[str, Any]]:
  """The failures among trials, of which there are reasons by name."""
  return [
    {
      'trial': t.name,
      'algorithm': t.config.algorithm,
      'seed': t.config.seed,
      'reason': reasons[t.name],
    }
    for t in trials
    if t.name in reasons
  ]


def _untried(hparams, failure, chosen=False):
  """A point of which there is no run."""
  return {
    'hparams': dict(hparams),
    'score': None,
    'loss': None,
    'chosen': chosen,
    'failure': failure,
  }


def _judged(hparams, summary, failure):
  """A point as it was tried, and its score: None if it failed."""
  if summary is None:
    return _untried(hparams, failure or 'it did not end'), None
  figures = report.primary_figures(summary)
  score, loss = figures['personal']['last_10_mean'], summary['loss']
  diverged = summary['non_finite_clients']
  if diverged or loss is None or not math.isfinite(loss):
    failure = (
      failure
      or f'diverged: the loss of {diverged} of its clients is not finite'
    )
  point = {**_untried(hparams, failure), 'score': score, 'loss': loss}
  if failure is not None:
    return point, None
  metric = split_model.PrimaryMetric(
    figures['name'], figures['higher_is_better']
  )
  return point, float(metric.merit(score))


def _search(comparison, directory, options):
  """Runs the searches of a comparison, as far as not yet done.

  Returns:
    Points that were tried and their trials, by method and name of the trial, in
    the order in which they were proposed; reasons of failures by name of the
    trial.
  """
  # Imported where it is needed, for it takes a while.
  from tff_pfl.comparisons import search

  studies = {
    algorithm: search.Study(directory, algorithm, space, comparison.seeds[0])
    for algorithm in comparison.algorithms
    if (space := comparison.axes(algorithm))
  }
  tried, failed = {algorithm: {} for algorithm in studies}, {}

  def add(algorithm, point):
    point = comparison.with_epochs_counting(algorithm, point)
    try:
      one = comparison.tuning_trial(algorithm, point)
    except ValueError as error:
      _warn_of_refused(algorithm, point, error)
      return None
    tried[algorithm].setdefault(one.name, (point, one))
    return one

  for algorithm, study in studies.items():
    for point, has_failed in study.points():
      one = add(algorithm, point)
      if one is None or execution.is_finished(directory, one.name):
        continue
      reason = execution.logged_error(directory, one.name)
      if reason or has_failed:
        failed[one.name] = reason or 'it did not end'
  while True:
    proposed = [
      (study, number, add(algorithm, point))
      for algorithm, study in studies.items()
      for number, point in study.propose(comparison.num_search_trials)
    ]
    if not proposed:
      break
    _run(tried, failed, directory, options)
    for study, number, one in proposed:
      merit = None
      if one is not None:
        summary = _summary(one, directory)
        _, merit = _judged({}, summary, failed.get(one.name))
      study.score(number, merit)
  for algorithm, attempts in tried.items():
    errors.expect(
      attempts,
      'search',
      f'among values that {algorithm} takes',
      'none in the points that were proposed; the warnings say why',
    )
  return tried, failed


def _trials_of(tried):
  return [t for attempts in tried.values() for _, t in attempts.values()]


def _run(tried, failed, directory, options):
  """Runs the unfinished trials that did not fail; adds those that do."""
  to_run = [t for t in _trials_of(tried) if t.name not in failed]
  if to_run:
    failed.update(
      execution.run_trials(to_run, directory, description='tuning', **options)
    )


def _summary(tried, directory):
  """The summary of a trial; None if it has not ended."""
  if not execution.is_finished(directory, tried.name):
    return None
  return trial.FinishedTrial(
    execution.trial_folder(directory, tried.name)
  ).summary


def _warn_of_refused(algorithm, point, reason):
  logging.warning(
    '%s is not tried with %s: %s', algorithm, page.assignments(point), reason
  )


def _settled_failures(comparison, directory, tried):
  """The sweep's trials that are not to be tried again: reasons by name.

  Once a method's runs have begun with what its sweep chose, a point that failed
  before must not be tried again: were it the best now, the runs would be
  another comparison's.
  """
  failures = {}
  for algorithm, trials in tried.items():
    names = [plan.trial_name(algorithm, seed) for seed in comparison.seeds]
    unfinished = [
      name for name in trials if not execution.is_finished(directory, name)
    ]
    if len(unfinished) < len(trials) and any(
      execution.is_started(directory, name) for name in names
    ):
      for name in unfinished:
        reason = execution.logged_error(directory, name) or 'it did not end'
        failures[name] = (
          f'{reason} (not tried again: the runs with another point have begun)'
        )
  return failures
