import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import ditto

pytestmark = pytest.mark.usefixtures('runtime')

_CLIENTS = [toy_problems.labeled_examples(n, n) for n in (13, 24)]


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
  toy_problems.assert_kernels(state.global_weights, rtol=1e-5, head=shared)
  for client_state, expected in zip(states, personal):
    toy_problems.assert_kernels(client_state.local, rtol=1e-5, head=expected)


def test_new_client_starts_from_the_global_model():
  process = ditto.build_ditto(
    toy_problems.classifier(),
    ditto.DittoHParams(num_epochs=3, learning_rate=0.1, batch_size=5),
  )
  state, _, _ = toy_problems.train(process, _CLIENTS)
  new = process.initialize_client_state(7)
  (without_data,) = toy_problems.personal_models(process, state, [new])
  toy_problems.assert_same(without_data, state.global_weights)
  data = toy_problems.padded(_CLIENTS)[0]
  scores = process.evaluate(state, new, data, data)
  assert scores['after']['loss'] < scores['before']['loss']
