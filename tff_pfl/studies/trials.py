"""Runs a study's sweep and trials, and describes the study in its folder."""

from __future__ import annotations

import functools
import json
import operator
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import pydantic_core

from tff_pfl import fields, plots
from tff_pfl.methods import registry
from tff_pfl.runs import settings as settings_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.studies import cluster as cluster_lib
from tff_pfl.studies import execution, plan, results, trial, tuning
from tff_pfl.system import machine

if TYPE_CHECKING:
  from tff_pfl.studies import study as study_lib


class Place(NamedTuple):
  """The place where trials run.

  Attributes:
    num_processes: Number of trials at the same time. None runs one on each
      usable core, and 0 runs them one after another in this process.
    cluster: Cluster to run them on, instead of this machine.
    runtime_options: Keyword arguments of the trials' runtime, as JSON types.
    show_progress: True for progress bars on stderr.
  """

  num_processes: Optional[int] = None
  cluster: Optional[cluster_lib.Cluster] = None
  runtime_options: Optional[Mapping[str, Any]] = None
  show_progress: bool = True


def run_trials(
  study: study_lib.Study, directory: str, place: Place
) -> results.Results:
  """Runs the unfinished trials of a study, and writes its description."""
  options = place._asdict()
  # Before any process starts, because errors in the data affect all trials of a
  # condition.
  partitions = _partitions(study, read(directory).get('partitions', {}))
  chosen, tunings, failures = tuning.tune(study, directory, **options)
  entries = plan.entries(study, chosen)
  trials = plan.trials_of(entries)
  description = {
    **describe(study, entries),
    'partitions': partitions,
    'tunings': tunings,
    'failures': failures,
    # Stays unknown if this process ends before the results.
    'seconds': None,
  }
  path = os.path.join(directory, results.STUDY_NAME)
  if not os.path.exists(path):
    # Results can be read while other trials run.
    os.makedirs(directory, exist_ok=True)
    summary_lib.write_json(path, description)
  failed = execution.run_trials(trials, directory, **options)
  failures += tuning.failures_of(trials, failed)
  summary_lib.write_json(path, description)
  return results.Results(directory, description)


def read(directory: str) -> dict[str, Any]:
  """The description in a folder, empty without one."""
  path = os.path.join(directory, results.STUDY_NAME)
  return summary_lib.read_json(path) if os.path.exists(path) else {}


def as_written(value: Any) -> Any:
  """A value as it is read back from JSON."""
  return json.loads(summary_lib.json_text(value))


def plain(value: Any) -> Any:
  """Settings and parameters as JSON types."""
  return pydantic_core.to_jsonable_python(value, fallback=repr)


def describe(
  study: study_lib.Study, entries: Sequence[plan.Entry]
) -> dict[str, Any]:
  """The content of `study.json`, before the results."""
  methods = {}
  for name in study.method_names:
    method = study.methods[name]
    own = next((e for e in entries if e.method == name), None)
    methods[name] = {
      'algorithm': method.algorithm,
      'score': method.score,
      'summary': registry.get_algorithm(method.algorithm).summary,
      'settings': plain(method.settings),
      'hparams': own and fields.to_json(own.trial.settings.method),
    }
  return as_written(
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
      'conditions': plain(study.conditions),
      'methods': methods,
      'settings': _shared(study, entries),
      'parameters': plain(study.parameters),
      'overrides': plain(study.overrides),
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
  # Options of fine-tuning are irrelevant if nothing is fine-tuned.
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
  """The partition of each condition's data, with the first seed and fold.

  Args:
    known: The result of an earlier call, to be reused.
  """
  partitions = {}
  # The first entry of a condition replaces its later ones.
  entries = reversed(plan.entries(study))
  first = {str(entry.condition): entry for entry in entries}
  for name, entry in first.items():
    spec = fields.to_json(entry.trial)
    of = as_written(
      {
        'data': spec['settings']['data'],
        **{n: spec[n] for n in ('num_new_clients', 'fold')},
        'seed': entry.seed,
      }
    )
    if known.get(name, {}).get('of') == of:
      partitions[name] = known[name]
      continue
    trained, new = trial.load_data(entry.trial)
    new_ids = () if new is None else new.client_ids
    partitions[name] = {
      'of': of,
      'seed': entry.seed,
      'num_new_clients': len(new_ids),
      **plots.partition_counts(
        # Both are views of the same data.
        trained.replaced(client_ids=(*trained.client_ids, *new_ids))
      ),
    }
  return partitions


@functools.cache
def _commit() -> Optional[str]:
  """The commit of the source, with '-dirty' if changed, or None without git."""
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
