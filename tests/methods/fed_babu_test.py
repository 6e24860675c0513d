import functools

import pytest

from tests.methods import toy_problems

_CLIENTS = toy_problems.DEEP_CLIENTS


@functools.cache
def _process(scope):
  return toy_problems.deep_linear(
    'fed_babu', num_steps=2, learning_rate=0.05, fine_tune_scope=scope
  )


def test_body_is_trained_under_the_initial_head():
  bodies = [
    toy_problems.descended_together(
      *(toy_problems.BODY, toy_problems.HEAD, client, 2, 0.05),
      trained=(True, False),
    )[0]
    for client in _CLIENTS
  ]
  mean = toy_problems.weighted_mean(bodies, _CLIENTS)
  state, _, _ = toy_problems.check_rounds(
    _process('head'), _CLIENTS, [{'global_weights': {'body': mean}}]
  )
  assert list(state.global_weights) == ['body/kernel']


@pytest.mark.parametrize(
  'scope', ['head', pytest.param('all', marks=pytest.mark.slow)]
)
def test_models_are_fine_tuned_before_they_are_scored(scope):
  process = _process(scope)
  state, states, _ = toy_problems.train(process, _CLIENTS)
  data = toy_problems.padded(_CLIENTS)
  weights = process.personalize(state, states[0], data[0]).weights
  for name, value in process.model.initial_weights.items():
    start = state.global_weights.get(name, value)
    changes = scope == 'all' or name == 'head/kernel'
    assert toy_problems.differ(weights[name], start) == changes, name
  scores = process.evaluate(state, states[0], data[0], data[0])
  assert scores['after']['loss'] < scores['before']['loss']
