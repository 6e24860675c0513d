import pytest

from tests.methods import toy_problems
from tff_pfl.methods import registry


def test_body_is_trained_under_the_initial_head():
  clients = toy_problems.DEEP_CLIENTS
  process = toy_problems.deep_linear(
    'fed_babu', num_steps=2, learning_rate=0.05
  )
  bodies = [
    toy_problems.descended_together(
      *(toy_problems.BODY, toy_problems.HEAD, client, 2, 0.05),
      trained=(True, False),
    )[0]
    for client in clients
  ]
  mean = toy_problems.weighted_mean(bodies, clients)
  state, _, _ = toy_problems.check_rounds(
    process, clients, [{'global_weights': {'body': mean}}]
  )
  assert list(state.global_weights) == ['body/kernel']


@pytest.mark.parametrize(
  'scope', ['head', pytest.param('all', marks=pytest.mark.slow)]
)
def test_models_are_fine_tuned_before_they_are_scored(scope):
  model = toy_problems.classifier()
  process = registry.build(
    'fed_babu', model, learning_rate=0.1, fine_tune_scope=scope
  )
  clients = [toy_problems.labeled_examples(n, n) for n in (13, 24)]
  state, states, _ = toy_problems.train(process, clients)
  data = toy_problems.padded(clients)
  weights = process.personalize(state, states[0], data[0]).weights
  for name, value in model.initial_weights.items():
    start = state.global_weights.get(name, value)
    changes = scope == 'all' or name in model.weight_names(model.head_layers)
    assert toy_problems.differ(weights[name], start) == changes, name
  scores = process.evaluate(state, states[0], data[0], data[0])
  assert scores['after']['loss'] < scores['before']['loss']
