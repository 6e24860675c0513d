"""Runs trials in parallel, each in its own process or on a cluster.

A trial's folder holds `trial.json` (its settings), the files of its run,
`log.txt` (the output of its process) and, once it is finished, `scores.json`.
The trials end with this process, and the next call continues them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from typing import Any, NamedTuple, Optional

import tqdm

from tff_pfl import errors, fields
from tff_pfl.runs import client_population, run_store, value_codec
from tff_pfl.studies import cluster as cluster_lib
from tff_pfl.studies import trial
from tff_pfl.system import child_processes, cores, folders, shutdown

TRIALS_DIR = 'trials'
LOG_NAME = 'log.txt'

# Settings that may change when a trial continues: where it runs, not what.
_MUTABLE = (
  'settings.data.data_dir',
  'settings.rounds.keep_best',
  'settings.rounds.runtime',
)
_TRIAL_MODULE = trial.__name__
# Seconds between looks for a request to stop, and updates of the bar's clock.
_SECONDS_TO_WAIT = 0.5
# From SIGTERM to SIGKILL.
_GRACE_SECONDS = 10.0
_MAX_REASON = 500


class Parallelism(NamedTuple):
  """A division of the machine among trials.

  Attributes:
    num_processes: Number of trials that run at the same time.
    num_clients: Number of clients that each trial computes at the same time.
    num_threads: Number of threads of each operation of a client.
  """

  num_processes: int
  num_clients: int
  num_threads: int


def divide_cores(
  num_trials: int,
  num_processes: Optional[int] = None,
  max_concurrent_clients: Optional[int] = None,
) -> Parallelism:
  """Divides the usable cores among trials, and a trial's among its clients.

  Args:
    num_processes: Number of trials at the same time. None runs one on each
      core, and 0 runs one in this process.
    max_concurrent_clients: Number of a trial's clients at the same time, at
      least 1. None runs one on each of its cores.
  """
  if num_processes == 0:
    num_processes = 1
  available = cores.num_usable_cores()
  num_processes = min(num_processes or available, max(1, num_trials))
  share = max(1, available // num_processes)
  num_clients = max_concurrent_clients or share
  return Parallelism(num_processes, num_clients, max(1, share // num_clients))


def trial_folder(directory: str, name: str) -> str:
  """The folder of a trial in its study's folder."""
  return os.path.join(directory, TRIALS_DIR, name)


def is_finished(directory: str, one: trial.Trial) -> bool:
  """True if a trial has all of its scores."""
  folder = trial_folder(directory, one.name)
  if not os.path.exists(os.path.join(folder, trial.SCORES_NAME)):
    return False
  stored = trial.read_spec(folder)['trial']['variants']
  return fields.to_json(one)['variants'].items() <= stored.items()


def is_started(directory: str, name: str) -> bool:
  """True if a trial has ever begun."""
  path = os.path.join(trial_folder(directory, name), trial.SPEC_NAME)
  return os.path.exists(path)


def logged_error(directory: str, name: str) -> Optional[str]:
  """The error that a trial's last process reported, or None.

  Raises:
    RunError: If its log cannot be read.
  """
  for line in reversed(_log_lines(directory, name)):
    if line.startswith(trial.ERROR_START):
      return line[len(trial.ERROR_START) :]
  return None


def _log_lines(directory, name):
  """The output of a trial's last process, without empty lines."""
  path = os.path.join(trial_folder(directory, name), LOG_NAME)
  try:
    with open(path, encoding='utf-8', errors='replace') as log:
      return [line.strip() for line in log if line.strip()]
  except FileNotFoundError:
    # The trial never ran.
    return []
  except OSError as error:
    raise errors.RunError(f'Cannot read {path}: {error.strerror}.') from error


