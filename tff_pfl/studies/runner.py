"""Runs a study: its sweep, trials, measure, claims and page.

The folder of a study has `trials/` (see `execution`), `study.json` (the
description of the study and its claims), `numbers.csv`, `per_client.csv`,
`figure.png`, and `study.html`, a page that shows everything. Data with domains
add `per_domain.csv`, and a measure adds `numbers.json`. One process at a time
runs a study, and locks its folder.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from tff_pfl import errors, plots
from tff_pfl.runs import directory_lock
from tff_pfl.runs import summary as summary_lib
from tff_pfl.studies import claims as claims_lib
from tff_pfl.studies import (
  execution,
  measures,
  page,
  plan,
  results,
  trials,
  tuning,
)
from tff_pfl.system import folders

if TYPE_CHECKING:
  from tff_pfl.studies import study as study_lib

NUMBERS_CSV_NAME = 'numbers.csv'
CLIENTS_CSV_NAME = 'per_client.csv'
DOMAINS_CSV_NAME = 'per_domain.csv'


def run_study(
  study: study_lib.Study,
  directory: str,
  place: trials.Place,
  *,
  rerun: bool = False,
) -> results.Results:
  """Runs the unfinished parts of a study, and writes its results.

  Args:
    study: The study, at one of its scales.
    directory: Folder of the study.
    place: The place where its trials run.
    rerun: True to delete the folder's results and start again.

  Raises:
    RunError: In the same cases as `Study.run`.
  """
  directory = folders.results_folder(directory, folders.STUDY)
  with directory_lock.DirectoryLock(directory):
    if rerun:
      _clear(directory)
    before = trials.read(directory)
    started, seconds = time.perf_counter(), before.get('seconds', 0)
    if study.measure is None:
      outcome = trials.run_trials(study, directory, place)
    else:
      outcome = _measure(study, directory, place)
    if seconds is not None:
      seconds = round(seconds + time.perf_counter() - started, 1)
    numbers = results.numbers_of(outcome)
    outcome.description.update(claims=[], seconds=seconds)
    if not outcome.numbers.empty:
      if study.measure is None and not outcome.failures:
        errors.expect_one_of('metric', study.metric, list(outcome.numbers))
      claims = claims_lib.check(study.claims, numbers, study)
      outcome.description['claims'] = [claim._asdict() for claim in claims]
    _write(outcome, study, numbers)
  return outcome


def _path(directory, name):
  return os.path.join(directory, name)


def _measure(study, directory, place):
  """The results of a study with its own measure."""
  names = ('settings', 'conditions', 'seeds', 'parameters', 'overrides')
  of = trials.as_written({n: trials.plain(getattr(study, n)) for n in names})
  for where in ('data_dir', 'runtime'):
    of['overrides'].pop(where, None)
  path = _path(directory, results.NUMBERS_NAME)
  entries = plan.entries(study) if study.methods else []
  description = trials.describe(study, entries)
  description.update(partitions={}, tunings=[], failures=[], seconds=None)
  # A measure of runs is fast compared with the runs, which are kept.
  if os.path.exists(path) and not study.methods:
    stored = summary_lib.read_json(path)['of']
    differing = [name for name in of if of[name] != stored.get(name)]
    if differing:
      raise errors.RunError(
        f'{directory} holds numbers of other {" and ".join(differing)}: choose '
        'another output folder, or delete and measure them again (`rerun`).'
      )
    return results.Results(directory, description)
  context = measures.Context(study, directory, place)
  if not study.methods:
    # The seconds stay unknown if this process is killed. With methods, the
    # trials write the description, unless the folder holds other trials.
    summary_lib.write_json(_path(directory, results.STUDY_NAME), description)
  rows = list(study.measure(context))
  columns = pd.DataFrame(rows).to_dict('list')
  summary_lib.write_json(path, {'of': of, 'columns': columns})
  if context.results is not None:
    return results.Results(directory, context.results.description)
  return results.Results(directory, description)


def _write(outcome, study, numbers):
  """Writes the files of results, the page and the picture."""
  directory = outcome.directory
  summary_lib.write_json(
    _path(directory, results.STUDY_NAME), outcome.description
  )
  for name, frame in (
    (NUMBERS_CSV_NAME, outcome.numbers),
    (CLIENTS_CSV_NAME, outcome.client_scores),
    (DOMAINS_CSV_NAME, outcome.domain_scores),
  ):
    if not frame.empty:
      summary_lib.write_csv(
        _path(directory, name), summary_lib.frame(frame.to_dict('records'))
      )
  figure = Figure(layout='constrained')
  if outcome.numbers.empty:
    pass
  elif study.draw is not None:
    study.draw(numbers, study, figure)
    plots.save(figure, _path(directory, page.FIGURE_NAME))
  elif {'condition', 'method', study.metric} <= {*outcome.numbers}:
    ax = outcome.plot(plots.new_axes(9, 4.4))
    plots.save(ax, _path(directory, page.FIGURE_NAME))
  outcome.page()


def _clear(directory):
  """Deletes a study's results, its description last."""
  shutil.rmtree(_path(directory, execution.TRIALS_DIR), ignore_errors=True)
  for name in (
    results.NUMBERS_NAME,
    NUMBERS_CSV_NAME,
    CLIENTS_CSV_NAME,
    DOMAINS_CSV_NAME,
    page.FIGURE_NAME,
    tuning.FILE_NAME,
    page.PAGE_NAME,
    results.STUDY_NAME,
  ):
    path = _path(directory, name)
    if os.path.exists(path):
      os.remove(path)
