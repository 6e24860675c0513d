import numpy as np
import pytest

from tests.methods import toy_problems

_INITIAL, _CLIENTS = toy_problems.KERNEL, toy_problems.CLIENTS


def _solve(w, client, num_steps):
  return toy_problems.descended(
    lambda theta: (
      toy_problems.squared_error_gradient(theta, client) + 3.0 * (theta - w)
    ),
    *(w, num_steps, 0.1),
  )


def _process(**hparams):
  return toy_problems.linear(
    'p_fed_me',
    learning_rate=0.02,
    proximal_strength=3.0,
    inner_learning_rate=0.1,
    **hparams,
  )


def _round(w):
  models = []
  for client in _CLIENTS:
    own = w
    for _ in range(2):
      own = own - 0.02 * 3.0 * (own - _solve(own, client, 4))
    models.append(own)
  return np.mean(models, axis=0)


def test_rounds_by_hand_and_clients_scored_with_their_solved_models():
  def rounds():
    w = _INITIAL
    for _ in range(3):
      w = _round(w)
      yield {
        'global_weights': {'head': w},
        'new': [{'head': _solve(w, _CLIENTS[0], 6)}],
      }

  process = _process(num_steps=2, num_inner_steps=4, num_adaptation_epochs=6)
  toy_problems.check_rounds(process, _CLIENTS, rounds())


@pytest.mark.slow
def test_enough_inner_steps_give_the_gradient_of_the_moreau_envelope():
  client = _CLIENTS[0]
  process = _process(num_steps=1, num_inner_steps=40)
  state, _, _ = toy_problems.train(process, [client])
  # The envelope of a quadratic in closed form.
  hessian = 2 * client.x.T @ client.x / len(client.y)
  target = 2 * client.x.T @ client.y[:, np.newaxis] / len(client.y)
  theta = np.linalg.solve(hessian + 3 * np.eye(2), target + 3 * _INITIAL)
  np.testing.assert_allclose(
    state.global_weights['head/kernel'],
    _INITIAL - 0.02 * 3 * (_INITIAL - theta),
    rtol=1e-5,
  )