def _expect_same_trials(directory, trials):
  """Raises `RunError` if a folder holds a trial with other settings."""
  for one in trials:
    folder = trial_folder(directory, one.name)
    if not is_started(directory, one.name):
      continue
    stored, current = (
      value_codec.flatten(settings, '.')
      for settings in (trial.read_spec(folder)['trial'], fields.to_json(one))
    )
    for name in dict.fromkeys([*stored, *current]):
      is_mutable = name in _MUTABLE or name.startswith(('variants', 'modules'))
      if not is_mutable and stored.get(name) != current.get(name):
        raise errors.RunError(
          f'{folder} holds a trial with {name}={stored.get(name)!r}, not '
          f'{current.get(name)!r}: give the settings of that study, or '
          'choose another output folder.'
        )


def _expect_same_data(directory, trials):
  """Raises `RunError` if finished trials had other data.

  One trial of each data source is enough.
  """
  known = set()
  for one in trials:
    source = one.settings.data.name, repr(dict(one.settings.data.arguments))
    folder = trial_folder(directory, one.name)
    if (
      source in known
      or not is_finished(directory, one)
      or not run_store.has_run(folder)
    ):
      continue
    known.add(source)
    with run_store.RunStore.open_for_reading(folder) as store:
      client_population.check_unchanged(trial.load_data(one)[0], store)


def run_trials(
  trials: Sequence[trial.Trial],
  directory: str,
  *,
  num_processes: Optional[int] = None,
  cluster: Optional[cluster_lib.Cluster] = None,
  runtime_options: Optional[Mapping[str, Any]] = None,
  show_progress: bool = True,
  description: str = 'trials',
) -> dict:
  """Runs the trials that are not finished.

  Ctrl-C, SIGTERM (see `shutdown`) and any error also end the running trials.

  Args:
    trials: The trials, with distinct names, which start in this order.
    num_processes: Number of trials at the same time, see `divide_cores`. 0 runs
      them one after another in this process, which keeps the memory of compiled
      programs and ends with any unexpected error.
    cluster: Cluster to run them on, instead of this machine. Its nodes share
      `directory`.
    runtime_options: Options of the trials' runtimes, as JSON types.

  Returns:
    From the name of each failed trial to its reason, in one line.

  Raises:
    RunError: If a folder holds another trial, or a trial on other data, or
      cannot be written to, or if `directory` is deleted or moved meanwhile.
  """
  by_name = {one.name: one for one in trials}
  _expect_same_trials(directory, trials)
  waiting = [t for t in trials if not is_finished(directory, t)]
  if waiting:
    _expect_same_data(directory, trials)
  options = dict(runtime_options or {})
  most_clients = options.get('max_concurrent_clients')
  if cluster is not None:
    directory = os.path.abspath(directory)
    shares = Parallelism(len(trials), most_clients or cluster.cpus_per_run, 1)
  else:
    shares = divide_cores(len(waiting), num_processes, most_clients)
  if all(t.settings.rounds.runtime != 'ray' for t in trials):
    options['max_concurrent_clients'] = shares.num_clients
  if cluster is not None:
    start = cluster_lib.connect(cluster)
  elif num_processes == 0:
    start = _run_here
  else:
    start = child_processes.start
  running, failures = {}, {}
  rounds = {}
  if show_progress:
    rounds = {name: _num_rounds(directory, name) for name in by_name}
  num_rounds = sum(one.settings.rounds.num_rounds for one in trials)
  bar = _progress_bar(
    num_rounds, sum(rounds.values()), description, show_progress
  )
  identity = folders.identity(directory)
  with bar, _ending(running):
    while waiting or running:
      shutdown.raise_if_stopped()
      while waiting and len(running) < shares.num_processes:
        if identity not in (None, folders.identity(directory)):
          raise errors.RunError(
            f'{directory} was deleted or moved while its trials ran: restore '
            'it and run the study again.'
          )
        one = waiting.pop(0)
        folder = trial_folder(directory, one.name)
        with _starting(folder):
          log_path = _make_folder(folder, one, options)
          running[one.name] = start(
            _TRIAL_MODULE, folder, log_path, _environment(shares)
          )
      if start is not _run_here:
        connection.wait(
          [process.sentinel for process in running.values()],
          _SECONDS_TO_WAIT,
        )
      for name, process in list(running.items()):
        status = process.exitcode if process else 0
        # SQLite's log can only be read on the machine that writes it.
        if show_progress and (status is not None or cluster is None):
          rounds[name] = _num_rounds(directory, name)
        if status is None:
          continue
        del running[name]
        failure = _failure(directory, by_name[name], status)
        if failure is not None:
          failures[name] = failure
          if show_progress:
            bar.write(f'{name} failed: {failure}', file=sys.stderr)
      num_ended = len(trials) - len(waiting) - len(running)
      counts = {'trials': f'{num_ended}/{len(trials)}'}
      if failures:
        counts['failed'] = len(failures)
      bar.set_postfix(counts, refresh=False)
      bar.update(sum(rounds.values()) - bar.n)
  return failures


