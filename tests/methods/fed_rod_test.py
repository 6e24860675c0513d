import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_rod
from tff_pfl.models import keras_bridge

_RATE = 0.1
# The second client has no example of class 0.
_CLIENTS = [
  toy_problems.client_of_classes([0, 0, 0, 1, 2], 4, 1),
  toy_problems.client_of_classes([1, 2, 2, 1], 4, 2),
]


@pytest.fixture(name='process', scope='module')
def _process():
  return toy_problems.full_batches(
    'fed_rod',
    toy_problems.linear_classifier(),
    num_steps=2,
    learning_rate=_RATE,
  )


def test_rounds_by_hand(process):
  def rounds():
    body, head = toy_problems.BODY, toy_problems.HEAD
    personal = [np.zeros_like(head)] * 2
    slopes = toy_problems.class_slopes
    for _ in range(2):
      models = []
      for i, client in enumerate(_CLIENTS):
        w, g, x, y = body, head, client.x, client.y
        with np.errstate(divide='ignore'):
          shift = np.log(np.bincount(y, minlength=3))
        for _ in range(2):
          z = x @ w
          balanced = slopes(z @ g + shift, y)
          empirical = slopes(z @ (g + personal[i]), y)
          w, g = w - _RATE * x.T @ balanced @ g.T, g - _RATE * z.T @ balanced
          personal[i] = personal[i] - _RATE * z.T @ empirical
        models.append((w, g))
      body, head = (
        toy_problems.weighted_mean(part, _CLIENTS) for part in zip(*models)
      )
      yield {
        'global_weights': {'body': body, 'head': head},
        'local': [{'head': p} for p in personal],
      }

  toy_problems.check_rounds(process, _CLIENTS, rounds())


def test_personal_model_has_the_sum_of_both_heads(process):
  state, states, _ = toy_problems.train(process, _CLIENTS)
  shared = state.global_weights['head/kernel']
  personal = states[0].local['head/kernel']
  (weights,) = toy_problems.personal_models(process, state, states[:1])
  np.testing.assert_array_equal(weights['head/kernel'], shared + personal)
  toy_problems.assert_same(
    process.model_without_data(state), state.global_weights
  )
  new = toy_problems.new_client(process, state, _CLIENTS[1])
  fitted = new.client_state.local['head/kernel']
  assert np.all(fitted != 0)
  np.testing.assert_array_equal(new.weights['head/kernel'], shared + fitted)


def _with_head(*activation, outputs, loss):
  network = keras.Sequential(
    [
      keras.layers.Input([2]),
      keras.layers.Dense(outputs, *activation, name='head'),
    ]
  )
  return keras_bridge.from_keras(
    network, head_layers=['head'], loss=loss(from_logits=True)
  )


def test_of_two_classes_with_one_score_the_shift_is_of_the_log_odds():
  model = _with_head(outputs=1, loss=keras.losses.BinaryCrossentropy)
  client = toy_problems.client_of_classes([0, 1, 1, 1], 2, 0)
  (data,) = toy_problems.padded([client])
  np.testing.assert_allclose(
    fed_rod.class_shift(model, data), [np.log(3)], rtol=1e-6
  )
