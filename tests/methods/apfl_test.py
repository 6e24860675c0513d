import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import apfl, registry

pytestmark = pytest.mark.usefixtures('runtime')

_TRAINING = dict(num_epochs=3, learning_rate=0.1, batch_size=5)
_CLIENTS = [toy_problems.labeled_examples(n, n) for n in (13, 24)]
_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_REGRESSION = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]


def test_rounds_by_hand():
  rate, mixing_learning_rate = 0.1, 0.02
  process = toy_problems.full_batches(
    'apfl',
    toy_problems.linear_network(None, _INITIAL),
    num_steps=2,
    learning_rate=rate,
    mixing_weight=0.25,
    mixing_learning_rate=mixing_learning_rate,
  )
  state, states, _ = toy_problems.train(process, _REGRESSION, num_rounds=3)
  slope = toy_problems.squared_error_gradient
  shared, personal, shares = _INITIAL, [_INITIAL] * 2, [0.25] * 2
  for _ in range(3):
    models = []
    for i, client in enumerate(_REGRESSION):
      w, v, a = shared, personal[i], shares[i]
      step = np.sum((v - w) * slope(a * v + (1 - a) * w, client))
      a = np.clip(a - mixing_learning_rate * step, 0, 1)
      for _ in range(2):
        mixed = a * v + (1 - a) * w
        w, v = w - rate * slope(w, client), v - rate * a * slope(mixed, client)
      models.append(w)
      personal[i], shares[i] = v, a
    shared = toy_problems.weighted_mean(models, _REGRESSION)
  assert shares[0] != 0.25
  toy_problems.assert_kernels(state.global_weights, rtol=1e-5, head=shared)
  models = toy_problems.personal_models(process, state, states)
  for i, client_state in enumerate(states):
    local = client_state.local
    assert local['mixing_weight'] == pytest.approx(shares[i], rel=1e-5)
    toy_problems.assert_kernels(local['weights'], rtol=1e-5, head=personal[i])
    mixed = shares[i] * personal[i] + (1 - shares[i]) * shared
    toy_problems.assert_kernels(models[i], rtol=1e-5, head=mixed)


def test_adaptive_mixing_weight_stays_in_its_range():
  process = toy_problems.full_batches(
    'apfl',
    toy_problems.linear_network(None, _INITIAL),
    learning_rate=0.1,
    mixing_learning_rate=1e4,
  )
  _, states, _ = toy_problems.train(process, _REGRESSION, num_rounds=3)
  assert {float(s.local['mixing_weight']) for s in states} <= {0.0, 1.0}


@pytest.mark.slow
def test_moving_statistics_are_those_of_the_mixed_network():
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  process = registry.build('apfl', model, apfl.ApflHParams(**_TRAINING), seed=4)
  state, states, _ = toy_problems.train(process, _CLIENTS, 2)
  (weights, _) = toy_problems.personal_models(process, state, states)
  assert model.statistics
  for name, value in weights.items():
    personal = states[0].local['weights'][name]
    if name in model.statistics:
      np.testing.assert_array_equal(value, personal)
    else:
      np.testing.assert_allclose(
        value, (personal + state.global_weights[name]) / 2, rtol=1e-5
      )


@pytest.mark.slow
def test_adapting_client_without_examples_is_absent_not_broken():
  process = registry.build(
    'apfl',
    toy_problems.classifier(),
    apfl.ApflHParams(mixing_learning_rate=0.1),
  )
  nobody = toy_problems.labeled_examples(0, 0)
  _, states, metrics = toy_problems.train(process, [*_CLIENTS, nobody])
  assert metrics['clients'] == 2
  assert metrics['non_finite_clients'] == 0
  assert states[2].local['mixing_weight'] == 0.5
