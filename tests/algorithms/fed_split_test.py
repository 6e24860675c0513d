import functools

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import fed_split

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(5)
_BODY = _RNG.normal(size=[4, 5]).astype(np.float32)
_HEAD = _RNG.normal(size=[5, 3]).astype(np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in (6, 20)]
_PERSONAL = np.array([False, True, True, False, True])


def _gradients(client, body, head):
  outputs = 2 * (client.x @ body @ head - client.y) / client.y.size
  return client.x.T @ outputs @ head.T, (client.x @ body).T @ outputs


@functools.cache
def _process():
  return fed_split.build_fed_split(
    toy_problems.linear_network(_BODY, _HEAD),
    fed_split.FedSplitHParams(
      personal_elements='body:1-2,body:4',
      num_steps=2,
      learning_rate=0.1,
      momentum=0.0,
      batch_size=None,
    ),
  )


def test_rounds_are_those_of_the_paper():
  process = _process()
  state = process.initialize()
  states = process.initialize_client_states([0, 1])
  shared, head = _BODY[:, ~_PERSONAL], _HEAD
  own = [_BODY[:, _PERSONAL]] * 2
  for _ in range(3):
    output = process.next(state, states, toy_problems.padded(_CLIENTS))
    state, states = output.state, output.client_states
    trained = []
    for client, personal in zip(_CLIENTS, own):
      body = np.empty_like(_BODY)
      body[:, _PERSONAL], body[:, ~_PERSONAL] = personal, shared
      of_client = head
      for _ in range(2):
        of_body, of_head = _gradients(client, body, of_client)
        body, of_client = body - 0.1 * of_body, of_client - 0.1 * of_head
      trained.append((body, of_client))
    shared = np.average(
      [body[:, ~_PERSONAL] for body, _ in trained], axis=0, weights=[6, 20]
    )
    head = np.average([h for _, h in trained], axis=0, weights=[6, 20])
    own = [body[:, _PERSONAL] for body, _ in trained]
    kernels = toy_problems.kernels(state.global_weights)
    np.testing.assert_allclose(kernels['body'], shared, rtol=1e-4)
    np.testing.assert_allclose(kernels['head'], head, rtol=1e-4)
    for client_state, personal in zip(states, own):
      # What is not personal is not kept.
      assert list(client_state.local) == ['body/kernel']
      np.testing.assert_allclose(
        client_state.local['body/kernel'], personal, rtol=1e-4
      )


def test_a_new_client_fits_its_personal_elements_only():
  process = _process()
  client = _CLIENTS[0]
  personal = process.personalize(
    process.initialize(),
    process.initialize_client_state(0),
    toy_problems.padded([client])[0],
  )
  body = _BODY.copy()
  for _ in range(2):
    of_body, _ = _gradients(client, body, _HEAD)
    body[:, _PERSONAL] -= 0.1 * of_body[:, _PERSONAL]
  kernels = toy_problems.kernels(personal.weights)
  np.testing.assert_array_equal(kernels['head'], _HEAD)
  np.testing.assert_array_equal(
    kernels['body'][:, ~_PERSONAL], _BODY[:, ~_PERSONAL]
  )
  np.testing.assert_allclose(kernels['body'], body, rtol=1e-4)


def test_by_default_half_of_the_last_hidden_layer_is_personal():
  process = fed_split.build_fed_split(toy_problems.classifier())
  local = process.initialize_client_state(0).local
  weights = toy_problems.classifier().initial_weights
  assert list(local) == ['dense_1/kernel', 'dense_1/bias']
  np.testing.assert_array_equal(
    local['dense_1/kernel'], weights['dense_1/kernel'][:, 2:]
  )


@pytest.mark.parametrize(
  'chosen, message',
  [
    ('dense_2', 'dense_1, head'),
    ('dense_1:4', 'of dense_1 from 0 to 3'),
    ('dense_1:a', 'dense_1:0-49'),
  ],
)
def test_wrong_elements_are_refused_early(chosen, message):
  with pytest.raises(ValueError, match=message):
    fed_split.build_fed_split(
      toy_problems.classifier(),
      fed_split.FedSplitHParams(personal_elements=chosen),
    )
