import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import fed_avg, ifca
from tff_pfl.datasets import examples

pytestmark = pytest.mark.usefixtures('runtime')

_TRAINING = dict(num_epochs=2, learning_rate=0.1, batch_size=10)


def _of_rule(num_examples, rule, seed):
  """Examples whose classes the rule moves on."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(num_examples, 5)).astype(np.float32)
  y = (np.argmax(x[:, :3], axis=1) + rule) % toy_problems.NUM_CLASSES
  return examples.Examples(x, y.astype(np.int32))


def test_one_cluster_is_fed_avg_bit_for_bit():
  model = toy_problems.classifier()
  clients = [toy_problems.labelled_examples(n, n) for n in (13, 24)]
  clustered = ifca.build_ifca(
    model, ifca.IfcaHParams(num_clusters=1, **_TRAINING), seed=4
  )
  avg = fed_avg.build_fed_avg(model, fed_avg.FedAvgHParams(**_TRAINING), seed=4)
  of_ifca, _, _ = toy_problems.train(clustered, clients, 2)
  of_avg, _, _ = toy_problems.train(avg, clients, 2)
  for name, value in of_avg.global_weights.items():
    np.testing.assert_array_equal(
      of_ifca.global_weights[f'component_0/{name}'], value
    )


def test_planted_clusters_are_recovered():
  rules = [0, 1, 0, 1, 1]
  clients = [_of_rule(60 + 10 * i, r, i) for i, r in enumerate(rules)]
  process = ifca.build_ifca(
    toy_problems.classifier(),
    ifca.IfcaHParams(num_clusters=2, **_TRAINING),
    seed=1,
  )
  state, states, _ = toy_problems.train(process, clients, 25)
  assert not states[0].local
  data = toy_problems.batched(clients)
  models = [
    process.personalize(state, s, d).weights for s, d in zip(states, data)
  ]
  same = [[not toy_problems.differ(a, b) for b in models] for a in models]
  assert same == [[a == b for b in rules] for a in rules]
  # A new client of a rule gets the model of that rule.
  new = process.initialize_client_state(9)
  (fresh,) = toy_problems.batched([_of_rule(200, 1, 70)])
  scores = process.evaluate(state, new, fresh, fresh)
  assert scores['after']['accuracy'] > 0.85


def test_cluster_is_the_mean_of_its_members_and_others_stay():
  model = toy_problems.classifier()
  # One client after the other, so that each takes another model.
  process = ifca.build_ifca(
    model, ifca.IfcaHParams(num_clusters=3, **_TRAINING)
  )
  initial = process.initialize().global_weights
  clients = [_of_rule(40, 0, 0), _of_rule(80, 0, 1)]
  state, _, _ = toy_problems.train(process, clients)
  moved = {
    name.split('/')[0]
    for name, value in state.global_weights.items()
    if toy_problems.differ(value, initial[name])
  }
  chosen = []
  for i, client in enumerate(clients):
    alone, _, _ = toy_problems.train(process, [client], indices=[i])
    chosen.append(alone.global_weights)
  by_client = [
    {
      n.split('/')[0]
      for n, v in w.items()
      if toy_problems.differ(v, initial[n])
    }
    for w in chosen
  ]
  assert [len(names) for names in by_client] == [1, 1]
  assert moved == by_client[0] | by_client[1]
  for name, value in state.global_weights.items():
    members = [i for i in range(2) if name.split('/')[0] in by_client[i]]
    if not members:
      np.testing.assert_array_equal(value, initial[name])
      continue
    expected = np.average(
      [chosen[i][name] for i in members],
      axis=0,
      weights=[len(clients[i].y) for i in members],
    )
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)


def test_clusters_start_apart_with_the_same_distribution():
  model = toy_problems.classifier()
  initial = ifca.build_ifca(model).initialize().global_weights
  for name, value in model.initial_weights.items():
    np.testing.assert_array_equal(initial[f'component_0/{name}'], value)
    for k in (1, 2):
      other = np.asarray(initial[f'component_{k}/{name}'])
      np.testing.assert_array_equal(
        np.sort(other.ravel()), np.sort(value.ravel())
      )
      if name.endswith('kernel'):
        assert toy_problems.differ(other, value)


@pytest.mark.parametrize('changes', [{'num_clusters': 0}, {'cluster_seed': -1}])
def test_impossible_hyperparameters_are_refused(changes):
  with pytest.raises(ValueError, match=f'`{next(iter(changes))}`'):
    ifca.IfcaHParams(**changes)
