"""An experiment of a paper: its numbers, its figure and its claims.

The folder of an experiment holds

* `settings.json`, written first: the experiment and its settings, and the
  seconds spent on it before an interruption (null while it runs);
* `trials/`, its training runs (see `execution`);
* `numbers.json`, the numbers and the setup, and `numbers.csv`;
* `figure.png` and `summary.json`, which are made of the numbers: the claims and
  the settings.

A folder is for one experiment with one size, data set and seeds. There an
experiment that has its numbers is not measured again; its figure and claims are
made anew. One that was interrupted goes on with its training runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import pandas as pd
import tqdm
from matplotlib.figure import Figure

from tff_pfl import errors, plots
from tff_pfl.comparisons import execution, page
from tff_pfl.runs import directory_lock
from tff_pfl.runs import summary as summary_lib
from tff_pfl.system import folders, machine

from . import claims as claims_lib
from . import panels, tables
from . import trials as trials_lib

SETTINGS_NAME = 'settings.json'
NUMBERS_NAME = 'numbers.json'
CSV_NAME = 'numbers.csv'
FIGURE_NAME = 'figure.png'
SUMMARY_NAME = 'summary.json'
PAGE_NAME = 'claims.html'
# What `Experiment.measure` gives, and `Experiment.claims` takes and gives.
Rows = Iterator[Mapping[str, Any]]
Table = tables.Table
Claims = Iterator[claims_lib.Claim]
# The settings that change what an experiment finds.
_IDENTITY = ('fast', 'dataset', 'seed', 'num_seeds', 'sizes')


@dataclasses.dataclass(frozen=True)
class Experiment:
  """An experiment of a paper.

  Attributes:
    name: Value of `--experiment`.
    summary: One line on its question.
    paper: Paper, figures and tables that it repeats.
    measure: Function that yields the rows of a `Table` of numbers; pure but for
      the trials that it runs.
    claims: Function from the numbers and the sizes to the paper's claims.
    draw: Function that draws the figure, such as `panels.curves(...)`, from the
      numbers and the sizes, on an empty figure, whose size it may set.
    full: Sizes by data set, each a dataclass with `num_seeds`; the first is the
      experiment's own. The key is None for generated data.
    fast: Sizes of minutes, and their data set.
    first_seed: First seed; sizes were chosen with the seeds before it.
  """

  name: str
  summary: str
  paper: str
  measure: Callable[[trials_lib.Context], Rows]
  claims: Callable[[tables.Table, Any], Claims]
  draw: panels.Draw
  full: Mapping[Optional[str], Any]
  fast: Any
  first_seed: int = 0

  @property
  def uses_datasets(self) -> bool:
    """True if it is on data sets, and not on generated data."""
    return None not in self.full

  def takes(self, dataset: Optional[str]) -> bool:
    """True if `trials.Settings.dataset` may have this value."""
    return dataset is None or dataset in self.full

  def sizes(self, settings: trials_lib.Settings) -> Any:
    """The sizes that the settings ask for.

    Raises:
      ValueError: If the data set is none of those, there is no such size, or a
        value is of another kind.
    """
    errors.expect(
      self.takes(settings.dataset),
      'dataset',
      f'one that {self.name} takes: {", ".join(map(str, self.full))}',
      settings.dataset,
    )
    sizes = self.fast
    if not settings.fast or settings.dataset is not None:
      sizes = self.full[settings.dataset or next(iter(self.full))]
    if settings.fast and settings.dataset is not None:
      # Its data with the fast number of rounds and seeds.
      few = {
        name: getattr(self.fast, name)
        for name in ('num_rounds', 'num_warmup_rounds', 'num_seeds')
        if hasattr(self.fast, name)
      }
      sizes = dataclasses.replace(sizes, **few)
    if settings.num_seeds is not None:
      sizes = dataclasses.replace(sizes, num_seeds=settings.num_seeds)
    others = settings.sizes or {}
    if 'model' in others and hasattr(sizes, 'model'):
      # Those of the experiment's own model need not fit.
      others = {'model_arguments': {}, **others}
    for name, value in others.items():
      errors.expect_one_of('sizes', name, vars(sizes))
      old = getattr(sizes, name)
      errors.expect(
        _kind(old) in (_kind(value), type(None)),
        name,
        f'of the same kind as {old!r}',
        value,
      )
    return dataclasses.replace(sizes, **others)


def _kind(value):
  """A type of which all numbers, and all sequences, have the same."""
  kinds = {int: float, list: tuple}
  return kinds.get(type(value), type(value))


def run(
  experiment: Experiment, settings: trials_lib.Settings, *, rerun: bool = False
) -> dict[str, Any]:
  """Runs an experiment, or makes claims and figure of its stored numbers.

  Args:
    settings: Its settings; the folder is that of its name in `directory`.
    rerun: True to delete the content of its folder and start anew, with
      whatever settings.

  Returns:
    The content of `summary.json`: `experiment`, `summary`, `paper`, `claims`
    (the fields of `claims.Claim`), `result` ('3 of 5 claims hold, …'), `setup`,
    `fast`, `dataset`, `seed`, `num_seeds`, `sizes`, `runtime`, `seconds` (that
    the measurement took, also before an interruption; None after a SIGKILL),
    `versions` and `commit`, of the source.

  Raises:
    ValueError: If the experiment does not take the data set or sizes.
    RunError: If the folder holds something else or is in use by another
      process, or training fails.
  """
  sizes = experiment.sizes(settings)
  directory = folders.results_folder(
    os.path.join(settings.directory, experiment.name), folders.EXPERIMENT
  )
  settings = _with_seed(experiment, settings)._replace(directory=directory)
  _expect_folder_for(experiment, settings, directory, rerun=rerun)
  with directory_lock.DirectoryLock(directory):
    if rerun:
      _clear(directory)
    if not os.path.exists(os.path.join(directory, NUMBERS_NAME)):
      _measure(experiment, settings, sizes)
    return _conclude(experiment, settings, sizes)


def run_all(
  experiments: Sequence[Experiment],
  settings: trials_lib.Settings,
  *,
  rerun: bool = False,
) -> Sequence[Mapping[str, Any]]:
  """Runs experiments one after another; one that fails does not stop others.

  In the settings' directory `summary.json` has the claims of all of them, and
  `claims.html` shows these with the figures.

  Args:
    settings: Settings as for `run`; the data set is for experiments that take
      it.
    rerun: As for `run`.

  Returns:
    The summary of each, as from `run`; for one that raised an expected error a
    summary with no claims and the reason, `error`.

  Raises:
    RunError: If an experiment's folder holds something else; none has run then.
  """
  settings = settings._replace(
    directory=folders.results_folder(settings.directory, folders.EXPERIMENTS)
  )
  plans = []
  for experiment in experiments:
    own = _with_seed(experiment, settings)
    if not experiment.takes(settings.dataset):
      own = own._replace(dataset=None)
    if not experiment.uses_datasets:
      own = own._replace(data_dir=None)
    folder = os.path.join(settings.directory, experiment.name)
    _expect_folder_for(experiment, own, folder, rerun=rerun)
    plans.append((experiment, own))
  bar = tqdm.tqdm(
    plans,
    desc='experiments',
    unit='experiment',
    disable=not settings.show_progress,
    dynamic_ncols=True,
  )
  summaries = []
  with directory_lock.DirectoryLock(settings.directory):
    for experiment, own in bar:
      bar.set_postfix_str(experiment.name)
      try:
        summary = run(experiment, own, rerun=rerun)
        outcome = summary['result']
        if summary['seconds'] is not None:
          outcome += f', {summary["seconds"]:.0f} s'
      except errors.EXPECTED as error:
        reason = errors.reason(error)
        summary = {'experiment': experiment.name, 'claims': [], 'error': reason}
        outcome = f'did not run: {reason}'
      summaries.append(summary)
      tqdm.tqdm.write(f'{experiment.name}: {outcome}', file=sys.stderr)
    _write_all(summaries, settings)
  return summaries


def _write_all(summaries, settings):
  """Writes the claims of all experiments, and the page that shows them."""
  claims = all_claims(summaries)
  failed = [summary for summary in summaries if 'error' in summary]
  result = claims_lib.count(claim['verdict'] for claim in claims)
  _write(
    settings.directory,
    SUMMARY_NAME,
    {
      'result': result,
      'claims': claims,
      'errors': {s['experiment']: s['error'] for s in failed},
      'seconds': {s['experiment']: s.get('seconds') for s in summaries},
      'seeds': {s['experiment']: s.get('seed') for s in summaries},
      'fast': settings.fast,
    },
  )
  shown = pd.DataFrame(
    {
      'experiment': claim['experiment'],
      'claim': claim['statement'],
      'source': claim['source'],
      'measured': claim['measured'],
      'interval': None
      if claim['low'] is None
      else [claim['low'], claim['high']],
      'wanted': claim['threshold'],
      'seeds': claim['num_seeds'],
      'verdict': claim['verdict'],
    }
    for claim in claims
  )
  page.render(
    os.path.join(settings.directory, PAGE_NAME),
    title="The papers' experiments",
    claims=shown,
    claims_count=result,
    experiments=[summary for summary in summaries if 'error' not in summary],
    failures=pd.DataFrame(
      {'run': s['experiment'], 'reason': s['error']} for s in failed
    ),
  )


def all_claims(
  summaries: Iterable[Mapping[str, Any]],
) -> list[Mapping[str, Any]]:
  """The claims of several experiments, each with its `experiment`."""
  return [
    {'experiment': summary['experiment'], **claim}
    for summary in summaries
    for claim in summary['claims']
  ]


def _measure(experiment, settings, sizes):
  directory = settings.directory
  kept = {'seconds': 0, **(_read(directory, SETTINGS_NAME) or {})}
  kept.update(_identity(experiment, settings))
  # Unknown if this process is killed.
  _write(directory, SETTINGS_NAME, {**kept, 'seconds': None})
  commit, start = _commit(), time.perf_counter()
  try:
    rows = list(experiment.measure(trials_lib.Context(settings, sizes)))
  finally:
    if kept['seconds'] is not None:
      kept['seconds'] = round(kept['seconds'] + time.perf_counter() - start, 1)
    _write(directory, SETTINGS_NAME, kept)
  summary_lib.write_csv(
    os.path.join(directory, CSV_NAME), summary_lib.frame(rows)
  )
  _write(
    directory,
    NUMBERS_NAME,
    {
      'setup': dataclasses.asdict(sizes),
      'seconds': kept['seconds'],
      'runtime': settings.runtime,
      'versions': machine.versions(),
      'commit': commit,
      'columns': tables.Table(rows).frame.to_dict('list'),
    },
  )


def _commit():
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


def _conclude(experiment, settings, sizes):
  """Writes figure and summary of the stored numbers; returns the summary."""
  directory = settings.directory
  numbers = _read(directory, NUMBERS_NAME)
  setup = _as_written(dataclasses.asdict(sizes))
  if numbers.get('setup') != setup or 'columns' not in numbers:
    raise errors.RunError(
      f'{directory} has numbers of another version of {experiment.name}, of '
      'other sizes: have it deleted and run anew (`rerun`), or choose another '
      'output folder.'
    )
  table = tables.Table(numbers.pop('columns'))
  figure = Figure(layout='constrained')
  experiment.draw(table, sizes, figure)
  plots.save(figure, os.path.join(directory, FIGURE_NAME))
  claims = [claim._asdict() for claim in experiment.claims(table, sizes)]
  _write(
    directory,
    SUMMARY_NAME,
    {
      'experiment': experiment.name,
      'summary': experiment.summary,
      'paper': experiment.paper,
      'result': claims_lib.count(claim['verdict'] for claim in claims),
      'claims': claims,
      **_identity(experiment, settings),
      **numbers,
    },
  )
  # As it will be read by others.
  return _read(directory, SUMMARY_NAME)


def _with_seed(experiment, settings):
  """The settings with the experiment's first seed, unless they have one."""
  if settings.seed is None:
    settings = settings._replace(seed=experiment.first_seed)
  return settings


