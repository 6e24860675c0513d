import numpy as np
import pytest

from tests.methods import toy_problems


@pytest.fixture(name='process', scope='module')
def _process():
  return toy_problems.linear(
    'apfl',
    num_steps=2,
    learning_rate=0.1,
    mixing_weight=0.25,
    mixing_learning_rate=0.02,
  )


def test_rounds_by_hand(process):
  slope = toy_problems.squared_error_gradient

  def rounds():
    shared = toy_problems.KERNEL
    personal, shares = [shared] * 2, [0.25] * 2
    for _ in range(3):
      models = []
      for i, client in enumerate(toy_problems.CLIENTS):
        w, v, a = shared, personal[i], shares[i]
        step = np.sum((v - w) * slope(a * v + (1 - a) * w, client))
        a = np.clip(a - 0.02 * step, 0, 1)
        for _ in range(2):
          mixed = a * v + (1 - a) * w
          w, v = (
            w - 0.1 * slope(w, client),
            v - 0.1 * a * slope(mixed, client),
          )
        models.append(w)
        personal[i], shares[i] = v, a
      shared = toy_problems.weighted_mean(models, toy_problems.CLIENTS)
      yield {
        'global_weights': {'head': shared},
        'local': [
          {'mixing_weight': a, 'weights': {'head': v}}
          for a, v in zip(shares, personal)
        ],
        'models': [
          {'head': a * v + (1 - a) * shared} for a, v in zip(shares, personal)
        ],
      }
    assert shares[0] != 0.25

  toy_problems.check_rounds(process, toy_problems.CLIENTS, rounds())


def test_adaptive_mixing_weight_stays_in_its_range_and_of_the_absent_as_it_is(
  process,
):
  # Of large targets the slopes are large.
  clients = [toy_problems.changed(c, y=1e3 * c.y) for c in toy_problems.CLIENTS]
  clients.append(clients[0].select([]))
  _, states, metrics = toy_problems.train(process, clients, num_rounds=3)
  shares = [float(state.local['mixing_weight']) for state in states]
  assert set(shares[:2]) <= {0.0, 1.0}
  # Without examples a client is absent, not broken.
  assert shares[2] == 0.25
  assert metrics['clients'] == 2 and metrics['non_finite_clients'] == 0


@pytest.mark.slow
def test_moving_statistics_are_those_of_the_mixed_network():
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  process = toy_problems.registry.build('apfl', model, learning_rate=0.1)
  clients = [toy_problems.labeled_examples(n, n) for n in (13, 24)]
  state, states, _ = toy_problems.train(process, clients, 2)
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
