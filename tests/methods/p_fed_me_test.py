import numpy as np
import pytest

from tests.methods import toy_problems

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (6, 9)]


def _process(**changes):
  return toy_problems.full_batches(
    'p_fed_me',
    toy_problems.linear_network(None, _INITIAL),
    learning_rate=0.02,
    proximal_strength=3.0,
    inner_learning_rate=0.1,
    **{'num_steps': 2, 'num_inner_steps': 4, **changes},
  )


def _solve(w, client, num_steps):
  return toy_problems.descended(
    lambda theta: (
      toy_problems.squared_error_gradient(theta, client) + 3.0 * (theta - w)
    ),
    w,
    num_steps,
    learning_rate=0.1,
  )


def _round(w):
  models = []
  for client in _CLIENTS:
    own = w
    for _ in range(2):
      theta = _solve(own, client, 4)
      own = own - 0.02 * 3.0 * (own - theta)
    models.append(own)
  return np.mean(models, axis=0)


def test_rounds_by_hand():
  state, _, _ = toy_problems.train(_process(), _CLIENTS, 3)
  expected = _INITIAL
  for _ in range(3):
    expected = _round(expected)
  toy_problems.assert_kernels(state.global_weights, rtol=1e-5, head=expected)


@pytest.mark.slow
def test_enough_inner_steps_give_the_gradient_of_the_moreau_envelope():
  state, _, _ = toy_problems.train(
    _process(num_inner_steps=40, num_steps=1), _CLIENTS[:1]
  )
  # The envelope of a quadratic in closed form.
  client = _CLIENTS[0]
  hessian = 2 * client.x.T @ client.x / len(client.y)
  target = 2 * client.x.T @ client.y[:, np.newaxis] / len(client.y)
  theta = np.linalg.solve(hessian + 3 * np.eye(2), target + 3 * _INITIAL)
  expected = _INITIAL - 0.02 * 3 * (_INITIAL - theta)
  toy_problems.assert_kernels(state.global_weights, rtol=1e-5, head=expected)


def test_clients_are_scored_with_their_solved_personal_models():
  process = _process(num_adaptation_epochs=6)
  state, states, _ = toy_problems.train(process, _CLIENTS)
  w = state.global_weights['head/kernel']
  for client_state, client in zip(states, _CLIENTS):
    (data,) = toy_problems.padded([client])
    personal = process.personalize(state, client_state, data).weights
    expected = _solve(w, client, 6)
    toy_problems.assert_kernels(personal, rtol=1e-5, head=expected)
