import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import ditto, fed_avg, local_only

pytestmark = pytest.mark.usefixtures('runtime')

_TRAINING = dict(num_epochs=3, learning_rate=0.1, batch_size=5)
_CLIENTS = [toy_problems.labeled_examples(n, n) for n in (13, 24)]


def _train(build, hparams, num_rounds=2):
  process = build(toy_problems.classifier(), hparams, seed=4)
  state, states, _ = toy_problems.train(process, _CLIENTS, num_rounds)
  return process, state, states


def test_global_model_is_that_of_fed_avg_bit_for_bit():
  _, of_ditto, _ = _train(ditto.build_ditto, ditto.DittoHParams(**_TRAINING))
  _, of_avg, _ = _train(
    fed_avg.build_fed_avg, fed_avg.FedAvgHParams(**_TRAINING)
  )
  toy_problems.assert_same(of_ditto.global_weights, of_avg.global_weights)


def test_without_pull_personal_models_are_those_of_local_training():
  _, _, of_ditto = _train(
    ditto.build_ditto, ditto.DittoHParams(proximal_strength=0.0, **_TRAINING)
  )
  _, _, alone = _train(
    local_only.build_local_only, local_only.LocalOnlyHParams(**_TRAINING)
  )
  toy_problems.assert_same(of_ditto, alone)


def test_the_stronger_the_pull_the_nearer_is_the_broadcast_model():
  distances = []
  for strength in (0.0, 1.0, 5.0):
    hparams = ditto.DittoHParams(proximal_strength=strength, **_TRAINING)
    _, before, _ = _train(ditto.build_ditto, hparams, num_rounds=1)
    _, _, states = _train(ditto.build_ditto, hparams, num_rounds=2)
    distances.append(
      sum(
        np.sum((states[0].local[name] - value) ** 2)
        for name, value in before.global_weights.items()
      )
    )
  assert distances[0] > distances[1] > distances[2] > 0


def test_personal_model_comes_to_the_broadcast_one_as_the_pull_grows():
  distances = []
  for rate in (0.1, 0.01, 0.001):
    # As strong as this rate allows: each step starts from the broadcast model.
    hparams = ditto.DittoHParams(
      num_epochs=3,
      batch_size=5,
      learning_rate=0.1,
      momentum=0.0,
      personal_learning_rate=rate,
      proximal_strength=1 / rate,
    )
    _, before, _ = _train(ditto.build_ditto, hparams, num_rounds=1)
    _, _, states = _train(ditto.build_ditto, hparams, num_rounds=2)
    distances.append(
      max(
        np.max(np.abs(states[0].local[name] - value))
        for name, value in before.global_weights.items()
      )
    )
  assert distances[1] < 0.2 * distances[0]
  assert distances[2] < 0.2 * distances[1]
  assert distances[2] < 1e-3


def test_steps_by_hand():
  initial = np.array([[0.5], [-1.0]], np.float32)
  clients = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]
  process = ditto.build_ditto(
    toy_problems.linear_network(None, initial),
    ditto.DittoHParams(
      num_epochs=1,
      batch_size=None,
      learning_rate=0.1,
      momentum=0.0,
      proximal_strength=0.8,
      personal_num_epochs=2,
      personal_learning_rate=0.05,
    ),
  )
  state, states, _ = toy_problems.train(process, clients, num_rounds=2)
  shared, personal = initial, [initial, initial]
  for _ in range(2):
    for i, client in enumerate(clients):
      for _ in range(2):
        slope = toy_problems.squared_error_gradient(personal[i], client)
        personal[i] = personal[i] - 0.05 * (
          slope + 0.8 * (personal[i] - shared)
        )
    shared = shared - 0.1 * toy_problems.weighted_mean(
      [toy_problems.squared_error_gradient(shared, c) for c in clients], clients
    )
  np.testing.assert_allclose(
    toy_problems.kernels(state.global_weights)['head'], shared, rtol=1e-5
  )
  for client_state, expected in zip(states, personal):
    np.testing.assert_allclose(
      toy_problems.kernels(client_state.local)['head'], expected, rtol=1e-5
    )


def test_new_client_starts_from_the_global_model():
  process, state, _ = _train(ditto.build_ditto, ditto.DittoHParams(**_TRAINING))
  new = process.initialize_client_state(7)
  (without_data,) = toy_problems.personal_models(process, state, [new])
  toy_problems.assert_same(without_data, state.global_weights)
  data = toy_problems.padded(_CLIENTS)[0]
  scores = process.evaluate(state, new, data, data)
  assert scores['after']['loss'] < scores['before']['loss']


def test_impossible_hyperparameters_are_refused():
  with pytest.raises(ValueError, match='`proximal_strength`'):
    ditto.DittoHParams(proximal_strength=-1.0)
  with pytest.raises(ValueError, match='learning_rate'):
    ditto.DittoHParams(personal_learning_rate=0.0)
