import functools

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.core import personalization
from tff_pfl.methods import fed_rep, registry

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(7)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_CLIENTS = [
  toy_problems.regression_examples(n, 4, 3, seed=n) for n in (5, 10, 40)
]
_HPARAMS = fed_rep.FedRepHParams(
  num_head_steps=4,
  num_body_steps=3,
  head_learning_rate=0.1,
  body_learning_rate=0.05,
  momentum=0.5,
  batch_size=None,
)


@functools.cache
def _build(hparams=_HPARAMS, **options):
  model = toy_problems.linear_network(_BODY, _HEAD)
  return registry.build('fed_rep', model, hparams, **options)


def _train_head(client, body, head, num_steps=4):
  return toy_problems.descended_together(
    body, head, client, num_steps, 0.1, 0.5, trained=(False, True)
  )[1]


def _train_body(client, body, head, num_steps=3):
  return toy_problems.descended_together(
    body, head, client, num_steps, 0.05, 0.5, trained=(True, False)
  )[0]


def _assert_state(state, states, body, heads):
  toy_problems.assert_kernels(state.global_weights, body=body)
  for client_state, head in zip(states, heads):
    toy_problems.assert_kernels(client_state.local, head=head)


def test_rounds_are_those_of_algorithm_1_and_go_on_from_the_heads():
  cohorts = [(0, 1), (1, 2), (0, 2)]
  body, heads = _BODY, [_HEAD] * 3
  for cohort, (state, states, _) in zip(
    cohorts, toy_problems.rounds(_build(), _CLIENTS, cohorts)
  ):
    clients, bodies = [_CLIENTS[i] for i in cohort], []
    for i, client in zip(cohort, clients):
      heads[i] = _train_head(client, body, heads[i])
      bodies.append(_train_body(client, body, heads[i]))
    body = toy_problems.weighted_mean(bodies, clients)
    _assert_state(state, states, body, heads)


def test_metrics_are_those_of_the_body_steps():
  _, _, metrics = toy_problems.train(_build(), _CLIENTS[:1])
  client = _CLIENTS[0]
  head = _train_head(client, _BODY, _HEAD)
  losses = []
  for num_steps in range(_HPARAMS.num_body_steps):
    body = _train_body(client, _BODY, head, num_steps=num_steps)
    losses.append(np.mean((client.x @ body @ head - client.y) ** 2))
  assert metrics['loss'] == pytest.approx(np.mean(losses), rel=1e-4)
  body = _train_body(client, _BODY, head)
  assert metrics['update_norm'] == pytest.approx(
    np.linalg.norm(_BODY - body), rel=1e-4
  )


@pytest.mark.parametrize(
  'new_client_epochs', [pytest.param(None, marks=pytest.mark.slow), 9]
)
def test_new_client_fits_a_head_on_the_frozen_body(new_client_epochs):
  process = _build(
    personalization=personalization.Personalization(
      new_client_epochs=new_client_epochs
    )
  )
  state, _, _ = toy_problems.train(process, _CLIENTS[:2])
  body = state.global_weights['body/kernel']
  num_steps = 4 if new_client_epochs is None else new_client_epochs
  head = _train_head(_CLIENTS[2], body, _HEAD, num_steps)
  weights = toy_problems.new_client(process, state, _CLIENTS[2]).weights
  np.testing.assert_array_equal(weights['body/kernel'], body)
  toy_problems.assert_kernels(weights, head=head)
