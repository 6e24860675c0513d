import dataclasses
import functools

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import fed_rep
from tff_pfl.templates import personalization

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
  return fed_rep.build_fed_rep(model, hparams, **options)


def _output_gradient(client, body, head):
  """Of the loss, the mean over examples and outputs, to the outputs."""
  return 2 * (client.x @ body @ head - client.y) / client.y.size


def _train_head(client, body, head, num_steps=4):
  velocity = 0
  for _ in range(num_steps):
    gradient = (client.x @ body).T @ _output_gradient(client, body, head)
    velocity = 0.5 * velocity + gradient
    head = head - 0.1 * velocity
  return head


def _train_body(client, body, head, num_steps=3):
  velocity = 0
  for _ in range(num_steps):
    gradient = client.x.T @ _output_gradient(client, body, head) @ head.T
    velocity = 0.5 * velocity + gradient
    body = body - 0.05 * velocity
  return body


def _reference_round(body, heads, cohort, weights):
  """Algorithm 1 with full batches: the new body, and all heads."""
  heads = dict(heads)
  bodies = []
  for i in cohort:
    heads[i] = _train_head(_CLIENTS[i], body, heads[i])
    bodies.append(_train_body(_CLIENTS[i], body, heads[i]))
  return np.average(bodies, axis=0, weights=weights), heads


def _run(process, cohorts):
  """The last server state and all client states after rounds of cohorts."""
  state = process.initialize()
  states = dict(enumerate(process.initialize_client_states([0, 1, 2])))
  for cohort in cohorts:
    output = process.next(
      state,
      [states[i] for i in cohort],
      toy_problems.padded(_CLIENTS[i] for i in cohort),
    )
    state = output.state
    states.update(zip(cohort, output.client_states))
  return state, states


def _assert_state(state, states, body, heads):
  np.testing.assert_allclose(
    toy_problems.kernels(state.global_weights)['body'], body, rtol=1e-4
  )
  for i, head in heads.items():
    np.testing.assert_allclose(
      toy_problems.kernels(states[i].local)['head'], head, rtol=1e-4
    )


def test_rounds_are_those_of_algorithm_1_and_go_on_from_the_heads():
  state, states = _run(_build(), [(0, 1), (1, 2), (0, 2)])
  body, heads = _BODY, dict.fromkeys(range(3), _HEAD)
  for cohort, weights in (
    ((0, 1), [5, 10]),
    ((1, 2), [10, 40]),
    ((0, 2), [5, 40]),
  ):
    body, heads = _reference_round(body, heads, cohort, weights)
  _assert_state(state, states, body, heads)


def test_without_head_epochs_the_body_is_averaged_under_the_fixed_head():
  hparams = dataclasses.replace(
    _HPARAMS, num_head_steps=None, num_head_epochs=0
  )
  state, states = _run(_build(hparams), [(0, 1)])
  bodies = [_train_body(client, _BODY, _HEAD) for client in _CLIENTS[:2]]
  _assert_state(
    state,
    states,
    np.average(bodies, axis=0, weights=[5, 10]),
    dict.fromkeys(range(3), _HEAD),
  )


def test_without_body_epochs_the_body_stays():
  hparams = dataclasses.replace(
    _HPARAMS, num_body_steps=None, num_body_epochs=0
  )
  state, states = _run(_build(hparams), [(0, 1)])
  heads = {i: _train_head(_CLIENTS[i], _BODY, _HEAD) for i in (0, 1)}
  _assert_state(state, states, _BODY, {**heads, 2: _HEAD})


def test_metrics_are_those_of_the_body_steps():
  process = _build()
  output = process.next(
    process.initialize(),
    process.initialize_client_states([0]),
    toy_problems.padded(_CLIENTS[:1]),
  )
  client = _CLIENTS[0]
  head = _train_head(client, _BODY, _HEAD)
  losses = []
  for num_steps in range(_HPARAMS.num_body_steps):
    body = _train_body(client, _BODY, head, num_steps=num_steps)
    losses.append(np.mean((client.x @ body @ head - client.y) ** 2))
  assert output.metrics['loss'] == pytest.approx(np.mean(losses), rel=1e-4)
  body = _train_body(client, _BODY, head)
  assert output.metrics['update_norm'] == pytest.approx(
    np.linalg.norm(_BODY - body), rel=1e-4
  )


@pytest.mark.parametrize('new_client_epochs', [None, 9])
def test_new_client_fits_a_head_on_the_frozen_body(new_client_epochs):
  process = _build(
    personalization=personalization.Personalization(
      new_client_epochs=new_client_epochs
    )
  )
  state, states = _run(process, [(0, 1)])
  body = toy_problems.kernels(state.global_weights)['body']
  num_steps = 4 if new_client_epochs is None else new_client_epochs
  head = _train_head(_CLIENTS[2], body, _HEAD, num_steps)
  personal = process.personalize(
    state, states[2], toy_problems.padded(_CLIENTS[2:])[0]
  )
  kernels = toy_problems.kernels(personal.weights)
  np.testing.assert_array_equal(kernels['body'], body)
  np.testing.assert_allclose(kernels['head'], head, rtol=1e-4)


def test_model_without_a_body_is_refused():
  model = toy_problems.linear_network(None, _HEAD)
  with pytest.raises(ValueError, match='fed_rep to share'):
    fed_rep.build_fed_rep(model)


@pytest.mark.parametrize(
  'field',
  [
    {'num_head_epochs': -1},
    {'num_body_epochs': -1},
    {'num_head_steps': 0},
    {'num_body_steps': 0},
    {'head_learning_rate': 0.0},
    {'body_learning_rate': -1.0},
    {'momentum': 1.0},
    {'optimizer': 'adamw'},
    {'batch_size': 0},
  ],
)
def test_hyperparameters_out_of_range_are_refused(field):
  with pytest.raises(ValueError, match='Expected'):
    fed_rep.FedRepHParams(**field)
