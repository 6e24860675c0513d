"""Sweeps: a method's hyperparameters, chosen by scores on validation examples.

A point of a method's grid, or of a search, is chosen by the best primary metric
of the personal models, as a mean over clients and the last 10 rounds (of runs
that an old version made without an accuracy: by the lowest loss); of equal ones
the first.
A point at which a client's model diverged is a failed one: with the next seed
it may be any client's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from absl import logging

from tff_pfl.experiments import execution, page, plan, results, trial
from tff_pfl.simulation import report


def tune(
  comparison: plan.Comparison, directory: str, **options: Any
) -> tuple[list[results.Tuning], list[results.Failure]]:
  """Runs the sweeps of a comparison, or what is left of them.

  Args:
    directory: The comparison's folder.
    **options: Further arguments of `execution.run_trials`.

  Returns:
    The tables of the sweeps, and the failures of their trials. No point is
    chosen where all of a method's failed or diverged.
  """
  _warn_of_refused(comparison)
  if comparison.search:
    points, sweeps, failed = _search(comparison, directory, options)
  else:
    points = {a: comparison.points(a) for a in comparison.algorithms}
    sweeps = comparison.tuning_trials()
    failed = _settled_failures(comparison, directory, sweeps)
    _run(sweeps, failed, directory, options)
  trials = [t for of_method in sweeps.values() for t in of_method]
  tunings = []
  for algorithm in comparison.algorithms:
    refused = comparison.refused(algorithm)
    if algorithm in sweeps:
      tried = [
        (point, _summary(one, directory), failed.get(one.name))
        for point, one in zip(points[algorithm], sweeps[algorithm])
      ]
      tunings.append(table(algorithm, sweeps[algorithm], tried, refused))
      if chosen_point(tunings[-1]) is None:
        # Its runs may all have ended, and yet the method is not compared.
        first = sweeps[algorithm][0]
        failed.setdefault(first.name, tunings[-1].points[0].failure)
    elif refused:
      # The only point that the method allows is taken untried.
      (point,) = comparison.points(algorithm)
      untried = results.TuningPoint(dict(point), None, None, True, None)
      tunings.append(
        results.Tuning(
          algorithm,
          comparison.seeds[0],
          num_rounds=0,
          points=(untried, *_refused_points(refused)),
        )
      )
  return tunings, failures_of(trials, failed)


def table(
  algorithm: str,
  trials: Sequence[trial.Trial],
  tried: Sequence[
    tuple[Mapping[str, Any], Optional[Mapping[str, Any]], Optional[str]]
  ],
  refused: Sequence[tuple[Mapping[str, Any], str]] = (),
) -> results.Tuning:
  """The table of a method's sweep, with the best point chosen.

  Args:
    trials: The trials of the points, at least one.
    tried: For each point its hyperparameters, the summary of its run (see
      `report.write_report`; None if there is none), and why the run failed, if
      it did.
    refused: Points that were not tried, and why (see `Comparison.refused`).
  """
  points = [_point(*one) for one in tried]
  usable = [
    (point, summary)
    for point, (_, summary, _) in zip(points, tried)
    if point.failure is None
  ]
  by_loss = any(point.score is None for point, _ in usable)
  merits = [_merit(*one, by_loss) for one in usable]
  best = usable[merits.index(max(merits))][0] if usable else None
  return results.Tuning(
    algorithm=algorithm,
    seed=trials[0].config.seed,
    num_rounds=trials[0].config.num_rounds,
    points=(
      *(dataclasses.replace(point, chosen=point is best) for point in points),
      *_refused_points(refused),
    ),
  )


def chosen_point(tuning: results.Tuning) -> Optional[Mapping[str, Any]]:
  """The hyperparameters that a sweep chose, or None if all points failed."""
  return next((p.hparams for p in tuning.points if p.chosen), None)


def failures_of(
  trials: Sequence[trial.Trial], reasons: Mapping[str, str]
) -> list[results.Failure]:
  """The failures among trials, of which there are reasons by name."""
  return [
    results.Failure(t.name, t.config.algorithm, t.config.seed, reasons[t.name])
    for t in trials
    if t.name in reasons
  ]


def _point(hparams, summary, failure):
  """A point of a grid as it was tried; see `table`."""
  score = loss = None
  if summary is None:
    failure = failure or 'it did not end'
  else:
    personal = report.primary_figures(summary)['personal']
    score = personal and personal['last_10_mean']
    loss = summary['loss']
    diverged = summary['non_finite_clients']
    if diverged or loss is None or not math.isfinite(loss):
      failure = (
        failure
        or f'diverged: the loss of {diverged} of its clients is not finite'
      )
  return results.TuningPoint(dict(hparams), score, loss, False, failure)


def _merit(point, summary, by_loss):
  """How good a point is that did not fail; more is better."""
  if by_loss:
    return -point.loss
  higher_is_better = report.primary_figures(summary)['higher_is_better']
  return point.score if higher_is_better else -point.score


def _search(comparison, directory, options):
  """The searches of a comparison, or what is left of them.

  Returns:
    By method the points that were tried, in the order they were proposed, and
    their trials; by name of a trial why it failed.
  """
  # Imported where it is needed, for it takes a while.
  from tff_pfl.experiments import search

  studies = {}
  for algorithm in comparison.algorithms:
    space = comparison.search_space(algorithm)
    if space:
      studies[algorithm] = search.Study(
        directory, algorithm, space, comparison.seeds[0]
      )
  found = {algorithm: {} for algorithm in studies}  # By name of the trial.
  failed = {}

  def add(algorithm, point):
    point = comparison.with_epochs_counting(algorithm, point)
    try:
      one = comparison.tuning_trial(algorithm, point)
    except ValueError as error:
      logging.warning(
        '%s is not tried with %s: %s', algorithm, page.assignments(point), error
      )
      return None
    found[algorithm].setdefault(one.name, (point, one))
    return one

  for algorithm, study in studies.items():
    for _, point in study.points():
      one = add(algorithm, point)
      reason = one and execution.logged_error(directory, one.name)
      if reason and not execution.is_finished(directory, one.name):
        failed[one.name] = reason
  while True:
    proposed = [
      (study, number, add(algorithm, point))
      for algorithm, study in studies.items()
      for number, point in study.propose(comparison.num_search_trials)
    ]
    if not proposed:
      break
    _run(_trials_of(found), failed, directory, options)
    for study, number, one in proposed:
      merit = None
      if one is not None:
        summary = _summary(one, directory)
        point = _point({}, summary, failed.get(one.name))
        if point.failure is None:
          merit = _merit(point, summary, point.score is None)
      study.score(number, merit)
  points = {a: [point for point, _ in n.values()] for a, n in found.items()}
  return points, _trials_of(found), failed


def _trials_of(found):
  return {a: [one for _, one in n.values()] for a, n in found.items() if n}


def _run(sweeps, failed, directory, options):
  """Runs what is left of the trials that did not fail; adds those that do."""
  to_run = [t for its in sweeps.values() for t in its if t.name not in failed]
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


def _refused_points(refused):
  return [
    results.TuningPoint(dict(point), None, None, False, reason)
    for point, reason in refused
  ]


def _warn_of_refused(comparison):
  for algorithm in comparison.algorithms:
    for point, reason in comparison.refused(algorithm):
      logging.warning(
        '%s is not tried with %s: %s',
        algorithm,
        page.assignments(point),
        reason,
      )


def _settled_failures(comparison, directory, sweeps):
  """By name the sweep's trials that are not to be tried again, and why.

  Once a method's runs have begun with what its sweep chose, a point that failed
  before must not be tried again: were it the best now, the runs would be
  another comparison's.
  """
  failures = {}
  for algorithm, trials in sweeps.items():
    names = [plan.trial_name(algorithm, seed) for seed in comparison.seeds]
    unfinished = [
      t.name for t in trials if not execution.is_finished(directory, t.name)
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
