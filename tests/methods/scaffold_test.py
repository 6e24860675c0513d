import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl import datasets
from tff_pfl.core import training_options
from tff_pfl.methods import fed_avg, registry, scaffold

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
# Alike in size and as unlike as can be in what they ask for.
_CLIENTS = [
  datasets.Examples(
    x=np.random.default_rng(seed).normal(size=[8, 2]).astype(np.float32)
    * np.float32(scale),
    y=np.full(8, target, np.float32),
  )
  for seed, scale, target in ((0, (1.5, 0.2), 3), (1, (0.2, 1.5), -3))
]


def _hparams(hparams, **changes):
  return hparams(
    **{
      'num_steps': 10,
      'batch_size': None,
      'learning_rate': 0.05,
      'momentum': 0.0,
      **changes,
    }
  )


def _head(weights):
  return toy_problems.kernels(weights)['head']


def _scaffold(schedule=None, **changes):
  return registry.build(
    'scaffold',
    toy_problems.linear_network(None, _INITIAL),
    _hparams(scaffold.ScaffoldHParams, **changes),
    training=training_options.TrainingOptions(learning_rate_schedule=schedule),
  )


@pytest.mark.parametrize('factor', [1.0, 0.5])
def test_rounds_by_hand(factor):
  num_steps, rate = 3, 0.05
  process = _scaffold(
    lambda rounds_done: factor ** tf.cast(rounds_done, tf.float32),
    num_steps=num_steps,
  )
  state, states, _ = toy_problems.train(process, _CLIENTS, num_rounds=3)
  x, c, c_i = _INITIAL, 0.0, [0.0, 0.0]
  for _ in range(3):
    models, new = [], []
    for client, own in zip(_CLIENTS, c_i):
      y = x
      for _ in range(num_steps):
        slope = toy_problems.squared_error_gradient(y, client)
        y = y - rate * (slope - own + c)
      models.append(y)
      new.append(own - c + (x - y) / (num_steps * rate))
    c = c + np.mean([b - a for a, b in zip(c_i, new)], axis=0)
    x, c_i = np.mean(models, axis=0), new
    rate *= factor
  toy_problems.assert_kernels(state.global_weights, head=x)
  toy_problems.assert_kernels(state.algorithm['control'], atol=1e-6, head=c)
  for client_state, expected in zip(states, c_i):
    toy_problems.assert_kernels(client_state.local['control'], head=expected)


@pytest.mark.slow
def test_reaches_the_optimum_where_fed_avg_is_biased():
  """A convex problem with clients that differ, and full participation."""
  # The minimum of the clients' mean loss, by its normal equations.
  hessian = np.mean([c.x.T @ c.x / len(c.y) for c in _CLIENTS], axis=0)
  target = np.mean(
    [c.x.T @ c.y[:, np.newaxis] / len(c.y) for c in _CLIENTS], axis=0
  )
  optimum = np.linalg.solve(hessian, target)
  fed = registry.build(
    'fed_avg',
    toy_problems.linear_network(None, _INITIAL),
    _hparams(fed_avg.FedAvgHParams),
    client_weighting='uniform',
  )

  def distance(process):
    state, _, _ = toy_problems.train(process, _CLIENTS, num_rounds=150)
    return np.linalg.norm(_head(state.global_weights) - optimum)

  assert distance(_scaffold()) < 1e-4
  assert distance(fed) > 0.01


def test_servers_control_is_the_mean_of_the_clients_that_took_part():
  cohorts = [(0,), (1,), (0, 1), (1,)]
  for state, states, _ in toy_problems.rounds(_scaffold(), _CLIENTS, cohorts):
    known = [s for s in states if s.num_rounds]
    np.testing.assert_allclose(
      _head(state.algorithm['control']),
      np.mean([_head(s.local['control']) for s in known], axis=0),
      rtol=1e-4,
      atol=1e-5,
    )
    assert state.algorithm['num_clients'] == len(known)


@pytest.mark.parametrize('num_clients', [None, 2])
def test_first_time_client_by_hand(num_clients):
  process = _scaffold(num_clients=num_clients, num_steps=3)
  (first, _, _), (second, _, _) = toy_problems.rounds(
    process, _CLIENTS, [(0,), (1,)]
  )
  y = _head(first.global_weights)
  # With N given the corrections of all clients add up to zero as c counts those
  # that did not come; without, as a newcomer has none.
  correction = _head(first.algorithm['control']) if num_clients else 0
  y = toy_problems.descended(
    lambda y: toy_problems.squared_error_gradient(y, _CLIENTS[1]) + correction,
    y,
    num_steps=3,
    learning_rate=0.05,
  )
  toy_problems.assert_kernels(second.global_weights, rtol=1e-5, head=y)


def test_given_number_of_clients_counts_those_that_did_not_come_as_zeros():
  process = _scaffold(num_clients=4)
  state, states, _ = toy_problems.train(process, _CLIENTS)
  np.testing.assert_allclose(
    _head(state.algorithm['control']),
    sum(_head(s.local['control']) for s in states) / 4,
    rtol=1e-5,
  )
