import numpy as np
import pytest

from tests.methods import toy_problems

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, seed=n) for n in (4, 12)]


@pytest.mark.parametrize('strength', [0.7, 3.0])
def test_steps_by_hand(strength):
  process = toy_problems.full_batches(
    'fed_prox',
    toy_problems.linear_network(None, _INITIAL),
    num_steps=3,
    learning_rate=0.1,
    proximal_strength=strength,
  )
  models = [
    toy_problems.descended(
      lambda weight, client=client: (
        toy_problems.squared_error_gradient(weight, client)
        + strength * (weight - _INITIAL)
      ),
      _INITIAL,
      num_steps=3,
      learning_rate=0.1,
    )
    for client in _CLIENTS
  ]
  state, _, _ = toy_problems.train(process, _CLIENTS)
  mean = toy_problems.weighted_mean(models, _CLIENTS)
  toy_problems.assert_kernels(state.global_weights, rtol=1e-5, head=mean)
