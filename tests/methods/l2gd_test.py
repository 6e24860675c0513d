import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import client as client_lib
from tff_pfl.methods import l2gd

_CLIENTS = toy_problems.CLIENTS
_TRAINING = {
  'num_steps': 1,
  'learning_rate': 0.05,
  'aggregation_probability': 0.4,
  'coupling_strength': 2.0,
}
_HPARAMS = toy_problems.hparams_for('l2gd', **_TRAINING)


def _coins(seed, num_rounds):
  """The server's coins of the first rounds."""

  @tf.function
  def coin(round_number):
    return l2gd.is_aggregation_round(
      client_lib.Broadcast(round_number, np.int64(seed), {}, {}), _HPARAMS
    )

  return [bool(coin(tf.constant(r))) for r in range(num_rounds)]


def test_coin_falls_as_often_as_it_should_and_is_the_seeds():
  coins = _coins(1, 400)
  assert 0.3 < np.mean(coins) < 0.5
  assert coins == _coins(1, 400)
  assert coins != _coins(2, 400)


# With the second, eta lambda / p = 1, models are replaced by their mean.
@pytest.mark.parametrize('strength', [2.0, 8.0])
def test_rounds_by_hand(strength):
  coins = _coins(3, 8)
  assert True in coins and False in coins
  process = toy_problems.linear(
    'l2gd', {'seed': 3}, **{**_TRAINING, 'coupling_strength': strength}
  )
  # eta being what a client's own gradient is scaled by.
  pull = 0.05 * strength / 0.4

  def rounds():
    mean = toy_problems.KERNEL
    models = [mean, mean]
    for aggregates in coins:
      if aggregates:
        models = [model - pull * (model - mean) for model in models]
      else:
        slopes = map(toy_problems.squared_error_gradient, models, _CLIENTS)
        models = [w - 0.05 / 0.6 * slope for w, slope in zip(models, slopes)]
      mean = np.mean(models, axis=0)
      yield {
        'global_weights': {'head': mean},
        'local': [{'head': model} for model in models],
      }

  *_, metrics = toy_problems.check_rounds(process, _CLIENTS, rounds())
  # A round of aggregation has no training loss.
  assert np.isnan(metrics['loss']) == coins[-1]
  assert metrics['clients'] == 2


def test_aggregation_round_has_no_training_loss():
  seed = next(s for s in range(20) if _coins(s, 1)[0])
  process = toy_problems.linear('l2gd', {'seed': seed}, **_TRAINING)
  _, _, metrics = toy_problems.train(process, _CLIENTS)
  assert np.isnan(metrics['loss']) and metrics['clients'] == 2
