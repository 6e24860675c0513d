"""Trials as tasks of a Ray cluster; their processes are stand-ins."""

import os
import sys
import time

import psutil
import pytest

from tests.comparisons import execution_test
from tests.comparisons.execution_test import _interrupt, _run  # noqa: F401
from tff_pfl import errors
from tff_pfl.comparisons import cluster, execution

_DIES_ONCE = """
import os, signal, sys
path = os.path.join(sys.argv[1], 'died')
if not os.path.exists(path):
  open(path, 'w').close()
  # Of the launcher is the task's process the parent.
  os.kill(os.getppid(), signal.SIGKILL)
  signal.pause()
"""


@pytest.fixture(name='on_cluster', scope='module')
def _on_cluster():
  ray = pytest.importorskip('ray', reason='needs Ray (`make venv RAY=1`)')
  yield {'cluster': cluster.Cluster()}
  ray.shutdown()


class TestOnACluster:
  def test_all_trials_run(self, run, on_cluster, tmp_path):
    trials = execution_test._trials()
    assert run(trials, execution_test._FINISHES, **on_cluster) == {}
    for trial in trials:
      scores = execution_test._scores(tmp_path, trial.name)
      assert scores['name'] == trial.name
      assert scores['runtime_options'] == {'max_concurrent_clients': 1}
    # Finished ones are not run again.
    assert run(trials, execution_test._FAILS, **on_cluster) == {}

  def test_a_failed_trial_is_reported_and_the_others_run(
    self, run, on_cluster, tmp_path
  ):
    trials = execution_test._trials()
    script = execution_test._FAILS + execution_test._FINISHES
    failures = run(trials, script, **on_cluster)
    assert failures == {'fed_avg-seed1': 'no memory'}
    assert execution.is_finished(tmp_path, 'fed_avg-seed2')

  def test_a_trial_whose_task_is_killed_is_run_again(
    self, run, on_cluster, tmp_path
  ):
    (trial,) = execution_test._trials(1)
    script = _DIES_ONCE + execution_test._FINISHES
    assert run([trial], script, **on_cluster) == {}
    folder = execution.trial_folder(tmp_path, trial.name)
    assert os.path.exists(os.path.join(folder, 'died'))

  # Ray 2.60 now and then aborts this process when a task is cancelled while its
  # end is on the way (ray-project/ray#54785).
  @pytest.mark.slow
  def test_an_interruption_ends_the_running_trials(self, interrupt, on_cluster):
    (pid,) = interrupt(execution_test._trials(1), **on_cluster)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
      time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def test_a_node_without_the_folder_is_an_error(tmp_path):
  path = tmp_path / 'elsewhere' / 'log.txt'
  with pytest.raises(errors.RunError, match='all nodes of the cluster share'):
    cluster._run_in_child([sys.executable], str(path), {})


def test_a_cluster_without_ray_is_one_line(run, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with pytest.raises(errors.RunError, match='make venv RAY=1'):
    run(execution_test._trials(1), 'pass', cluster=cluster.Cluster())