def _num_rounds(directory, name):
  """The number of rounds that a trial has run."""
  return run_store.num_rounds(trial_folder(directory, name))


def _progress_bar(num_rounds, num_done, description, is_shown):
  """A bar that counts the rounds of all trials."""
  return tqdm.tqdm(
    total=num_rounds,
    initial=num_done,
    desc=description,
    unit='round',
    disable=not is_shown,
    # A log file gets few lines, and a terminal a bar whose clock runs even
    # while no round ends. The estimate uses the mean over all rounds.
    mininterval=1 if sys.stderr.isatty() else 60,
    miniters=0,
    smoothing=0,
    dynamic_ncols=True,
  )


@contextlib.contextmanager
def _starting(folder):
  """Names the trial in errors of the system when it starts."""
  try:
    yield
  except OSError as error:
    raise errors.RunError(
      f'Cannot start a trial in {folder}: {errors.os_reason(error)}.'
    ) from error


def _make_folder(folder, one, runtime_options):
  """Makes a trial's folder, and returns the path of its empty log."""
  os.makedirs(folder, exist_ok=True)
  with contextlib.suppress(FileNotFoundError):
    # A finished trial that gets further variants is no longer finished.
    os.remove(os.path.join(folder, trial.SCORES_NAME))
  spec = {'trial': fields.to_json(one), 'runtime_options': runtime_options}
  with folders.atomic_file(os.path.join(folder, trial.SPEC_NAME)) as file:
    # Allows infinities, which hyperparameters may be.
    json.dump(spec, file, indent=2)
  log_path = os.path.join(folder, LOG_NAME)
  with open(log_path, 'w', encoding='utf-8'):
    return log_path


def _run_here(module, folder, log_path, environment):
  """Runs a trial in this process, so there is no process to wait for."""
  del module, environment
  try:
    trial.run_folder(folder)
  except errors.EXPECTED as error:
    with open(log_path, 'w', encoding='utf-8') as log:
      log.write(f'{trial.ERROR_START}{errors.reason(error)}\n')


def _environment(shares):
  """Environment variables that a trial's process has in addition."""
  num_threads = os.environ.get(
    'TF_NUM_INTRAOP_THREADS', str(shares.num_threads)
  )
  return {'TF_NUM_INTRAOP_THREADS': num_threads}


def _failure(directory, one, status):
  """The reason why an ended trial failed, or None if it succeeded."""
  if status == 0 and is_finished(directory, one):
    return None
  name = one.name
  reported = logged_error(directory, name)
  if reported is not None:
    return reported
  ended = child_processes.describe_return_code(status)
  path = os.path.join(trial_folder(directory, name), LOG_NAME)
  last = (_log_lines(directory, name) or [''])[-1]
  return f'The process {ended}; {path} ends: {last[:_MAX_REASON]}'


@contextlib.contextmanager
def _ending(running):
  """Ends the running trials when the block is left."""
  try:
    yield
  finally:
    child_processes.end(list(filter(None, running.values())), _GRACE_SECONDS)
