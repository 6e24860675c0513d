import dataclasses

import numpy as np
import pytest

from tests.algorithms import toy_problems
from tff_pfl.algorithms import fed_prox

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, seed=n) for n in (4, 12)]


def _head(process, **options):
  state, _, _ = toy_problems.train(process, _CLIENTS, **options)
  return toy_problems.kernels(state.global_weights)['head']


@pytest.mark.parametrize('strength', [0.7, 3.0])
def test_steps_by_hand(strength):
  process = fed_prox.build_fed_prox(
    toy_problems.linear_network(None, _INITIAL),
    fed_prox.FedProxHParams(
      num_steps=3,
      batch_size=None,
      learning_rate=0.1,
      momentum=0.0,
      proximal_strength=strength,
    ),
  )
  models = []
  for client in _CLIENTS:
    weight = _INITIAL
    for _ in range(3):
      slope = toy_problems.squared_error_gradient(weight, client)
      weight = weight - 0.1 * (slope + strength * (weight - _INITIAL))
    models.append(weight)
  np.testing.assert_allclose(
    _head(process), toy_problems.weighted_mean(models, _CLIENTS), rtol=1e-5
  )


@pytest.mark.parametrize('value', [-0.1, float('nan'), float('inf')])
def test_impossible_strengths_are_refused(value):
  with pytest.raises(ValueError, match='`proximal_strength`'):
    dataclasses.replace(fed_prox.FedProxHParams(), proximal_strength=value)
