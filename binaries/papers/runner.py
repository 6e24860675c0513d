"""Runs experiments and stores what they found.

The folder of an experiment holds

* `figure.png`, the figure;
* `numbers.csv`, the numbers in it, and `numbers.json`, these with the setup;
* `summary.json`, written last: the claims and how the experiment was run;
* `settings.json`, written first: what the folder is for;
* `runs/`, the training runs of an experiment with networks.

A folder is for one experiment with one size, data set and seed. There an
experiment that has a summary is not run again, passed or not, for it would find
the same (after a change of the code, run it anew). One that was interrupted
goes on with its training runs; a linear one, of a minute, starts again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm
from matplotlib.figure import Figure

from tff_pfl import errors
from tff_pfl.experiments import paper as experiment_lib
from tff_pfl.simulation import picture_style
from tff_pfl.simulation import summary as summary_lib
from tff_pfl.system import machine

SUMMARY_NAME = 'summary.json'
SETTINGS_NAME = 'settings.json'
FIGURE_NAME = 'figure.png'
CSV_NAME = 'numbers.csv'
JSON_NAME = 'numbers.json'

# The settings that change what an experiment finds.
_IDENTITY = ('fast', 'dataset', 'seed')
# Columns of the claims' table.
_CLAIM_WIDTH = 44
_PAPER_WIDTH = 16


def run(
  experiment: experiment_lib.Experiment,
  settings: experiment_lib.Settings,
  *,
  rerun: bool = False,
) -> dict:
  """Runs an experiment, or reads what it found before.

  Args:
    settings: How to run it. Their directory is where the experiment gets a
      folder of its own name.
    rerun: Whether to delete what is in that folder and start anew, with
      whatever settings.

  Returns:
    What is in `summary.json`: `experiment`, `summary`, `paper`, `passed`,
    `claims` (each with `claim`, `paper`, `measured`, `threshold` and `passed`),
    `claims_should_hold` (False for a fast size that is too small for them),
    `setup`, `fast`, `dataset`, `seed`, `runtime`, `seconds` (of an interrupted
    experiment, since it was taken up again) and `versions`.

  Raises:
    ValueError: If the settings are not for this experiment.
    RunError: If the folder holds something else, or training fails.
  """
  _expect_suitable(experiment, settings)
  settings = settings._replace(
    directory=os.path.join(settings.directory, experiment.name)
  )
  if rerun:
    _clear(settings)
  else:
    _expect_folder_for(experiment, settings)
  stored = _read(settings.directory, SUMMARY_NAME)
  if stored is not None:
    print(
      f'{experiment.name} has been run: its results in {settings.directory} '
      'are taken.',
      file=sys.stderr,
    )
    return stored
  os.makedirs(settings.directory, exist_ok=True)
  _write(settings.directory, SETTINGS_NAME, _identity(experiment, settings))
  start = time.perf_counter()
  try:
    result = experiment.run(settings)
  except errors.EXPECTED:
    if not os.path.exists(settings.run_dir('')):
      # Nothing was done for these settings: they may have been the mistake.
      _remove(os.path.join(settings.directory, SETTINGS_NAME))
    raise
  seconds = time.perf_counter() - start
  return _store(experiment, settings, result, seconds)


def run_all(
  experiments: Sequence[experiment_lib.Experiment],
  settings: experiment_lib.Settings,
  *,
  rerun: bool = False,
) -> Sequence[Mapping[str, Any]]:
  """Runs experiments one after another, also after one that fails.

  `summary.json` in the settings' directory has the claims of all of them.

  Args:
    settings: As for `run`; the data set is for those with images.

  Returns:
    The summary of each as from `run`; of one that raised an expected error
    `error` tells what, with no claims.

  Raises:
    RunError: If an experiment's folder holds something else; none has run then.
  """
  own_settings = [
    settings._replace(
      dataset=settings.dataset if experiment.takes(settings.dataset) else None,
      data_dir=settings.data_dir if experiment.uses_images else None,
    )
    for experiment in experiments
  ]
  if not rerun:
    for experiment, its_settings in zip(experiments, own_settings):
      directory = os.path.join(settings.directory, experiment.name)
      _expect_folder_for(experiment, its_settings._replace(directory=directory))
  summaries = []
  bar = tqdm.tqdm(
    list(zip(experiments, own_settings)),
    desc='experiments',
    unit='experiment',
    disable=not settings.show_progress,
    dynamic_ncols=True,
  )
  for experiment, its_settings in bar:
    bar.set_postfix_str(experiment.name)
    summary = _run_or_report(experiment, its_settings, rerun)
    summaries.append(summary)
    tqdm.tqdm.write(_outcome(summary), file=sys.stderr)
  os.makedirs(settings.directory, exist_ok=True)
  _write(
    settings.directory,
    SUMMARY_NAME,
    {
      # But for claims that need the full size.
      'passed': all(
        summary['passed'] or not summary.get('claims_should_hold', True)
        for summary in summaries
      ),
      'claims': [
        {'experiment': summary['experiment'], **claim}
        for summary in summaries
        for claim in summary['claims']
      ],
      'errors': {
        summary['experiment']: summary['error']
        for summary in summaries
        if 'error' in summary
      },
      'seconds': {
        summary['experiment']: summary.get('seconds') for summary in summaries
      },
      'fast': settings.fast,
      'seed': settings.seed,
    },
  )
  return summaries


def claims_table(summaries: Sequence[Mapping[str, Any]]) -> str:
  """Returns the claims of experiments as a table for the screen."""
  rows = []
  for summary in summaries:
    name = summary['experiment']
    for claim in summary['claims']:
      measured = claim['measured']
      rows.append(
        [
          name,
          textwrap.fill(claim['claim'], _CLAIM_WIDTH),
          textwrap.fill(claim['paper'], _PAPER_WIDTH),
          math.nan if measured is None else measured,
          claim['threshold'],
          _verdict(summary, claim),
        ]
      )
      # Once is enough.
      name = ''
  return summary_lib.format_table(
    rows, ['experiment', 'claim', 'paper', 'measured', 'threshold', 'passed']
  )


def _verdict(summary, claim):
  if claim['passed']:
    return 'yes'
  return 'NO' if summary['claims_should_hold'] else 'no, but the size is small'


def expect_passed(summaries: Sequence[Mapping[str, Any]]) -> None:
  """Raises `RunError`, which names them, if claims failed that should hold."""
  failures = []
  for summary in summaries:
    failed = [claim for claim in summary['claims'] if not claim['passed']]
    if 'error' in summary:
      failures.append(
        f'{summary["experiment"]} did not run: {summary["error"]}'
      )
    elif failed and summary['claims_should_hold']:
      claims = '; '.join(
        f'"{claim["claim"]}" (measured {_format(claim["measured"])}, expected '
        f'{claim["threshold"]})'
        for claim in failed
      )
      failures.append(
        f'{len(failed)} of {len(summary["claims"])} claims of '
        f'{summary["experiment"]} failed: {claims}'
      )
  if failures:
    raise errors.RunError('. '.join(failures))


def _expect_suitable(experiment, settings):
  for name in ('dataset', 'data_dir'):
    value = getattr(settings, name)
    errors.expect(
      experiment.uses_images or value is None,
      name,
      f'unset for {experiment.name}, which generates its data',
      value,
    )
  errors.expect(
    experiment.takes(settings.dataset),
    'dataset',
    f'one that {experiment.name} takes'
    + (f': {", ".join(experiment.datasets)}' if experiment.datasets else ''),
    settings.dataset,
  )


def _identity(experiment, settings):
  """What decides the numbers that an experiment finds."""
  return {
    'experiment': experiment.name,
    **{name: getattr(settings, name) for name in _IDENTITY},
  }


def _stored_settings(directory):
  """What a folder is for; None if it is empty or does not exist.

  Raises:
    RunError: If it is no experiment's folder.
  """
  stored = _read(directory, SETTINGS_NAME)
  if stored is None and os.path.isdir(directory) and os.listdir(directory):
    raise errors.RunError(
      f'{directory} is not empty and holds no experiment: choose another '
      'output folder.'
    )
  return stored


def _expect_folder_for(experiment, settings):
  """Raises `RunError` if the folder is for something else."""
  directory = settings.directory
  stored = _stored_settings(directory)
  if stored is None:
    return
  wanted = _identity(experiment, settings)
  differing = [key for key in wanted if stored.get(key) != wanted[key]]
  if differing:
    there, here = (
      ', '.join(f'{key}={values.get(key)}' for key in differing)
      for values in (stored, wanted)
    )
    raise errors.RunError(
      f'{directory} holds {experiment.name} with {there}, not {here}: choose '
      'another output folder, or have it deleted and run anew (--rerun).'
    )


def _clear(settings):
  """Deletes the results in an experiment's folder, the summary first."""
  directory = settings.directory
  if _stored_settings(directory) is not None:
    for name in (SUMMARY_NAME, FIGURE_NAME, CSV_NAME, JSON_NAME):
      _remove(os.path.join(directory, name))
    with contextlib.suppress(FileNotFoundError):
      shutil.rmtree(settings.run_dir(''))


