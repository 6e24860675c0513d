import numpy as np
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


def test_rounds_by_hand():
  coins = _coins(3, 8)
  assert True in coins and False in coins
  process = toy_problems.linear('l2gd', {'seed': 3}, **_TRAINING)

  def rounds():
    mean = toy_problems.KERNEL
    models = [mean, mean]
    for aggregates in coins:
      # eta being what a client's own gradient is scaled by.
      if aggregates:
        pull = 0.05 * 2 / 0.4
        models = [model - pull * (model - mean) for model in models]
      else:
        slopes = map(toy_problems.squared_error_gradient, models, _CLIENTS)
        models = [w - 0.05 / 0.6 * slope for w, slope in zip(models, slopes)]
      mean = np.mean(models, axis=0)
      yield {
        'global_weights': {'head': mean},
        'local': [{'head': model} for model in models],
        # A round of aggregation has no training loss.
        'metrics': {'clients': 2, **({'loss': np.nan} if aggregates else {})},
      }

  toy_problems.check_rounds(process, _CLIENTS, rounds())
