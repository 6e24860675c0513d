"""Runs a study: its sweep, its trials, its measure, its claims and page.

The folder of a study has `trials/` (see `execution`), `study.json`, which
describes the study and has its claims, `numbers.csv`, `per_client.csv`, for
data with domains `per_domain.csv`, `figure.png` and `study.html`, a page that
shows all; `numbers.json` has what a measure found. One process at a time runs the
study of a folder, which it locks.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tff_pfl import errors, fields, plots
from tff_pfl import runtime as runtime_lib
from tff_pfl.methods import registry
from tff_pfl.runs import directory_lock
from tff_pfl.runs import settings as settings_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.studies import claims as claims_lib
from tff_pfl.studies import cluster as cluster_lib
from tff_pfl.studies import (
  execution,
  measures,
  plan,
  results,
  trial,
  tuning,
)
from tff_pfl.studies import study as study_lib
from tff_pfl.system import folders, machine

NUMBERS_CSV_NAME = 'numbers.csv'
CLIENTS_CSV_NAME = 'per_client.csv'
DOMAINS_CSV_NAME = 'per_domain.csv'
FIGURE_NAME = 'figure.png'


@fields.checked_call
def run(
  study: study_lib.Study,
  directory: str,
  *,
  num_processes: Optional[int] = None,
  cluster: Optional[cluster_lib.Cluster] = None,
  runtime: fields.one_of(runtime_lib.RUNTIMES) = runtime_lib.DEFAULT,
  runtime_options: Optional[Mapping[str, Any]] = None,
  data_dir: Optional[str] = None,
  rerun: bool = False,
  show_progress: bool = True,
) -> results.Results:
  """Runs a study, as far as not yet done, and writes its results.

  A trial that fails is reported among the results, and the others run; but a
  study with a measure of its own needs all of its trials.

  Args:
    study: The study, at one of its scales.
    directory: Folder of the study. What has ended there is not run again.
    num_processes: Trials at the same time; None for one on each usable core, 0
      for one after another in this process.
    cluster: Cluster to run them on, instead of this machine; its nodes share
      `directory`.
    runtime: Runtime of the trials, a key of `runtime.RUNTIMES`.
    runtime_options: Keyword arguments of the runtime, as JSON types.
    data_dir: Folder of the data sets' files, for those that read any.
    rerun: True to delete what the folder has and start anew.

  Returns:
    The results.

  Raises:
    RunError: If the folder holds a trial with other settings, or numbers of
      other parameters, is in use by a running process, or cannot be used; or if
      what a measure needs failed.
  """
  directory = folders.results_folder(directory, folders.STUDY)
  if runtime != runtime_lib.DEFAULT:
    study = study.with_settings(runtime=runtime)
  if data_dir is not None:
    study = study.with_settings(data_dir=data_dir)
  place = measures.Place(num_processes, cluster, runtime_options, show_progress)
  with directory_lock.DirectoryLock(directory):
    if rerun:
      _clear(directory)
    before = _read(directory)
    started, seconds = time.perf_counter(), before.get('seconds', 0)
    if study.measure is None:
      found = run_trials(study, directory, place)
    else:
      found = _measure(study, directory, place)
    if seconds is not None:
      seconds = round(seconds + time.perf_counter() - started, 1)
    numbers = results.numbers_of(found)
    claims = claims_lib.check(study.claims, numbers, study)
    if study.measure is not None or len(found):
      found.description.update(
        claims=[claim._asdict() for claim in claims], seconds=seconds
      )
      _write(found, study, numbers)
  return found


def run_trials(
  study: study_lib.Study, directory: str, place: measures.Place
) -> results.Results:
  """Runs the trials of a study that have not ended; writes its description."""
  options = {
    'num_processes': place.num_processes,
    'cluster': place.cluster,
    'runtime_options': place.runtime_options,
    'show_progress': place.show_progress,
  }
  # Before any process is started: what is wrong with the data is wrong for all.
  partitions = _partitions(study, _read(directory).get('partitions', {}))
  chosen, tunings, failures = tuning.tune(study, directory, **options)
  entries = plan.entries(study, chosen)
  trials = plan.trials_of(entries)
  failed = execution.run_trials(trials, directory, **options)
  failures += tuning.failures_of(trials, failed)
  description = {
    **_description(study, entries),
    'partitions': partitions,
    'tunings': tunings,
    'failures': failures,
    'runtime_options': dict(place.runtime_options or {}),
    # Unknown if this process ends before the results.
    'seconds': None,
  }
  summary_lib.write_json(_path(directory, results.STUDY_NAME), description)
  return results.Results(directory, description)


def _path(directory, name):
  return os.path.join(directory, name)


def _read(directory):
  """The description that a folder has; empty without one."""
  path = _path(directory, results.STUDY_NAME)
  return summary_lib.read_json(path) if os.path.exists(path) else {}


def _as_written(value):
  """A value as it is read back after it was written as JSON."""
  return json.loads(summary_lib.json_text(value))


def _plain(value):
  """Settings and parameters as JSON types."""
  if dataclasses.is_dataclass(value):
    return {name: _plain(one) for name, one in vars(value).items()}
  if isinstance(value, Mapping):
    return {str(name): _plain(one) for name, one in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(one) for one in value]
  is_json = value is None or isinstance(value, (str, int, float, bool))
  return value if is_json else repr(value)


def _description(study, entries):
  """The content of `study.json`, before the results."""
  methods = {}
  for name in study.method_names:
    method = study.methods[name]
    own = next((e for e in entries if e.method == name), None)
    methods[name] = {
      'algorithm': method.algorithm,
      'score': method.score,
      'summary': registry.get_algorithm(method.algorithm).summary,
      'settings': _plain(method.settings),
      'hparams': own and fields.to_json(own.trial.settings.method),
    }
  return _as_written(
    {
      'name': study.name,
      'source': study.source,
      'summary': study.summary,
      'deviations': study.deviations,
      'scale': study.scale,
      'metric': study.metric,
      'is_measured': study.measure is not None,
      'seeds': study.seeds,
      'num_folds': study.num_folds,
      'num_new_clients': study.num_new_clients,
      'conditions': _plain(study.conditions),
      'methods': methods,
      'settings': _shared(study, entries),
      'parameters': _plain(study.parameters),
      'overrides': _plain(study.overrides),
      'data_dir': study.overrides.get('data_dir'),
      'published': [
        {'method': method, 'condition': condition, 'value': value}
        for (method, condition), value in study.published.items()
        if method in study.method_names and condition in study.conditions
      ],
      'entries': [
        {**entry._asdict(), 'trial': entry.trial.name} for entry in entries
      ],
      'versions': machine.versions(),
      'commit': _commit(),
    }
  )


def _shared(study, entries):
  """The settings that all trials share, by flat name."""
  trials = plan.trials_of(entries)
  if not trials:
    return {}
  every = [
    fields.to_json(one.settings)
    for one in trials
    if one.settings.seed == study.seeds[0]
  ]
  paths = fields.flat_names(settings_lib.Settings)
  parts = {path[:-1] for path in paths.values()}
  # Options of fine-tuning say nothing where nothing is fine-tuned.
  scopes = {
    options.fine_tune
    for one in trials
    for options in (
      one.settings.process.personalization,
      *one.variants.values(),
    )
  }
  shared = {}
  for name, path in paths.items():
    if path in parts or name in ('method', 'seed', 'data_dir'):
      continue
    if name.startswith('fine_tune_') and not scopes & {'head', 'all'}:
      continue
    values = [functools.reduce(operator.getitem, path, one) for one in every]
    if all(value == values[0] for value in values):
      shared[name] = values[0]
  return shared


def _partitions(study, known):
  """The partition of each condition's data, with the first seed.

  Args:
    known: What an earlier call returned, which is not made again.
  """
  found = {}
  for entry in plan.entries(study):
    name = str(entry.condition)
    if name in found:
      continue
    of = _as_written(
      [fields.to_json(entry.trial)['settings']['data'], study.seeds[0]]
      + [study.num_new_clients, study.num_folds]
    )
    if known.get(name, {}).get('of') == of:
      found[name] = known[name]
      continue
    parts = trial.load_data(entry.trial)
    found[name] = {'of': of, **_partition(study.seeds[0], *parts)}
  return found


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


def _measure(study, directory, place):
  """The results of a study with a measure of its own."""
  of = _as_written(
    {
      name: _plain(getattr(study, name))
      for name in ('settings', 'conditions', 'seeds', 'parameters', 'overrides')
    }
    | {'methods': list(study.method_names)}
  )
  of['overrides'].pop('data_dir', None)
  path = _path(directory, results.NUMBERS_NAME)
  stored = summary_lib.read_json(path) if os.path.exists(path) else None
  if stored is not None and stored['of'] != of and not study.methods:
    differing = [name for name in of if of[name] != stored['of'].get(name)]
    raise errors.RunError(
      f'{directory} holds numbers of other {" and ".join(differing)}: choose '
      'another output folder, or have it deleted and measured anew (`rerun`).'
    )
  if stored is not None and stored['of'] == of:
    return results.Results(directory, _read(directory))
  context = measures.Context(study, directory, place)
  description = _description(
    study, plan.entries(study) if study.methods else []
  )
  description.update(partitions={}, tunings=[], failures=[], seconds=None)
  os.makedirs(directory, exist_ok=True)
  # Unknown if this process is killed.
  summary_lib.write_json(_path(directory, results.STUDY_NAME), description)
  rows = list(study.measure(context))
  columns = pd.DataFrame(rows).to_dict('list')
  summary_lib.write_json(path, {'of': of, 'columns': columns})
  if context.results is not None:
    return results.Results(directory, context.results.description)
  return results.Results(directory, description)


def _write(found, study, numbers):
  """Writes the files of results, the page and the picture."""
  directory = found.directory
  summary_lib.write_json(
    _path(directory, results.STUDY_NAME), found.description
  )
  for name, frame in (
    (NUMBERS_CSV_NAME, found.numbers),
    (CLIENTS_CSV_NAME, found.client_scores),
    (DOMAINS_CSV_NAME, found.domain_scores),
  ):
    if not frame.empty:
      summary_lib.write_csv(
        _path(directory, name), summary_lib.frame(frame.to_dict('records'))
      )
  figure = Figure(layout='constrained')
  if study.draw is not None:
    study.draw(numbers, study, figure)
    plots.save(figure, _path(directory, FIGURE_NAME))
  else:
    ax = found.plot(plots.new_axes(9, 4.4))
    plots.save(ax, _path(directory, FIGURE_NAME))
  found.page()


@functools.cache
def _commit() -> Optional[str]:
  """The commit of the source, '-dirty' if it was changed; None without git."""
  try:
    return subprocess.run(
      ['git', 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*'],
      cwd=os.path.dirname(__file__),
      capture_output=True,
      text=True,
      check=True,
    ).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None


def _clear(directory):
  """Deletes a study's results, its description last."""
  shutil.rmtree(_path(directory, execution.TRIALS_DIR), ignore_errors=True)
  for name in (
    results.NUMBERS_NAME,
    NUMBERS_CSV_NAME,
    CLIENTS_CSV_NAME,
    DOMAINS_CSV_NAME,
    FIGURE_NAME,
    tuning.FILE_NAME,
    results.STUDY_NAME,
  ):
    path = _path(directory, name)
    if os.path.exists(path):
      os.remove(path)
