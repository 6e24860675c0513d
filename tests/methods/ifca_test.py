import collections

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.core import private_mean
from tff_pfl.methods import registry

_TRAINING = dict(num_epochs=2, learning_rate=0.1, batch_size=10)


def _of_rule(num_examples, rule, seed):
  return toy_problems.planted_examples(num_examples, np.eye(2)[rule], seed)


@pytest.mark.slow
def test_planted_clusters_are_recovered():
  rules = [0, 1, 0, 1, 1]
  clients = [_of_rule(60 + 10 * i, r, i) for i, r in enumerate(rules)]
  process = registry.build(
    'ifca', toy_problems.classifier(), num_clusters=2, **_TRAINING, seed=1
  )
  state, states, _ = toy_problems.train(process, clients, 25)
  assert not states[0].local
  data = toy_problems.padded(clients)
  models = [
    process.personalize(state, s, d).weights for s, d in zip(states, data)
  ]
  same = [[not toy_problems.differ(a, b) for b in models] for a in models]
  assert same == [[a == b for b in rules] for a in rules]
  # A new client of a rule gets the model of that rule.
  new = process.initialize_client_state(9)
  (fresh,) = toy_problems.padded([_of_rule(200, 1, 70)])
  scores = process.evaluate(state, new, fresh, fresh)
  assert scores['after']['accuracy'] > 0.85


_BODY, _HEAD = 5 * np.eye(5, 3, dtype='f'), np.eye(3, dtype='f')


def _model_of_rule(rule):
  """The weights with which a rule's class has the largest score."""
  return {'body/kernel': _BODY, 'head/kernel': np.roll(_HEAD, rule, axis=1)}


def _separated(process):
  """The server's state with a model of rule 0, one of rule 1 and a bad one."""
  state = process.initialize()
  weights = collections.OrderedDict(state.global_weights)
  for rule in (0, 1):
    for name, value in _model_of_rule(rule).items():
      weights[f'component_{rule}/{name}'] = value
  return state._replace(global_weights=weights)


_MIXED_RULES = (0, 1, 0)


def _build(**options):
  model = toy_problems.linear_classifier(_BODY, _HEAD)
  return registry.build('ifca', model, num_clusters=3, **_TRAINING, **options)


def _rounds_of_mixed_rules(process, cohorts):
  """The weights before a round, and after it with each of some cohorts."""
  data = toy_problems.padded(
    _of_rule(40 * (i + 1), rule, i) for i, rule in enumerate(_MIXED_RULES)
  )
  before = _separated(process)
  after = [
    process.next(
      before,
      process.initialize_client_states(cohort),
      [data[i] for i in cohort],
    ).state.global_weights
    for cohort in cohorts
  ]
  return before.global_weights, after


def _clusters_that_moved(before, after):
  return {
    name.split('/')[0]
    for name, value in after.items()
    if toy_problems.differ(value, before[name])
  }


def test_cluster_is_the_mean_of_its_members_and_others_stay():
  cohorts = [[0, 1, 2], [0], [1], [2]]
  process = _build()
  before, (together, *alone) = _rounds_of_mixed_rules(process, cohorts)
  assert [_clusters_that_moved(before, w) for w in alone] == [
    {f'component_{rule}'} for rule in _MIXED_RULES
  ]
  for name, value in together.items():
    k = int(name[len('component_')])
    members = [i for i, rule in enumerate(_MIXED_RULES) if rule == k]
    expected = before[name]
    if members:
      expected = np.average(
        [alone[i][name] for i in members],
        axis=0,
        weights=[40 * (i + 1) for i in members],
      )
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
  # A new client gets the model that fits it.
  weights = toy_problems.new_client(
    process, _separated(process), _of_rule(200, 1, 70)
  ).weights
  toy_problems.assert_same(dict(weights), _model_of_rule(1))


def test_noise_does_not_move_a_model_that_nobody_chose():
  # Of standard deviation 0.007, where half of a client's share is 0.17. With
  # this seed it makes the share that nobody has positive.
  private = private_mean.PrivateMeanFactory(0.002, 3, 'fixed:10', seed=1)
  process = _build(aggregator=private)
  before, (after,) = _rounds_of_mixed_rules(process, [[0, 1, 2]])
  assert _clusters_that_moved(before, after) == {'component_0', 'component_1'}
