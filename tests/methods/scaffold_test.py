import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl import datasets

_INITIAL = toy_problems.KERNEL
# Alike in size and as unlike as can be in what they ask for.
_CLIENTS = [
  datasets.Examples(
    x=np.random.default_rng(seed).normal(size=[8, 2]).astype(np.float32)
    * np.float32(scale),
    y=np.full(8, target, np.float32),
  )
  for seed, scale, target in ((0, (1.5, 0.2), 3), (1, (0.2, 1.5), -3))
]
_slope = toy_problems.squared_error_gradient


def _process(name='scaffold', options=None, **changes):
  hparams = {'num_steps': 3, 'learning_rate': 0.05, **changes}
  return toy_problems.linear(name, options, **hparams)


@pytest.mark.parametrize('num_clients', [None, 4])
def test_rounds_by_hand(num_clients):
  process = _process(
    options={
      'learning_rate_schedule': lambda done: 0.5 ** tf.cast(done, tf.float32)
    },
    total_clients=num_clients,
  )
  cohorts = [(0,), (1,), (0, 1), (1,)]

  def rounds():
    x, c, c_i, rate = _INITIAL, 0.0 * _INITIAL, {}, 0.05
    for cohort in cohorts:
      models = []
      for i in cohort:
        # With N, those that never came count as zeros; without, a newcomer
        # makes plain steps.
        own = c_i.get(i, c if num_clients is None else 0.0)
        y = x
        for _ in range(3):
          y = y - rate * (_slope(y, _CLIENTS[i]) - own + c)
        models.append(y)
        c_i[i] = own - c + (x - y) / (3 * rate)
      x = np.mean(models, axis=0)
      c = sum(c_i.values()) / (num_clients or len(c_i))
      rate *= 0.5
      yield {
        'global_weights': {'head': x},
        'algorithm': {
          'control': {'head': c},
          'num_clients': num_clients or len(c_i),
        },
        'local': [
          {'control': {'head': c_i[i]}} if i in c_i else None for i in range(2)
        ],
      }

  toy_problems.check_rounds(process, _CLIENTS, rounds(), cohorts, atol=1e-5)


@pytest.mark.slow
def test_reaches_the_optimum_where_fed_avg_is_biased():
  """A convex problem with clients that differ, and full participation."""
  # The minimum of the clients' mean loss, by its normal equations.
  optimum = np.linalg.solve(
    np.mean([c.x.T @ c.x for c in _CLIENTS], axis=0),
    np.mean([c.x.T @ c.y[:, np.newaxis] for c in _CLIENTS], axis=0),
  )

  def distance(name, options=None):
    state, _, _ = toy_problems.train(
      _process(name, options, num_steps=10), _CLIENTS, 150
    )
    return np.linalg.norm(state.global_weights['head/kernel'] - optimum)

  assert distance('scaffold') < 1e-4
  assert distance('fed_avg', toy_problems.WEIGHTINGS['uniform']) > 0.01