def _remove(path):
  with contextlib.suppress(FileNotFoundError):
    os.remove(path)


def _store(experiment, settings, result, seconds):
  """Writes the results and returns the summary."""
  directory = settings.directory
  figure = Figure(layout='constrained')
  result.draw(figure)
  picture_style.save(figure, os.path.join(directory, FIGURE_NAME))
  summary_lib.write_csv(os.path.join(directory, CSV_NAME), result.rows)
  _write(directory, JSON_NAME, {'setup': result.setup, 'rows': result.rows})
  _write(
    directory,
    SUMMARY_NAME,
    {
      'experiment': experiment.name,
      'summary': experiment.summary,
      'paper': experiment.paper,
      'passed': all(claim.passed for claim in result.claims),
      'claims': [claim._asdict() for claim in result.claims],
      'claims_should_hold': experiment.claims_hold_fast or not settings.fast,
      'setup': result.setup,
      **{name: getattr(settings, name) for name in _IDENTITY},
      'dataset': settings.dataset or result.setup.get('dataset'),
      'runtime': settings.runtime if experiment.uses_images else None,
      'seconds': round(seconds, 1),
      'versions': machine.versions(),
    },
  )
  # As it will be read the next time.
  return _read(directory, SUMMARY_NAME)


def _run_or_report(experiment, settings, rerun):
  """The summary of an experiment, or what kept it from having one."""
  try:
    return run(experiment, settings, rerun=rerun)
  except errors.EXPECTED as error:
    return {
      'experiment': experiment.name,
      'passed': False,
      'claims': [],
      'error': errors.reason(error),
    }


def _outcome(summary):
  """One line on how an experiment ended."""
  if 'error' in summary:
    return f'{summary["experiment"]}: did not run: {summary["error"]}'
  num_passed = sum(claim['passed'] for claim in summary['claims'])
  return (
    f'{summary["experiment"]}: {num_passed} of {len(summary["claims"])} claims '
    f'passed, {summary["seconds"]:.0f} s'
  )


def _format(measured):
  return 'nothing' if measured is None else f'{measured:.4g}'


def _write(directory, name, value):
  summary_lib.write_json(os.path.join(directory, name), value)


def _read(directory, name):
  """The value in a file, or None if there is no such file."""
  path = os.path.join(directory, name)
  try:
    with open(path, encoding='utf-8') as file:
      return json.load(file)
  except FileNotFoundError:
    return None
  except ValueError as error:
    raise errors.RunError(f'{path} cannot be read: {error}.') from error
