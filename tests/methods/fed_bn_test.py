import logging

import keras
import numpy as np

from tests.methods import toy_problems
from tff_pfl.methods import registry

_TRAINING = dict(num_epochs=2, learning_rate=0.1, batch_size=5)
_CLIENTS = [toy_problems.labeled_examples(n, n) for n in (13, 24)]
_NORMALIZATION = [
  'norm/beta',
  'norm/gamma',
  'norm/moving_mean',
  'norm/moving_variance',
]


def _rounds(name, model, number, **options):
  """The process, and the server's and clients' states after each round."""
  process = registry.build(name, model, **_TRAINING, seed=4, **options)
  rounds = toy_problems.rounds(process, _CLIENTS, [(0, 1)] * number)
  return process, [(state, states) for state, states, _ in rounds]


def test_first_round_is_that_of_fed_avg_but_for_the_normalization():
  keras.utils.set_random_seed(3)
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  process, [(state, states), second] = _rounds('fed_bn', model, 2)
  _, [(whole, _)] = _rounds('fed_avg', model, 1)
  # All of it is local, and nothing else.
  assert sorted(states[0].local) == _NORMALIZATION
  assert set(state.global_weights) == set(whole.global_weights) - {
    *_NORMALIZATION
  }
  toy_problems.assert_same(
    dict(state.global_weights),
    {name: whole.global_weights[name] for name in state.global_weights},
  )
  for name in _NORMALIZATION:
    own = [client_state.local[name] for client_state in states]
    assert toy_problems.differ(own[0], own[1])
    assert toy_problems.differ(own[0], model.initial_weights[name])
    np.testing.assert_allclose(
      whole.global_weights[name],
      toy_problems.weighted_mean(own, _CLIENTS),
      rtol=1e-4,
      atol=1e-6,
    )

  # It is FedAvg whose clients keep all of it.
  keeping, [_, kept] = _rounds('fed_avg', model, 2, statistics='local_all')
  toy_problems.assert_same(
    toy_problems.personal_models(process, *second),
    toy_problems.personal_models(keeping, *kept),
  )


def test_without_batch_normalization_it_says_that_it_is_fed_avg(caplog):
  algorithm = registry.ALGORITHMS['fed_bn']
  with caplog.at_level(logging.WARNING, logger='absl'):
    algorithm.work(toy_problems.classifier(), algorithm.hparams())
  assert 'no batch normalization, so fed_bn is fed_avg' in caplog.text
