import numpy as np
import pytest

from tests.methods import toy_problems

pytestmark = pytest.mark.usefixtures('runtime')


def test_steps_by_hand():
  initial = np.array([[0.5], [-1.0]], np.float32)
  clients = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]
  process = toy_problems.full_batches(
    'ditto',
    toy_problems.linear_network(None, initial),
    num_epochs=1,
    learning_rate=0.1,
    proximal_strength=0.8,
    personal_num_epochs=2,
    personal_learning_rate=0.05,
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