def _identity(experiment, settings):
  """The settings that decide an experiment's numbers."""
  own = {name: getattr(settings, name) for name in _IDENTITY}
  return _as_written({'experiment': experiment.name, **own})


def _expect_folder_for(experiment, settings, directory, *, rerun):
  """Raises `RunError` if the folder is for something else."""
  stored = _read(directory, SETTINGS_NAME)
  if stored is None:
    left = {execution.TRIALS_DIR, directory_lock.LOCK_NAME}
    if os.path.isdir(directory) and set(os.listdir(directory)) - left:
      raise errors.RunError(
        f'{directory} is not empty and holds no experiment: choose another '
        'output folder.'
      )
    return
  wanted = _identity(experiment, settings)
  differing = [key for key in wanted if stored.get(key) != wanted[key]]
  if differing and not rerun:
    there, here = (
      ', '.join(f'{key}={values.get(key)}' for key in differing)
      for values in (stored, wanted)
    )
    raise errors.RunError(
      f'{directory} holds {experiment.name} with {there}, not {here}: choose '
      'another output folder, or have it deleted and run anew (`rerun`).'
    )


def _clear(directory):
  """Deletes an experiment's results, the settings last."""
  shutil.rmtree(
    os.path.join(directory, execution.TRIALS_DIR), ignore_errors=True
  )
  for name in (
    NUMBERS_NAME,
    SUMMARY_NAME,
    FIGURE_NAME,
    CSV_NAME,
    SETTINGS_NAME,
  ):
    pathlib.Path(directory, name).unlink(missing_ok=True)


def _as_written(value):
  """A value as it is read back after it was written as JSON."""
  return json.loads(summary_lib.json_text(value))


def _write(directory, name, value):
  os.makedirs(directory, exist_ok=True)
  summary_lib.write_json(os.path.join(directory, name), value)


def _read(directory, name):
  """The value in a file, or None if there is no such file."""
  path = os.path.join(directory, name)
  return summary_lib.read_json(path) if os.path.exists(path) else None
