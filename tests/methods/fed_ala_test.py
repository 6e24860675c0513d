import functools

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_ala

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(3)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in (6, 20)]


@functools.cache
def _process():
  return toy_problems.full_batches(
    'fed_ala',
    toy_problems.linear_network(_BODY, _HEAD),
    mixing_learning_rate=20.0,
    mixing_data_share=1.0,
    num_mixing_epochs=2,
    num_epochs=2,
    learning_rate=0.1,
  )


def _learned(body, head, own, mixing, client):
  for _ in range(2):
    start = own + (head - own) * mixing
    slope = toy_problems.gradients(body, start, client)[1] * (head - own)
    mixing = np.clip(mixing - 20 * slope, 0, 1)
  return mixing


def test_rounds_by_hand():
  process = _process()
  body, head = _BODY, _HEAD
  own, mixing = [_HEAD, _HEAD], [np.ones_like(_HEAD)] * 2
  for state, states, _ in toy_problems.rounds(process, _CLIENTS, [(0, 1)] * 3):
    trained = []
    for i, client in enumerate(_CLIENTS):
      mixing[i] = _learned(body, head, own[i], mixing[i], client)
      start = own[i] + (head - own[i]) * mixing[i]
      trained.append(
        toy_problems.descended_together(body, start, client, 2, 0.1)
      )
    bodies, own = zip(*trained)
    body = toy_problems.weighted_mean(bodies, _CLIENTS)
    head = toy_problems.weighted_mean(own, _CLIENTS)
    toy_problems.assert_kernels(state.global_weights, body=body, head=head)
    for i, client_state in enumerate(states):
      toy_problems.assert_kernels(client_state.local['own'], head=own[i])
      toy_problems.assert_kernels(
        client_state.local['mixing'], atol=1e-5, head=mixing[i]
      )
  # Some are between the bounds, and some at them.
  assert len(np.unique(mixing)) > 3
  assert {0, 1} < set(np.unique(mixing))
  models = toy_problems.personal_models(process, state, states)
  for i, weights in enumerate(models):
    start = own[i] + (head - own[i]) * mixing[i]
    toy_problems.assert_kernels(weights, body=body, head=start)


def test_new_client_mixes_the_global_head_with_one_that_it_trains():
  process, client = _process(), _CLIENTS[0]
  own = toy_problems.descended(
    lambda head: toy_problems.gradients(_BODY, head, client)[1], _HEAD, 2, 0.1
  )
  mixing = _learned(_BODY, _HEAD, own, np.ones_like(_HEAD), client)
  new = toy_problems.new_client(process, process.initialize(), client)
  toy_problems.assert_kernels(
    new.weights, body=_BODY, head=own + (_HEAD - own) * mixing
  )


@pytest.mark.parametrize(
  ('number', 'wanted'), [(0, 0), (1, 1), (4, 3), (10, 8)]
)
def test_a_share_of_the_examples_is_drawn_in_their_order(number, wanted):
  client = toy_problems.regression_examples(number, 1, 1, seed=number)
  (data,) = toy_problems.padded([client])
  drawn = set()
  for seed in ([0, 0], [0, 1]):
    some = fed_ala.share_of(data, 0.8, seed)
    assert some.num_examples == wanted
    rows = [
      client.x.tolist().index(x) for x in some.x[:wanted].numpy().tolist()
    ]
    assert rows == sorted(set(rows))
    drawn.add(tuple(rows))
  assert number < 10 or len(drawn) == 2
