import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import lg_fed_avg

pytestmark = pytest.mark.usefixtures('runtime')

_BODY = np.array([[0.3, -0.2], [0.1, 0.5]], np.float32)
_HEAD = np.array([[1.0], [-2.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]


def _process(**options):
  return lg_fed_avg.build_lg_fed_avg(
    toy_problems.linear_network(_BODY, _HEAD),
    lg_fed_avg.LgFedAvgHParams(
      num_steps=2, batch_size=None, learning_rate=0.05, momentum=0.0
    ),
    **options,
  )


def _descend(body, head, client):
  for _ in range(2):
    slope = toy_problems.squared_error_gradient(body @ head, client)
    body, head = body - 0.05 * slope @ head.T, head - 0.05 * body.T @ slope
  return body, head


def test_rounds_by_hand():
  state, states, _ = toy_problems.train(_process(), _CLIENTS, 3)
  bodies, head = [_BODY, _BODY], _HEAD
  for _ in range(3):
    trained = [_descend(b, head, c) for b, c in zip(bodies, _CLIENTS)]
    bodies = [body for body, _ in trained]
    head = toy_problems.weighted_mean([h for _, h in trained], _CLIENTS)
  assert list(state.global_weights) == ['head/kernel']
  np.testing.assert_allclose(
    state.global_weights['head/kernel'], head, rtol=1e-4
  )
  for client_state, body in zip(states, bodies):
    assert list(client_state.local) == ['body/kernel']
    np.testing.assert_allclose(
      client_state.local['body/kernel'], body, rtol=1e-4, atol=1e-6
    )


def test_new_client_trains_its_body_under_the_frozen_head():
  process = _process()
  state, _, _ = toy_problems.train(process, _CLIENTS)
  (data,) = toy_problems.padded(_CLIENTS[:1])
  new = process.initialize_client_state(7)
  weights = process.personalize(state, new, data).weights
  head = np.asarray(state.global_weights['head/kernel'])
  body = _BODY
  for _ in range(2):
    slope = toy_problems.squared_error_gradient(body @ head, _CLIENTS[0])
    body = body - 0.05 * slope @ head.T
  np.testing.assert_array_equal(weights['head/kernel'], head)
  np.testing.assert_allclose(weights['body/kernel'], body, rtol=1e-5)


def test_model_without_a_body_is_refused():
  with pytest.raises(ValueError, match='lg_fed_avg'):
    lg_fed_avg.build_lg_fed_avg(toy_problems.linear_network(None, _HEAD))
