"""Runs a comparison: the sweep, the trials, the results.

The folder of a comparison holds `trials/` (see `execution`) and, once the
trials have ended, `comparison.json` (everything), `comparison.csv` (a line for
each method), `per_client.csv`, for data with domains `per_domain.csv`,
`comparison.html`, a page that shows all, and `accuracy.png`, the best methods'
accuracy by round. One process at a time runs the comparison of a folder, which
it locks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional

from absl import logging

from tff_pfl import errors
from tff_pfl.experiments import (
  collection,
  execution,
  figures,
  html_report,
  plan,
  presentation,
  results,
  trial,
  tuning,
)
from tff_pfl.simulation import directory_lock, picture_style

PICTURE_NAME = 'accuracy.png'


def run(
  comparison: plan.Comparison,
  directory: str,
  *,
  num_processes: Optional[int] = None,
  runtime_options: Optional[Mapping[str, Any]] = None,
  resume: bool = False,
  show_progress: bool = True,
) -> results.ComparisonResults:
  """Runs a comparison, or what is left of it, and writes its results.

  A trial that fails is reported among the results; the others run.

  Args:
    num_processes: Trials at the same time; None for one on each usable core, 0
      for one after another in this process.
    runtime_options: Options of the trials' runtimes, as JSON types.
    resume: Whether to go on with the comparison in `directory`, if there is
      one. Methods and seeds may then be added. Without it an earlier comparison
      is an error.

  Returns:
    The results.

  Raises:
    ValueError: If the data cannot be divided as asked, or an argument is out of
      range.
    RunError: If the folder holds another comparison, is in use by a running
      process, or cannot be used.
  """
  if not resume and os.path.exists(
    os.path.join(directory, execution.TRIALS_DIR)
  ):
    raise errors.RunError(
      f'There is a comparison in {directory} already: pass --resume to go on '
      'with it, or another --output_dir.'
    )
  if num_processes is not None:
    errors.expect_int('num_processes', num_processes, 0)
  # Before any process is started: what is wrong with the data is wrong for all.
  partition = _partition(comparison)
  options = {
    'num_processes': num_processes,
    'runtime_options': runtime_options,
    'show_progress': show_progress,
  }
  with directory_lock.DirectoryLock(directory):
    return _run(comparison, directory, partition, options)


def _run(comparison, directory, partition, options):
  """Runs a comparison in a folder that is this process's alone."""
  tunings, failures = _tune(comparison, directory, options)
  trials = comparison.trials(
    {sweep.algorithm: tuning.chosen_point(sweep) for sweep in tunings}
  )
  failed = execution.run_trials(trials, directory, **options)
  failures += _failures(trials, failed)
  shares = execution.divide_cores(
    len(trials),
    options['num_processes'],
    (options['runtime_options'] or {}).get('max_concurrent_clients'),
  )
  found = collection.collect(
    comparison,
    directory,
    trials,
    partition=partition,
    tunings=tunings,
    failures=failures,
    settings=[results.Setting('num_processes', shares.num_processes)],
  )
  found.write_json(os.path.join(directory, results.JSON_NAME))
  found.write_csv(os.path.join(directory, results.CSV_NAME))
  found.write_clients_csv(os.path.join(directory, results.CLIENTS_CSV_NAME))
  if found.has_domains:
    found.write_domains_csv(os.path.join(directory, results.DOMAINS_CSV_NAME))
  html_report.write_report(
    found, os.path.join(directory, html_report.REPORT_NAME)
  )
  curves = figures.with_curves(found.methods)[: figures.MAX_OVERVIEW_METHODS]
  if curves:
    picture_style.save(
      figures.curves_overview(curves), os.path.join(directory, PICTURE_NAME)
    )
  return found


def _partition(comparison):
  """How the first seed's training data lie on the clients."""
  # Of any of the first seed's trials: the data are the same.
  some = comparison.trials(
    {a: comparison.points(a)[0] for a in comparison.algorithms}
  )[0]
  data = trial.load_data(some)
  parts = [data.trained] if data.new is None else [data.trained, data.new]
  counts = None
  if data.trained.num_classes is not None:
    counts = tuple(
      tuple(row) for part in parts for row in part.class_counts().tolist()
    )
  return results.Partition(
    seed=comparison.seeds[0],
    client_ids=tuple(i for part in parts for i in part.client_ids),
    num_new_clients=0 if data.new is None else data.new.num_clients,
    class_counts=counts,
    num_train_examples=tuple(
      part.num_train_examples(i) for part in parts for i in part.client_ids
    ),
  )


def _tune(comparison, directory, options):
  """The sweeps, and the failures of their trials."""
  _warn_of_refused(comparison)
  sweeps = comparison.tuning_trials()
  trials = [t for of_method in sweeps.values() for t in of_method]
  failed = _settled_failures(comparison, directory, sweeps)
  to_run = [t for t in trials if t.name not in failed]
  if to_run:
    failed.update(
      execution.run_trials(to_run, directory, description='tuning', **options)
    )
  tunings = [
    _choose(comparison, directory, algorithm, sweeps.get(algorithm, ()), failed)
    for algorithm in comparison.algorithms
    if algorithm in sweeps or comparison.refused(algorithm)
  ]
  for sweep in tunings:
    if tuning.chosen_point(sweep) is None:
      # Its runs may all have ended, and yet the method is not compared.
      first = sweeps[sweep.algorithm][0]
      failed.setdefault(first.name, sweep.points[0].failure)
  return tunings, _failures(trials, failed)


def _warn_of_refused(comparison):
  for algorithm in comparison.algorithms:
    for point, reason in comparison.refused(algorithm):
      logging.warning(
        '%s is not tried with %s: %s',
        algorithm,
        presentation.assignments(point),
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


def _choose(comparison, directory, algorithm, trials, failed):
  """The table of a method's sweep."""
  points = comparison.points(algorithm)
  refused = comparison.refused(algorithm)
  if not trials:
    return tuning.without_choice(
      algorithm, comparison.seeds[0], points[0], refused
    )
  return tuning.choose(
    algorithm,
    trials,
    points,
    [_summary(directory, t.name) for t in trials],
    [failed.get(t.name) for t in trials],
    refused,
  )


def _summary(directory, name):
  """The summary of a finished trial's run; None of one that is not."""
  found = execution.finished(directory, name)
  return None if found is None else found.summary


def _failures(trials, failed):
  return [
    results.Failure(t.name, t.config.algorithm, t.config.seed, failed[t.name])
    for t in trials
    if t.name in failed
  ]
