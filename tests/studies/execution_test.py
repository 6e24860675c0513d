import contextlib
import dataclasses
import math
import os
import re
import time
from multiprocessing import process
from unittest import mock

import psutil
import pytest

from tests.studies import stand_in
from tff_pfl import errors, fields
from tff_pfl.core import personalization
from tff_pfl.runs import run_store, settings, summary
from tff_pfl.studies import execution
from tff_pfl.studies import trial as trial_lib
from tff_pfl.system import cores, shutdown

# What trials do instead of training, with their folder as the argument.
FINISHES = """
import json, os, sys
found = json.load(open(f'{sys.argv[1]}/trial.json'))
found['name'] = found.pop('trial')['name']
found['threads'] = os.environ['TF_NUM_INTRAOP_THREADS']
with open(f'{sys.argv[1]}/scores.json', 'w') as file:
  json.dump(found, file)
"""
FAILS = """
import sys
if sys.argv[1].endswith('fed_avg-seed1'):
  print('error: no memory\\nsome words at the exit', file=sys.stderr)
  sys.exit(1)
"""
FAILS_ALWAYS = "import sys; sys.exit('error: no memory')"
_LEAVES_NO_SCORES = """
import sys
sys.argv[1].endswith('fed_avg-seed1') and sys.exit(0)
"""
_IS_KILLED = """
import os, signal, sys
if sys.argv[1].endswith('fed_avg-seed1'):
  print('about to grow', flush=True)
  os.kill(os.getpid(), signal.SIGKILL)
"""
_SLEEPS = """
import os, sys, time
with open(os.path.join(sys.argv[1], 'tmp'), 'w') as file:
  file.write(str(os.getpid()))
os.rename(file.name, os.path.join(sys.argv[1], 'pid'))
time.sleep(600)
"""
_IS_DEAF = 'import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)'
_MEETS = """
import os, sys, time
open(os.path.join(sys.argv[1], 'started'), 'w').close()
trials = os.path.dirname(sys.argv[1])
while sum('started' in os.listdir(e.path) for e in os.scandir(trials)) < 2:
  time.sleep(0.01)
"""


@pytest.fixture(name='run')
def _run(monkeypatch, tmp_path):
  """Runs trials that execute a script."""
  monkeypatch.setattr(execution, '_TRIAL_MODULE', stand_in.__name__)

  def run(trials, script=FINISHES, **options):
    (tmp_path / stand_in.SCRIPT_NAME).write_text(script)
    options = {'show_progress': False, **options}
    return execution.run_trials(trials, str(tmp_path), **options)

  return run


def make_trials(num_seeds=3, **changes):
  changes = {'method': 'fed_avg', 'num_rounds': 3, **changes}
  return [
    trial_lib.Trial(f'fed_avg-seed{i}', settings.Settings(**changes, seed=i))
    for i in range(num_seeds)
  ]


def read_scores(directory, name):
  folder = execution.trial_folder(directory, name)
  return summary.read_json(os.path.join(folder, trial_lib.SCORES_NAME))


def test_all_trials_run_and_the_cores_are_divided(run, tmp_path, monkeypatch):
  monkeypatch.setattr(cores, 'num_usable_cores', lambda: 8)
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  trials, options = make_trials(2), {'devices': 'cpu'}
  # Neither of them ends before the other has started.
  script = _MEETS + FINISHES
  assert run(trials, script, num_processes=2, runtime_options=options) == {}
  for trial in trials:
    assert execution.is_finished(tmp_path, trial)
    actual = read_scores(tmp_path, trial.name)
    assert (actual['name'], actual['threads']) == (trial.name, '1')
    assert actual['runtime_options'] == options | {'max_concurrent_clients': 4}
  # Finished ones are not run again.
  assert run(make_trials(), FAILS + FINISHES) == {}


