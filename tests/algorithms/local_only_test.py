import functools

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import local_only

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5, 1.0], [-1.0, 2.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 2, seed=n) for n in (6, 20)]
_NUM_STEPS = 3


def _train(client, weight, num_steps=_NUM_STEPS):
  """Full-batch gradient descent with learning rate 0.1 and momentum 0.5."""
  velocity = 0
  for _ in range(num_steps):
    gradient = 2 * client.x.T @ (client.x @ weight - client.y) / client.y.size
    velocity = 0.5 * velocity + gradient
    weight = weight - 0.1 * velocity
  return weight


@functools.cache
def _process():
  return local_only.build_local_only(
    toy_problems.linear_network(None, _INITIAL),
    local_only.LocalOnlyHParams(
      num_steps=_NUM_STEPS, learning_rate=0.1, momentum=0.5, batch_size=None
    ),
  )


def test_each_client_trains_alone_and_the_server_only_counts_rounds():
  process = _process()
  initial = state = process.initialize()
  states = process.initialize_client_states([0, 1])
  expected = [_INITIAL, _INITIAL]
  for round_number in (1, 2):
    output = process.next(state, states, toy_problems.padded(_CLIENTS))
    state, states = output.state, output.client_states
    toy_problems.assert_same(state, initial._replace(round_number=round_number))
    assert output.metrics['update_norm'] == 0
    expected = [_train(c, weight) for c, weight in zip(_CLIENTS, expected)]
    for client_state, weight in zip(states, expected):
      np.testing.assert_allclose(
        toy_problems.kernels(client_state.local)['head'], weight, rtol=1e-4
      )


def test_client_that_never_took_part_trains_before_it_is_scored():
  process = _process()
  state = process.initialize()
  new = process.initialize_client_state(0)
  data = toy_problems.padded(_CLIENTS)[0]
  personal = process.personalize(state, new, data)
  expected = _train(_CLIENTS[0], _INITIAL)
  np.testing.assert_allclose(
    toy_problems.kernels(personal.weights)['head'], expected, rtol=1e-4
  )
  scores = process.evaluate(state, new, data, data)
  for which, weight in (('before', _INITIAL), ('after', expected)):
    loss = np.mean((_CLIENTS[0].x @ weight - _CLIENTS[0].y) ** 2)
    assert scores[which]['loss'] == pytest.approx(loss, rel=1e-4)
