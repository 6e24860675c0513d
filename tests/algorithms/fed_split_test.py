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
  shared, head = _BODY[:, ~_PERSONAL], _HEAD
  own = [_BODY[:, _PERSONAL]] * 2
  for state, states, _ in toy_problems.rounds(
    _process(), _CLIENTS, [(0, 1)] * 3
  ):
    trained = []
    for client, personal in zip(_CLIENTS, own):
      body = np.empty_like(_BODY)
      body[:, _PERSONAL], body[:, ~_PERSONAL] = personal, shared
      trained.append(
        toy_problems.descended_together(body, head, client, 2, 0.1)
      )
    bodies, heads = zip(*trained)
    shared = toy_problems.weighted_mean(
      [body[:, ~_PERSONAL] for body in bodies], _CLIENTS
    )
    head = toy_problems.weighted_mean(heads, _CLIENTS)
    own = [body[:, _PERSONAL] for body in bodies]
    toy_problems.assert_kernels(state.global_weights, body=shared, head=head)
    for client_state, personal in zip(states, own):
      # What is not personal is not kept.
      assert list(client_state.local) == ['body/kernel']
      toy_problems.assert_kernels(client_state.local, body=personal)


def test_a_new_client_fits_its_personal_elements_only():
  process = _process()
  client = _CLIENTS[0]
  personal = toy_problems.new_client(process, process.initialize(), client)
  body = toy_problems.descended(
    lambda body: toy_problems.gradients(body, _HEAD, client)[0] * _PERSONAL,
    _BODY,
    num_steps=2,
    learning_rate=0.1,
  )
  kernels = toy_problems.kernels(personal.weights)
  np.testing.assert_array_equal(kernels['head'], _HEAD)
  np.testing.assert_array_equal(
    kernels['body'][:, ~_PERSONAL], _BODY[:, ~_PERSONAL]
  )
  toy_problems.assert_kernels(personal.weights, body=body)


def test_by_default_half_of_the_last_hidden_layer_is_personal():
  process = fed_split.build_fed_split(toy_problems.classifier())
  local = process.initialize_client_state(0).local
  weights = toy_problems.classifier().initial_weights
  assert list(local) == ['dense_1/kernel', 'dense_1/bias']
  np.testing.assert_array_equal(
    local['dense_1/kernel'], weights['dense_1/kernel'][:, 2:]
  )


def test_wrong_elements_are_refused_early():
  hparams = fed_split.FedSplitHParams(personal_elements='dense_1:4')
  with pytest.raises(ValueError, match='of dense_1 from 0 to 3'):
    fed_split.build_fed_split(toy_problems.classifier(), hparams)
