import numpy as np
import pytest

from tests.methods import toy_problems

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (6, 6)]


def _process(num_steps, strength):
  return toy_problems.full_batches(
    'fed_mtl',
    toy_problems.linear_network(None, _INITIAL),
    num_steps=num_steps,
    learning_rate=0.05,
    coupling_strength=strength,
  )


def _models(states):
  return [toy_problems.kernels(s.local)['head'] for s in states]


def test_rounds_by_hand():
  state, states, _ = toy_problems.train(_process(2, 0.6), _CLIENTS, 3)
  mean, models = _INITIAL, [_INITIAL, _INITIAL]
  for _ in range(3):
    for i, client in enumerate(_CLIENTS):
      for _ in range(2):
        slope = toy_problems.squared_error_gradient(models[i], client)
        models[i] = models[i] - 0.05 * (slope + 2 * 0.6 * (models[i] - mean))
    mean = np.mean(models, axis=0)
  np.testing.assert_allclose(_models(states), models, rtol=1e-5)
  toy_problems.assert_kernels(state.global_weights, rtol=1e-5, head=mean)


@pytest.mark.slow
def test_converges_to_the_minimum_of_the_coupled_problem():
  strength = 0.6
  _, states, _ = toy_problems.train(_process(1, strength), _CLIENTS, 400)
  # The normal equations of sum_i f_i(w_i) + lambda |w_i - mean|^2 together.
  eye = np.eye(2)
  hessians = [2 * c.x.T @ c.x / len(c.y) for c in _CLIENTS]
  targets = [2 * c.x.T @ c.y[:, np.newaxis] / len(c.y) for c in _CLIENTS]
  system = np.block(
    [
      [hessians[0] + strength * eye, -strength * eye],
      [-strength * eye, hessians[1] + strength * eye],
    ]
  )
  expected = np.linalg.solve(system, np.concatenate(targets)).reshape([2, 2, 1])
  np.testing.assert_allclose(_models(states), expected, rtol=1e-3, atol=1e-4)