def test_a_trial_is_what_its_folder_says(run, tmp_path):
  own = {'threshold': math.inf, 'model_arguments': {'widths': [4]}}
  expected = trial_lib.Trial(
    name='x',
    settings=settings.Settings(method='fed_fac', fine_tune='head', **own),
    variants={'with <FT>': personalization.Personalization(num_epochs=3)},
    num_new_clients=3,
    validation_fraction=0.5,
    fold=(1, 5),
    modules=('json', 'here/mine.py'),
  )
  run([expected])
  spec = trial_lib.read_spec(execution.trial_folder(tmp_path, 'x'))
  assert fields.from_json(trial_lib.Trial, spec['trial']) == expected


def test_further_variants_are_made_of_the_trials_that_have_ended(run, tmp_path):
  (before,) = make_trials(1)
  run([before])
  for scope in ('head', 'all'):
    options = personalization.Personalization(fine_tune=scope)
    after = dataclasses.replace(before, variants={'FT': options})
    assert execution.is_finished(tmp_path, before)
    assert not execution.is_finished(tmp_path, after)
    # Until it has all of its scores it has not ended.
    assert run([after], FAILS_ALWAYS) == {before.name: 'no memory'}
    assert not execution.is_finished(tmp_path, after)
    assert run([after]) == {}
    assert execution.is_finished(tmp_path, after)
  # What is left out later is not run again.
  assert run([before], FAILS_ALWAYS) == {}


@pytest.mark.parametrize(
  'arguments,expected',
  [
    ((100,), (8, 1, 1)),
    ((0,), (1, 8, 1)),
    ((100, 3), (3, 2, 1)),
    ((100, 20), (20, 1, 1)),
    ((100, 2, 1), (2, 1, 4)),
  ],
)
def test_shares_of_eight_cores(arguments, expected, monkeypatch):
  monkeypatch.setattr(cores, 'num_usable_cores', lambda: 8)
  assert execution.divide_cores(*arguments) == expected


def test_trials_on_other_data_are_not_mixed(run, monkeypatch):
  trials = make_trials(2)
  run(trials[:1])
  store = mock.MagicMock(config={'data_sha256': 'a'}, directory='there')
  store.__enter__.return_value = store
  monkeypatch.setattr(run_store, 'has_run', lambda folder: True)
  of_runs = run_store.RunStore
  monkeypatch.setattr(of_runs, 'open_for_reading', lambda folder: store)
  with pytest.raises(errors.RunError, match='data have changed since .* there'):
    run(trials)
  # Nothing is mixed where nothing is left to run.
  run(trials[:1])
  store.config['data_sha256'] = trials[0].settings.load_data().fingerprint
  assert run(trials) == {}


@pytest.mark.parametrize(
  'script,words,reported',
  [
    (FAILS, ['no memory'], 'no memory'),
    (_IS_KILLED, ['SIGKILL', 'memory ran out', 'about to grow'], None),
    (_LEAVES_NO_SCORES, ['exit status 0'], None),
  ],
)
def test_a_failed_trial_is_reported_and_the_others_run(
  script, words, reported, run, tmp_path
):
  trials = make_trials(2)
  failures = run(trials, script + FINISHES, num_processes=1)
  ((name, reason),) = failures.items()
  assert name == 'fed_avg-seed1'
  assert all(word in reason for word in words)
  assert '\n' not in reason
  for trial in trials:
    failed = trial.name == name
    assert execution.is_started(tmp_path, trial.name)
    assert execution.is_finished(tmp_path, trial) != failed
    actual = execution.logged_error(tmp_path, trial.name)
    assert actual == (reported if failed else None)
  assert not execution.is_started(tmp_path, 'fed_avg-seed9')
  assert execution.logged_error(tmp_path, 'fed_avg-seed9') is None
  # It is run again when asked for again.
  assert run(trials) == {}


