import collections

import pytest

from tff_pfl import datasets
from tff_pfl.benchmark import scale, workloads
from tff_pfl.simulation import client_population, run_store

_NUM_ROUNDS = 4


@pytest.fixture(scope='module', name='workload')
def _workload():
  return workloads.get_workload('scale').scaled_down()


@pytest.fixture(scope='module', name='process')
def _process(workload):
  return workload.build_process(workload.build_model())


@pytest.mark.parametrize('num_clients', [6, 600])
def test_rounds_commit_the_cohorts_and_touch_no_other_client(
  num_clients, workload, process, runtime, tmp_path, monkeypatch
):
  read = []
  train = datasets.FederatedDataset.train

  def spying_train(self, client_id):
    read.append(self.client_ids.index(client_id))
    return train(self, client_id)

  monkeypatch.setattr(datasets.FederatedDataset, 'train', spying_train)
  with scale.StoredRounds(
    workload, runtime, process, str(tmp_path / 'run'), num_clients
  ) as rounds:
    assert not read
    for round_number in range(_NUM_ROUNDS):
      rounds(round_number)
    cohorts = [
      workload.sample_cohort(r, num_clients).tolist()
      for r in range(_NUM_ROUNDS)
    ]
    taken = sum(cohorts, [])
    # Those who came again have their data kept.
    assert read == list(dict.fromkeys(taken))
    store = rounds.store
    assert store.last_round == _NUM_ROUNDS
    counts = collections.Counter(taken)
    assert store.num_client_states() == len(counts)
    # Those who came again went on from their stored state.
    states = client_population.ClientPopulation(process, runtime, store).states(
      list(counts)
    )
    assert [int(state.num_rounds) for state in states] == list(counts.values())
    server = client_population.decode_state(
      store.server_state(), runtime.run(process.initialize)
    )
    assert server.round_number == _NUM_ROUNDS


def test_store_is_closed_after_the_rounds(workload, process, runtime, tmp_path):
  with scale.StoredRounds(
    workload, runtime, process, str(tmp_path / 'run'), 6
  ) as rounds:
    rounds(0)
  # An open store would hold the folder's lock.
  with run_store.RunStore.resume(tmp_path / 'run', {}) as store:
    assert store.last_round == 1
