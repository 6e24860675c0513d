import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import client as client_lib
from tff_pfl.methods import l2gd, registry

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 2, 1, n) for n in (4, 12)]


def _hparams(**changes):
  return l2gd.L2gdHParams(
    **{
      'num_steps': 1,
      'batch_size': None,
      'learning_rate': 0.05,
      'momentum': 0.0,
      'aggregation_probability': 0.4,
      'coupling_strength': 2.0,
      **changes,
    }
  )


def _coins(hparams, seed, num_rounds):
  """The server's coins of the first rounds."""

  @tf.function
  def coin(round_number):
    return l2gd.is_aggregation_round(
      client_lib.Broadcast(round_number, np.int64(seed), {}, {}), hparams
    )

  return [bool(coin(tf.constant(r))) for r in range(num_rounds)]


def _linear(hparams, seed=0, num_rounds=1):
  process = registry.build(
    'l2gd', toy_problems.linear_network(None, _INITIAL), hparams, seed=seed
  )
  state, states, metrics = toy_problems.train(process, _CLIENTS, num_rounds)
  models = [toy_problems.kernels(s.local)['head'] for s in states]
  return toy_problems.kernels(state.global_weights)['head'], models, metrics


def test_coin_falls_as_often_as_it_should_and_is_the_seeds():
  coins = _coins(_hparams(), 1, 400)
  assert 0.3 < np.mean(coins) < 0.5
  assert coins == _coins(_hparams(), 1, 400)
  assert coins != _coins(_hparams(), 2, 400)


def test_rounds_by_hand():
  hparams, seed, num_rounds = _hparams(), 3, 8
  coins = _coins(hparams, seed, num_rounds)
  assert True in coins and False in coins
  mean, models = _INITIAL, [_INITIAL, _INITIAL]
  for aggregates in coins:
    if aggregates:
      # eta lambda / p, eta being what a client's own gradient is scaled by.
      pull = 0.05 * 2.0 / 0.4
      models = [model - pull * (model - mean) for model in models]
    else:
      models = [
        model - 0.05 / 0.6 * toy_problems.squared_error_gradient(model, client)
        for model, client in zip(models, _CLIENTS)
      ]
    mean = np.mean(models, axis=0)
  actual_mean, actual, _ = _linear(hparams, seed, num_rounds)
  np.testing.assert_allclose(actual_mean, mean, rtol=1e-5)
  np.testing.assert_allclose(actual, models, rtol=1e-5)


def test_aggregation_round_has_no_training_loss():
  hparams = _hparams()
  seed = next(s for s in range(20) if _coins(hparams, s, 1)[0])
  _, _, metrics = _linear(hparams, seed)
  assert np.isnan(metrics['loss'])
  assert metrics['clients'] == 2


def test_strongest_coupling_replaces_models_by_their_mean():
  # eta lambda / p = 1.
  hparams = _hparams(coupling_strength=8.0)
  assert hparams.pull == pytest.approx(1)
  seed = next(s for s in range(50) if _coins(hparams, s, 2) == [False, True])
  mean, models, _ = _linear(hparams, seed, 2)
  after_local, local_models, _ = _linear(hparams, seed, 1)
  assert not np.allclose(*local_models)
  np.testing.assert_allclose(models, [after_local, after_local], rtol=1e-6)
  np.testing.assert_allclose(mean, after_local, rtol=1e-6)
