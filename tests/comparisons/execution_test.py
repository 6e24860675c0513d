import contextlib
import json
import os
import time
import types

import psutil
import pytest

from tff_pfl import errors
from tff_pfl.comparisons import execution, plan
from tff_pfl.runs import run_config, run_store
from tff_pfl.system import child_processes, cores, shutdown

# Stand-ins for `trial.main`, with the folder as their argument; the module of
# the real one imports TensorFlow first.
_FINISHES = """
import json, os, sys
spec = json.load(open(os.path.join(sys.argv[1], 'trial.json')))
found = {
  'name': spec['trial']['name'],
  'runtime_options': spec['runtime_options'],
  'threads': os.environ['TF_NUM_INTRAOP_THREADS'],
}
with open(os.path.join(sys.argv[1], 'scores.json'), 'w') as file:
  json.dump(found, file)
"""
_FAILS = """
import sys
if sys.argv[1].endswith('fed_avg-seed1'):
  print('error: no memory', file=sys.stderr)
  print('some words at the exit', file=sys.stderr)
  sys.exit(1)
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
_DEAF_TO_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
_MEETS = """
import os, sys, time
open(os.path.join(sys.argv[1], 'started'), 'w').close()
trials = os.path.dirname(sys.argv[1])
while sum('started' in os.listdir(e.path) for e in os.scandir(trials)) < 2:
  time.sleep(0.01)
