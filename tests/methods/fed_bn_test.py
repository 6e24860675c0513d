import logging

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import registry

pytestmark = pytest.mark.usefixtures('runtime')

_TRAINING = dict(num_epochs=2, learning_rate=0.1, batch_size=5)
_CLIENTS = [toy_problems.labeled_examples(n, n) for n in (13, 24)]
_NORMALIZATION = [
  'norm/beta',
  'norm/gamma',
  'norm/moving_mean',
  'norm/moving_variance',
]


def _build(name, model):
  return registry.build(name, model, **_TRAINING, seed=4)


@pytest.fixture(name='normalized', scope='module')
def _normalized():
  keras.utils.set_random_seed(3)
  return toy_problems.classifier_from(toy_problems.dropout_and_normalization())


def test_all_of_batch_normalization_is_local_and_nothing_else(normalized):
  process = _build('fed_bn', normalized)
  state, states, _ = toy_problems.train(process, _CLIENTS)
  assert sorted(states[0].local) == _NORMALIZATION
  assert not set(state.global_weights) & set(_NORMALIZATION)
  for name in _NORMALIZATION:
    assert toy_problems.differ(states[0].local[name], states[1].local[name])
    assert toy_problems.differ(
      states[0].local[name], normalized.initial_weights[name]
    )


def test_first_round_is_that_of_fed_avg_but_for_the_normalization(normalized):
  process = _build('fed_bn', normalized)
  averaged = _build('fed_avg', normalized)
  state, states, _ = toy_problems.train(process, _CLIENTS)
  whole, _, _ = toy_problems.train(averaged, _CLIENTS)
  for name, value in whole.global_weights.items():
    if name in _NORMALIZATION:
      value_of_clients = toy_problems.weighted_mean(
        [s.local[name] for s in states], _CLIENTS
      )
      np.testing.assert_allclose(value, value_of_clients, rtol=1e-4, atol=1e-6)
    else:
      np.testing.assert_array_equal(state.global_weights[name], value)


def test_without_batch_normalization_it_says_that_it_is_fed_avg(caplog):
  model = toy_problems.classifier()
  with caplog.at_level(logging.WARNING, logger='absl'):
    _build('fed_bn', model)
  assert 'no batch normalization, so fed_bn is fed_avg' in caplog.text
