import collections

import numpy as np
import pytest

from tff_pfl import datasets
from tff_pfl.datasets.sources import synthetic
from tff_pfl.methods import registry
from tff_pfl.models import zoo
from tff_pfl.runs import (
  client_population,
  client_sampling,
  run_store,
  stored_rounds,
)

_NUM_ROUNDS = 4


def _data(num_clients):
  return synthetic.make_synthetic(
    num_clients,
    examples_per_client=20,
    test_examples_per_client=4,
    shape=(12,),
    num_classes=4,
    classes_per_client=2,
    seed=0,
  )


@pytest.fixture(scope='module', name='process')
def _process():
  model = zoo.mlp(_data(6).element_spec, 4, widths=(8,))
  return registry.build('fed_rep', model)


def _cohorts(num_clients):
  sampler = client_sampling.CohortSampler(num_clients, 2, 0)
  return [sampler.sample(number) for number in range(1, _NUM_ROUNDS + 1)]


@pytest.mark.parametrize('num_clients', [6, 600])
def test_rounds_commit_the_cohorts_and_touch_no_other_client(
  num_clients, process, runtime, tmp_path, monkeypatch
):
  read = []
  train = datasets.FederatedDataset.train

  def spying_train(self, client_id):
    read.append(self.client_ids.index(client_id))
    return train(self, client_id)

  monkeypatch.setattr(datasets.FederatedDataset, 'train', spying_train)
  cohorts = _cohorts(num_clients)
  with run_store.RunStore.open(tmp_path / 'run', {}) as store:
    rounds = stored_rounds.StoredRounds(
      process, runtime, _data(num_clients), store
    )
    assert not read
    assert store.last_round == 0
    for cohort in cohorts:
      rounds.commit(rounds.run_round(cohort))
    taken = np.concatenate(cohorts).tolist()
    # Those who came again have their data kept.
    assert read == list(dict.fromkeys(taken))
    assert store.last_round == _NUM_ROUNDS
    counts = collections.Counter(taken)
    assert set(store.client_states(range(num_clients))) == set(counts)
    # Those who came again went on from their stored state.
    states = client_population.ClientPopulation(process, runtime, store).states(
      list(counts)
    )
    assert [int(state.num_rounds) for state in states] == list(counts.values())
    server = client_population.decode_state(
      store.server_state(), runtime.run(process.initialize)
    )
    assert server.round_number == _NUM_ROUNDS
