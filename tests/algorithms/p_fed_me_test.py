import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import p_fed_me
from tff_pfl.client import phases

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (6, 9)]


def _process(**changes):
  options = {
    name: changes.pop(name) for name in ('server_optimizer',) if name in changes
  }
  return p_fed_me.build_p_fed_me(
    toy_problems.linear_network(None, _INITIAL),
    p_fed_me.PFedMeHParams(
      **{
        'num_steps': 2,
        'batch_size': None,
        'learning_rate': 0.02,
        'proximal_strength': 3.0,
        'num_inner_steps': 4,
        'inner_learning_rate': 0.1,
        **changes,
      }
    ),
    **options,
  )


def _solve(w, client, num_steps):
  theta = w
  for _ in range(num_steps):
    slope = toy_problems.squared_error_gradient(theta, client)
    theta = theta - 0.1 * (slope + 3.0 * (theta - w))
  return theta


def _round(w, num_inner_steps=4):
  models = []
  for client in _CLIENTS:
    own = w
    for _ in range(2):
      theta = _solve(own, client, num_inner_steps)
      own = own - 0.02 * 3.0 * (own - theta)
    models.append(own)
  return np.mean(models, axis=0)


def _head(weights):
  return toy_problems.kernels(weights)['head']


def test_rounds_by_hand():
  state, _, _ = toy_problems.train(_process(), _CLIENTS, 3)
  expected = _INITIAL
  for _ in range(3):
    expected = _round(expected)
  np.testing.assert_allclose(_head(state.global_weights), expected, rtol=1e-5)


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
  np.testing.assert_allclose(
    _head(state.global_weights),
    _INITIAL - 0.02 * 3 * (_INITIAL - theta),
    rtol=1e-5,
  )


def test_server_mixes_by_its_learning_rate():
  process = _process(server_optimizer=phases.build_optimizer('sgd', 0.25))
  state, _, _ = toy_problems.train(process, _CLIENTS)
  np.testing.assert_allclose(
    _head(state.global_weights),
    0.75 * _INITIAL + 0.25 * _round(_INITIAL),
    rtol=1e-5,
  )


def test_clients_are_scored_with_their_solved_personal_models():
  process = _process(num_adaptation_epochs=6)
  state, states, _ = toy_problems.train(process, _CLIENTS)
  w = _head(state.global_weights)
  for client_state, client in zip(states, _CLIENTS):
    (data,) = toy_problems.padded([client])
    personal = process.personalize(state, client_state, data).weights
    np.testing.assert_allclose(_head(personal), _solve(w, client, 6), rtol=1e-5)


@pytest.mark.parametrize(
  'changes',
  [
    {'proximal_strength': 0.0},
    {'num_inner_steps': 0},
    {'inner_learning_rate': 0.0},
    {'num_adaptation_epochs': 0},
  ],
)
def test_impossible_hyperparameters_are_refused(changes):
  with pytest.raises(ValueError, match=f'`{next(iter(changes))}`'):
    p_fed_me.PFedMeHParams(**changes)
