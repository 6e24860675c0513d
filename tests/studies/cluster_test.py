"""Trials as tasks of a Ray cluster; what they do is made up."""

import os

import pytest

from tests.studies import execution_test, stand_in
from tests.studies.execution_test import _interrupt, _run  # noqa: F401
from tff_pfl import errors
from tff_pfl.studies import cluster, execution

_DIES_ONCE = """
import multiprocessing, os, signal, sys
path = os.path.join(sys.argv[1], 'died')
if not os.path.exists(path):
  open(path, 'w').close()
  os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
  signal.pause()
"""


@pytest.fixture(name='on_cluster', scope='module')
def _on_cluster():
  ray = pytest.importorskip('ray', reason='needs Ray (`make venv RAY=1`)')
  yield {'cluster': cluster.Cluster()}
  ray.shutdown()


class TestOnACluster:
  def test_a_failed_trial_is_reported_and_the_others_run(
    self, run, on_cluster, tmp_path
  ):
    trials = execution_test.make_trials()
    script = execution_test.FAILS + execution_test.FINISHES
    failures = run(trials, script, **on_cluster)
    assert failures == {'fed_avg-seed1': 'no memory'}
    for name in ('fed_avg-seed0', 'fed_avg-seed2'):
      scores = execution_test.read_scores(tmp_path, name)
      assert scores['name'] == name
      assert scores['runtime_options'] == {'max_concurrent_clients': 1}
    # Finished ones are not run again.
    assert run(trials[:1], execution_test.FAILS, **on_cluster) == {}

  def test_a_trial_whose_task_is_killed_is_run_again(
    self, run, on_cluster, tmp_path
  ):
    (trial,) = execution_test.make_trials(1)
    script = _DIES_ONCE + execution_test.FINISHES
    assert run([trial], script, **on_cluster) == {}
    folder = execution.trial_folder(tmp_path, trial.name)
    assert os.path.exists(os.path.join(folder, 'died'))

  # Ray 2.60 now and then aborts this process when a task is cancelled while its
  # end is on the way (ray-project/ray#54785).
  @pytest.mark.slow
  def test_an_interruption_ends_the_running_trials(self, interrupt, on_cluster):
    interrupt(execution_test.make_trials(1), **on_cluster)


def test_a_node_without_the_folder_is_an_error(tmp_path):
  path = tmp_path / 'elsewhere' / 'log.txt'
  with pytest.raises(errors.RunError, match='all nodes of the cluster share'):
    cluster._run_in_child(stand_in.__name__, 'x', str(path), {})
