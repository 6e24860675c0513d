import pytest

from tests.methods import toy_problems

_CLIENTS = toy_problems.DEEP_CLIENTS


@pytest.fixture(name='process', scope='module')
def _process():
  return toy_problems.deep_linear('fed_babu', num_steps=2, learning_rate=0.05)


def test_body_is_trained_under_the_initial_head(process):
  bodies = [
    toy_problems.descended_together(
      *(toy_problems.BODY, toy_problems.HEAD, client, 2, 0.05),
      trained=(True, False),
    )[0]
    for client in _CLIENTS
  ]
  mean = toy_problems.weighted_mean(bodies, _CLIENTS)
  state, _, _ = toy_problems.check_rounds(
    process, _CLIENTS, [{'global_weights': {'body': mean}}]
  )
  assert list(state.global_weights) == ['body/kernel']


def test_heads_are_fine_tuned_before_models_are_scored(process):
  state, states, _ = toy_problems.train(process, _CLIENTS)
  data = toy_problems.padded(_CLIENTS)
  weights = process.personalize(state, states[0], data[0]).weights
  for name, value in process.model.initial_weights.items():
    start = state.global_weights.get(name, value)
    moved = toy_problems.differ(weights[name], start)
    assert moved == (name == 'head/kernel'), name
  scores = process.evaluate(state, states[0], data[0], data[0])
  assert scores['after']['loss'] < scores['before']['loss']
