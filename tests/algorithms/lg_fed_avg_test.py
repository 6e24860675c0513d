import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import lg_fed_avg

pytestmark = pytest.mark.usefixtures('runtime')

_BODY = np.array([[0.3, -0.2], [0.1, 0.5]], np.float32)
_HEAD = np.array([[1.0], [-2.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]


def _process():
  return lg_fed_avg.build_lg_fed_avg(
    toy_problems.linear_network(_BODY, _HEAD),
    lg_fed_avg.LgFedAvgHParams(
      num_steps=2, batch_size=None, learning_rate=0.05, momentum=0.0
    ),
  )


def test_rounds_by_hand():
  state, states, _ = toy_problems.train(_process(), _CLIENTS, 3)
  bodies, head = [_BODY, _BODY], _HEAD
  for _ in range(3):
    bodies, heads = zip(
      *[
        toy_problems.descended_together(body, head, client, 2, 0.05)
        for body, client in zip(bodies, _CLIENTS)
      ]
    )
    head = toy_problems.weighted_mean(heads, _CLIENTS)
  assert list(state.global_weights) == ['head/kernel']
  toy_problems.assert_kernels(state.global_weights, head=head)
  for client_state, body in zip(states, bodies):
    assert list(client_state.local) == ['body/kernel']
    toy_problems.assert_kernels(client_state.local, atol=1e-6, body=body)


def test_new_client_trains_its_body_under_the_frozen_head():
  process = _process()
  state, _, _ = toy_problems.train(process, _CLIENTS)
  weights = toy_problems.new_client(process, state, _CLIENTS[0]).weights
  head = np.asarray(state.global_weights['head/kernel'])
  body = toy_problems.descended(
    lambda body: toy_problems.gradients(body, head, _CLIENTS[0])[0],
    _BODY,
    num_steps=2,
    learning_rate=0.05,
  )
  np.testing.assert_array_equal(weights['head/kernel'], head)
  toy_problems.assert_kernels(weights, rtol=1e-5, body=body)
