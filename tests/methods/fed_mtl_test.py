import numpy as np
import pytest

from tests.methods import toy_problems

_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (6, 6)]
_STRENGTH = 0.6


def _process(num_steps):
  return toy_problems.linear(
    'fed_mtl',
    num_steps=num_steps,
    learning_rate=0.05,
    coupling_strength=_STRENGTH,
  )


def test_rounds_by_hand():

  def rounds():
    mean = toy_problems.KERNEL
    models = [mean, mean]
    for _ in range(3):
      models = [
        toy_problems.descended(
          lambda w, client=client, mean=mean: (
            toy_problems.squared_error_gradient(w, client)
            + 2 * _STRENGTH * (w - mean)
          ),
          *(model, 2, 0.05),
        )
        for model, client in zip(models, _CLIENTS)
      ]
      mean = np.mean(models, axis=0)
      yield {
        'global_weights': {'head': mean},
        'local': [{'head': model} for model in models],
      }

  toy_problems.check_rounds(_process(2), _CLIENTS, rounds())


@pytest.mark.slow
def test_converges_to_the_minimum_of_the_coupled_problem():
  _, states, _ = toy_problems.train(_process(1), _CLIENTS, 400)
  # The normal equations of sum_i f_i(w_i) + lambda |w_i - mean|^2 together.
  coupling = _STRENGTH * np.kron([[1, -1], [-1, 1]], np.eye(2))
  for i, client in enumerate(_CLIENTS):
    block = slice(2 * i, 2 * i + 2)
    coupling[block, block] += 2 * client.x.T @ client.x / len(client.y)
  targets = [2 * c.x.T @ c.y[:, np.newaxis] / len(c.y) for c in _CLIENTS]
  expected = np.linalg.solve(coupling, np.concatenate(targets))
  actual = [state.local['head/kernel'] for state in states]
  np.testing.assert_allclose(
    np.concatenate(actual), expected, rtol=1e-3, atol=1e-4
  )
