import functools

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import local_only

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5, 1.0], [-1.0, 2.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 2, seed=n) for n in (6, 20)]


def _trained(weight, client):
  return toy_problems.descended_alone(weight, client, 3, 0.1, momentum=0.5)


@functools.cache
def _process():
  return local_only.build_local_only(
    toy_problems.linear_network(None, _INITIAL),
    local_only.LocalOnlyHParams(
      num_steps=3, learning_rate=0.1, momentum=0.5, batch_size=None
    ),
  )


def test_each_client_trains_alone_and_the_server_only_counts_rounds():
  initial = _process().initialize()
  weights, num_rounds = [_INITIAL, _INITIAL], 0
  for state, states, metrics in toy_problems.rounds(
    _process(), _CLIENTS, [(0, 1), (0, 1)]
  ):
    num_rounds += 1
    toy_problems.assert_same(state, initial._replace(round_number=num_rounds))
    assert metrics['update_norm'] == 0
    weights = [_trained(w, client) for w, client in zip(weights, _CLIENTS)]
    for client_state, weight in zip(states, weights):
      toy_problems.assert_kernels(client_state.local, head=weight)


def test_client_that_never_took_part_trains_before_it_is_scored():
  process = _process()
  state = process.initialize()
  personal = toy_problems.new_client(process, state, _CLIENTS[0])
  expected = _trained(_INITIAL, _CLIENTS[0])
  toy_problems.assert_kernels(personal.weights, head=expected)
  (data,) = toy_problems.padded(_CLIENTS[:1])
  new = process.initialize_client_state(0)
  scores = process.evaluate(state, new, data, data)
  for which, weight in (('before', _INITIAL), ('after', expected)):
    loss = np.mean((_CLIENTS[0].x @ weight - _CLIENTS[0].y) ** 2)
    assert scores[which]['loss'] == pytest.approx(loss, rel=1e-4)
