"""Runs a study: its sweep, its trials, its measure, its claims and page.

The folder of a study has `trials/` (see `execution`), `study.json`, which
describes the study and has its claims, `numbers.csv`, `per_client.csv`, for
data with domains `per_domain.csv`, `figure.png` and `study.html`, a page that
shows all; `numbers.json` has what a measure found. One process at a time runs
the study of a folder, which it locks.
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


def run(
  study: study_lib.Study,
  directory: str,
  place: trials.Place,
  *,
  rerun: bool = False,
) -> results.Results:
  """Runs a study, as far as not yet done, and writes its results.

  Args:
    study: The study, at one of its scales.
    directory: Folder of the study.
    place: Where its trials run.
    rerun: True to delete what the folder has and start anew.

  Raises:
    RunError: As `Study.run` does.
  """
  directory = folders.results_folder(directory, folders.STUDY)
  with directory_lock.DirectoryLock(directory):
    if rerun:
      _clear(directory)
    before = trials.read(directory)
    started, seconds = time.perf_counter(), before.get('seconds', 0)
    if study.measure is None:
      found = trials.run(study, directory, place)
    else:
      found = _measure(study, directory, place)
    if seconds is not None:
      seconds = round(seconds + time.perf_counter() - started, 1)
    numbers = results.numbers_of(found)
    found.description.update(claims=[], seconds=seconds)
    if not found.numbers.empty:
      claims = claims_lib.check(study.claims, numbers, study)
      found.description['claims'] = [claim._asdict() for claim in claims]
    _write(found, study, numbers)
  return found


def _path(directory, name):
  return os.path.join(directory, name)


def _measure(study, directory, place):
  """The results of a study with a measure of its own."""
  names = ('settings', 'conditions', 'seeds', 'parameters', 'overrides')
  of = trials.as_written({n: trials.plain(getattr(study, n)) for n in names})
  for where in ('data_dir', 'runtime'):
    of['overrides'].pop(where, None)
  path = _path(directory, results.NUMBERS_NAME)
  entries = plan.entries(study) if study.methods else []
  description = trials.describe(study, entries)
  description.update(partitions={}, tunings=[], failures=[], seconds=None)
  # A measure of runs is quick beside these, which are not trained again.
  if os.path.exists(path) and not study.methods:
    stored = summary_lib.read_json(path)['of']
    differing = [name for name in of if of[name] != stored.get(name)]
    if differing:
      raise errors.RunError(
        f'{directory} holds numbers of other {" and ".join(differing)}: choose '
        'another output folder, or have it deleted and measured anew (`rerun`).'
      )
    return results.Results(directory, description)
  context = measures.Context(study, directory, place)
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
  if found.numbers.empty:
    pass
  elif study.draw is not None:
    study.draw(numbers, study, figure)
    plots.save(figure, _path(directory, page.FIGURE_NAME))
  elif {'condition', 'method', study.metric} <= {*found.numbers}:
    ax = found.plot(plots.new_axes(9, 4.4))
    plots.save(ax, _path(directory, page.FIGURE_NAME))
  found.page()


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
