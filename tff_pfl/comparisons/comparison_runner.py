"""Runs a comparison: the sweep, the trials, the results.

The folder of a comparison holds `trials/` (see `execution`) and, once the
trials have ended, `comparison.json` (everything), `comparison.csv` (a line for
each method), `per_client.csv`, for data with domains `per_domain.csv`,
`comparison.html`, a page that shows all, and `accuracy.png` (or of another
primary metric), the best methods' accuracy by round. One process at a time runs
the comparison of a folder, which it locks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd

from tff_pfl import errors, fields, plots
from tff_pfl.comparisons import cluster as cluster_lib
from tff_pfl.comparisons import (
  execution,
  page,
  plan,
  results,
  trial,
  tuning,
)
from tff_pfl.models import split_model
from tff_pfl.runs import directory_lock
from tff_pfl.system import folders


@fields.checked_call
def compare(
  comparison: plan.Comparison,
  directory: str,
  *,
  num_processes: Optional[int] = None,
  cluster: Optional[cluster_lib.Cluster] = None,
  runtime_options: Optional[Mapping[str, Any]] = None,
  resume: bool = False,
  published: Optional[pd.DataFrame] = None,
  show_progress: bool = True,
) -> results.Results:
  """Runs a comparison, as far as not yet done, and writes its results.

  A trial that fails is reported among the results; the others run.

  Args:
    comparison: The methods, seeds and settings.
    directory: Folder of the comparison.
    num_processes: Trials at the same time; None for one on each usable core, 0
      for one after another in this process.
    cluster: Cluster to run them on, instead of this machine; its nodes share
      `directory`.
    runtime_options: Options of the trials' runtimes, as JSON types.
    resume: True to continue the comparison in `directory`, if there is one;
      methods and seeds may then be added. False makes an earlier comparison an
      error.
    published: Figures to stand beside ours on the page, see `page.write`.

  Returns:
    The results.

  Raises:
    RunError: If the folder holds another comparison, is in use by a running
      process, or cannot be used.
  """
  directory = folders.results_folder(directory, folders.COMPARISON)
  if not resume and os.path.exists(
    os.path.join(directory, execution.TRIALS_DIR)
  ):
    raise errors.RunError(
      f'There is a comparison in {directory} already: pass `resume` to go on '
      'with it, or another `output_dir`.'
    )
  # Before any process is started: what is wrong with the data is wrong for all.
  # All trials of the first seed have the same.
  parts = trial.load_data(comparison.trials()[0])
  partition = _partition(comparison.seeds[0], *parts)
  options = {
    'num_processes': num_processes,
    'cluster': cluster,
    'runtime_options': runtime_options,
    'show_progress': show_progress,
  }
  with directory_lock.DirectoryLock(directory):
    tunings, failures = tuning.tune(comparison, directory, **options)
    trials = comparison.trials(
      {sweep['algorithm']: tuning.chosen_point(sweep) for sweep in tunings}
    )
    failed = execution.run_trials(trials, directory, **options)
    failures += tuning.failures_of(trials, failed)
    methods, primary, reported = results.collect(comparison, directory, trials)
    settings = {
      **results.settings(comparison, parts[0]),
      **_place(len(trials), num_processes, cluster),
    }
    found = results.Results(
      {
        'title': (
          '{dataset}, {num_clients} clients, {partition}, {num_rounds} rounds'
        ).format_map(settings),
        'settings': [
          {'name': name, 'value': value} for name, value in settings.items()
        ],
        'methods': methods,
        'partition': partition,
        'tunings': [_with_named_scores(sweep, primary) for sweep in tunings],
        'failures': failures,
      }
    )
    if primary != split_model.ACCURACY:
      found['primary_metric'] = primary._asdict()
    if reported:
      found['reported'] = [metric._asdict() for metric in reported]
    _write(found, primary, directory, published)
  return found


def _place(num_trials, num_processes, cluster):
  """The setting that says where trials run."""
  if cluster is not None:
    return {'cluster': cluster.address}
  shares = execution.divide_cores(num_trials, num_processes)
  return {'num_processes': shares.num_processes}


def _with_named_scores(sweep, primary):
  """A sweep whose points have their score under the primary metric's name."""
  points = [
    {
      primary.name if name == 'score' else name: value
      for name, value in point.items()
      if name != primary.name
    }
    for point in sweep['points']
  ]
  return {**sweep, 'points': points}


def _write(found, primary, directory, published):
  """Writes the results, the page and the picture."""
  found.write(directory)
  page.write(found, os.path.join(directory, page.REPORT_NAME), published)
  if any(method['curves'] for method in found['methods']):
    ax = found.plot(plots.new_axes(9, 4.4))
    plots.save(ax, os.path.join(directory, f'{primary.name}.png'))


def _partition(seed, trained, new):
  """The partition of the first seed's training data among the clients."""
  parts = [trained] if new is None else [trained, new]
  counts = domain_counts = None
  if trained.num_classes is not None:
    counts = np.concatenate([part.class_counts() for part in parts]).tolist()
  if trained.domain_names is not None:
    by_client = np.concatenate([part.domain_counts() for part in parts])
    domain_counts = dict(zip(trained.domain_names, by_client.T.tolist()))
  return {
    'seed': seed,
    'client_ids': [i for part in parts for i in part.client_ids],
    'num_new_clients': 0 if new is None else new.num_clients,
    'class_counts': counts,
    'num_train_examples': [
      part.num_train_examples(i) for part in parts for i in part.client_ids
    ],
    'domain_counts': domain_counts,
  }