def test_the_bar_counts_rounds_and_trials(run, tmp_path, capsys):
  trials = make_trials(2)
  for trial, num_rounds in zip(trials, (3, 1)):
    folder = execution.trial_folder(tmp_path, trial.name)
    with run_store.RunStore.open(folder, {}) as store:
      for _ in range(1 + num_rounds):
        store.commit_round(server_state=b'', client_states={}, metrics={})
  script = 'import sys; sys.argv[1].endswith("1") and sys.exit(1)\n'
  run(trials, script + FINISHES, show_progress=True, num_processes=1)
  last = capsys.readouterr().err.splitlines()[-1]
  assert re.search(r' 67%.* 4/6 .*trials=2/2, failed=1', last)


@pytest.fixture(name='interrupt')
def _interrupt(run, tmp_path, monkeypatch):
  """Interrupts trials that sleep when all have started, until they end."""

  def interrupt(trials, script=_SLEEPS, **options):
    paths = [
      os.path.join(execution.trial_folder(tmp_path, t.name), 'pid')
      for t in trials
    ]

    def interrupt_when_started():
      if all(map(os.path.exists, paths)):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
      patches.setattr(shutdown, 'raise_if_stopped', interrupt_when_started)
      with pytest.raises(KeyboardInterrupt):
        run(trials, script, **options)
    for path in paths:
      with open(path) as file:
        expect_end(int(file.read()))

  return interrupt


def expect_end(pid):
  """A process was killed, which takes the kernel a moment."""
  deadline = time.monotonic() + 20
  with contextlib.suppress(psutil.NoSuchProcess):
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
      assert time.monotonic() < deadline
      time.sleep(0.01)


def test_an_interruption_ends_the_running_trials(run, interrupt):
  trials = make_trials(2)
  interrupt(trials, num_processes=2)
  # They are taken up again.
  assert run(trials) == {}


@pytest.mark.parametrize('is_interrupted_again', [False, True])
def test_trials_that_do_not_end_when_asked_are_killed(
  is_interrupted_again, interrupt, monkeypatch
):
  if is_interrupted_again:
    join = process.BaseProcess.join

    def interrupt_while_waiting(one, timeout=None):
      if timeout is not None:
        raise KeyboardInterrupt
      join(one)

    monkeypatch.setattr(process.BaseProcess, 'join', interrupt_while_waiting)
  else:
    monkeypatch.setattr(execution, '_GRACE_SECONDS', 0.2)
  interrupt(make_trials(1), _IS_DEAF + _SLEEPS)


def test_other_settings_are_refused_before_anything_runs(run, tmp_path):
  run(make_trials(1))
  others = make_trials(2, num_rounds=4)
  with pytest.raises(errors.RunError, match='num_rounds=3, not 4'):
    run(others)
  assert not execution.is_finished(tmp_path, others[1])
  # Where a trial runs may differ.
  assert run(make_trials(1, runtime='native'), FAILS) == {}


def test_a_folder_that_cannot_be_written_to_is_reported(run, monkeypatch):
  path = os.path.join(os.devnull, 'x')
  monkeypatch.setattr(execution, 'trial_folder', lambda *_: path)
  with pytest.raises(errors.RunError, match='Not a directory'):
    run(make_trials(1))


def test_a_study_that_is_moved_meanwhile_is_not_begun_anew(
  run, tmp_path, monkeypatch
):
  away = tmp_path.with_name(f'{tmp_path.name}_away')
  monkeypatch.setattr(
    execution.trial, 'run_folder', lambda folder: tmp_path.rename(away)
  )
  with pytest.raises(errors.RunError, match='moved while its trials ran'):
    run(make_trials(2), num_processes=0)
  assert not tmp_path.exists()


def test_the_processes_are_forks_of_one_that_imports_once(run, tmp_path):
  script = 'import os, sys; print(os.getppid(), os.getpid(), sys.stdin.read())'
  trials = make_trials(2)
  run(trials, script, num_processes=1)
  (parent, first), (other, second) = (
    path.read_text().split() for path in tmp_path.rglob(execution.LOG_NAME)
  )
  assert parent == other and first != second