"""


@pytest.fixture(name='run')
def _run(monkeypatch, tmp_path):
  """Runs trials whose processes execute the given script."""
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setattr(execution, '_TRIAL_MODULE', 'stand_in')

  def run(trials, script, **options):
    (tmp_path / 'stand_in.py').write_text(
      'import sys\n'
      'def main(argv):\n'
      '  sys.argv = argv\n'
      f'  exec({script!r}, globals())\n'
      'if __name__ == "__main__":\n'
      '  main(sys.argv)\n'
    )
    return execution.run_trials(
      trials, str(tmp_path), show_progress=False, **options
    )

  return run


def _trials(num_seeds=3, **changes):
  base = run_config.RunConfig(**{'num_rounds': 3, **changes})
  return plan.Comparison(base, ('fed_avg',), seeds=range(num_seeds)).trials()


def _scores(directory, name):
  path = os.path.join(execution.trial_folder(directory, name), 'scores.json')
  with open(path, encoding='utf-8') as file:
    return json.load(file)


def test_all_trials_run_and_the_cores_are_divided(run, tmp_path, monkeypatch):
  monkeypatch.setattr(cores, 'num_usable_cores', lambda: 8)
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  trials, options = _trials(2), {'devices': 'cpu'}
  found = run(trials, _FINISHES, num_processes=2, runtime_options=options)
  assert found == {}
  for trial in trials:
    assert execution.is_finished(tmp_path, trial.name)
    assert _scores(tmp_path, trial.name) == {
      'name': trial.name,
      'runtime_options': {'devices': 'cpu', 'max_concurrent_clients': 4},
      'threads': '1',
    }


@pytest.mark.parametrize(
  'arguments,expected',
  [
    ((100,), (8, 1, 1)),
    ((2,), (2, 4, 1)),
    ((0,), (1, 8, 1)),
    ((100, 3), (3, 2, 1)),
    ((100, 20), (20, 1, 1)),
    ((100, 2, 1), (2, 1, 4)),
  ],
)
def test_shares_of_eight_cores(arguments, expected, monkeypatch):
  monkeypatch.setattr(cores, 'num_usable_cores', lambda: 8)
  assert execution.divide_cores(*arguments) == expected


def test_trials_run_side_by_side(run):
  # Neither of them ends before the other has started.
  run(_trials(2), _MEETS + _FINISHES, num_processes=2)


def test_a_finished_trial_is_not_run_again(run, tmp_path):
  trials = _trials()
  run(trials[:2], _FINISHES)
  failures = run(trials, _FAILS + _FINISHES)
  assert not failures
  assert execution.is_finished(tmp_path, trials[2].name)


def test_trials_on_other_data_are_not_mixed(run, monkeypatch):
  trials = _trials(2)
  run(trials[:1], _FINISHES)
  store = types.SimpleNamespace(config={'data_sha256': 'a'}, directory='there')
  monkeypatch.setattr(run_store, 'has_run', lambda folder: True)
  monkeypatch.setattr(
    run_store.RunStore,
    'open_for_reading',
    lambda folder: contextlib.nullcontext(store),
  )
  with pytest.raises(errors.RunError, match='data have changed since .* there'):
    run(trials, _FINISHES)
  # Nothing is mixed where nothing is left to run.
  run(trials[:1], _FINISHES)
  store.config['data_sha256'] = trials[0].config.load_data().fingerprint
  assert run(trials, _FINISHES) == {}


@pytest.mark.parametrize(
  'script,words',
  [
    (_FAILS, ['no memory']),
    (_IS_KILLED, ['SIGKILL', 'memory ran out', 'about to grow']),
  ],
)
def test_a_failed_trial_is_reported_and_the_others_run(
  script, words, run, tmp_path
):
  trials = _trials()
  failures = run(trials, script + _FINISHES, num_processes=1)
  assert list(failures) == ['fed_avg-seed1']
  for word in words:
    assert word in failures['fed_avg-seed1']
  assert '\n' not in failures['fed_avg-seed1']
  assert [execution.is_finished(tmp_path, t.name) for t in trials] == [
    True,
    False,
    True,
  ]
  # It is run again when asked for again.
  assert run(trials, _FINISHES) == {}


def test_a_trial_that_leaves_no_scores_has_failed(run):
  assert list(run(_trials(1), 'pass')) == ['fed_avg-seed0']


@pytest.fixture(name='interrupt')
def _interrupt(run, tmp_path, monkeypatch):
  """Interrupts trials that sleep when all have started; returns their pids."""

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
    pids = []
    for path in paths:
      with open(path) as file:
        pids.append(int(file.read()))
    return pids

  return interrupt


def _runs(pid):
  try:
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return False


def _expect_ended(pids):
  """They were killed, which takes the kernel a moment."""
  deadline = time.monotonic() + 20
  while any(map(_runs, pids)):
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_an_interruption_ends_the_running_trials(run, interrupt):
  trials = _trials(2)
  _expect_ended(interrupt(trials, num_processes=2))
  # They are taken up again.
  assert run(trials, _FINISHES) == {}


def test_a_second_interruption_leaves_no_process_behind(interrupt, monkeypatch):
  wait = child_processes.ForkServer.wait

  def interrupt_while_waiting(server, timeout=None):
    if timeout:
      raise KeyboardInterrupt
    return wait(server, timeout)

  monkeypatch.setattr(
    child_processes.ForkServer, 'wait', interrupt_while_waiting
  )
  pids = interrupt(_trials(2), _DEAF_TO_SIGTERM + _SLEEPS, num_processes=2)
  _expect_ended(pids)


def test_what_a_trial_reported_last_can_be_read(run, tmp_path):
  trials = _trials(2)
  run(trials, _FAILS + _FINISHES)
  assert execution.logged_error(tmp_path, trials[0].name) is None
  assert execution.logged_error(tmp_path, trials[1].name) == 'no memory'
  assert execution.is_started(tmp_path, trials[1].name)
  assert not execution.is_started(tmp_path, 'fed_avg-seed9')
  assert execution.logged_error(tmp_path, 'fed_avg-seed9') is None


def test_other_settings_are_refused_before_anything_runs(run, tmp_path):
  run(_trials(1), _FINISHES)
  others = _trials(2, num_rounds=4)
  with pytest.raises(errors.RunError, match='num_rounds=3, not 4'):
    run(others, _FINISHES)
  assert not execution.is_finished(tmp_path, others[1].name)
  # Where a trial runs may differ.
  assert run(_trials(1, runtime='native'), _FAILS) == {}


def test_a_folder_that_cannot_be_written_to_is_reported(run, monkeypatch):
  monkeypatch.setattr(
    execution, 'trial_folder', lambda *_: os.path.join(os.devnull, 'x')
  )
  with pytest.raises(errors.RunError, match='Not a directory'):
    run(_trials(1), _FINISHES)


def test_the_processes_are_forks_of_one_that_imports_once(run, tmp_path):
  script = 'import os, sys; print(os.getppid(), os.getpid(), sys.stdin.read())'
  trials = _trials(3)
  run(trials, script, num_processes=1)
  parents, children = set(), set()
  for trial in trials:
    folder = execution.trial_folder(tmp_path, trial.name)
    with open(os.path.join(folder, execution.LOG_NAME)) as log:
      parent, child = log.read().split()
    parents.add(parent)
    children.add(child)
  assert len(parents) == 1
  assert len(children) == 3
