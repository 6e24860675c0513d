import functools

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import fed_per

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(8)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in (6, 20)]


def _train(client, body, head, num_steps=3):
  """Full-batch descent on both at once; learning rate 0.1, momentum 0.5."""
  body_velocity = head_velocity = 0
  for _ in range(num_steps):
    outputs = 2 * (client.x @ body @ head - client.y) / client.y.size
    head_gradient = (client.x @ body).T @ outputs
    body_gradient = client.x.T @ outputs @ head.T
    head_velocity = 0.5 * head_velocity + head_gradient
    body_velocity = 0.5 * body_velocity + body_gradient
    head = head - 0.1 * head_velocity
    body = body - 0.1 * body_velocity
  return body, head


@functools.cache
def _process():
  return fed_per.build_fed_per(
    toy_problems.linear_network(_BODY, _HEAD),
    fed_per.FedPerHParams(
      num_steps=3, learning_rate=0.1, momentum=0.5, batch_size=None
    ),
  )


def test_rounds_are_those_of_the_paper():
  process = _process()
  state = process.initialize()
  states = process.initialize_client_states([0, 1])
  body, heads = _BODY, [_HEAD, _HEAD]
  for _ in range(2):
    output = process.next(state, states, toy_problems.padded(_CLIENTS))
    state, states = output.state, output.client_states
    trained = [
      _train(client, body, head) for client, head in zip(_CLIENTS, heads)
    ]
    body = np.average([b for b, _ in trained], axis=0, weights=[6, 20])
    heads = [h for _, h in trained]
    np.testing.assert_allclose(
      toy_problems.kernels(state.global_weights)['body'], body, rtol=1e-4
    )
    for client_state, head in zip(states, heads):
      np.testing.assert_allclose(
        toy_problems.kernels(client_state.local)['head'], head, rtol=1e-4
      )


def test_new_client_fits_only_its_head():
  process = _process()
  personal = process.personalize(
    process.initialize(),
    process.initialize_client_state(0),
    toy_problems.padded(_CLIENTS)[0],
  )
  client, head, velocity = _CLIENTS[0], _HEAD, 0
  for _ in range(3):
    features = client.x @ _BODY
    outputs = 2 * (features @ head - client.y) / client.y.size
    velocity = 0.5 * velocity + features.T @ outputs
    head = head - 0.1 * velocity
  kernels = toy_problems.kernels(personal.weights)
  np.testing.assert_array_equal(kernels['body'], _BODY)
  np.testing.assert_allclose(kernels['head'], head, rtol=1e-4)


def test_model_without_a_body_is_refused():
  model = toy_problems.linear_network(None, _HEAD)
  with pytest.raises(ValueError, match='fed_per to share'):
    fed_per.build_fed_per(model)
