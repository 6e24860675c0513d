import keras
import numpy as np

from tests.methods import toy_problems
from tff_pfl.methods import fed_rod
from tff_pfl.models import keras_bridge

_RATE = 0.1
# The second client has no example of class 0.
_CLIENTS = [
  toy_problems.client_of_classes([0, 0, 0, 1, 2], 4, 1),
  toy_problems.client_of_classes([1, 2, 2, 1], 4, 2),
]


def test_rounds_by_hand():
  process = toy_problems.full_batches(
    'fed_rod',
    toy_problems.linear_classifier(),
    num_steps=2,
    learning_rate=_RATE,
  )
  slopes = toy_problems.class_slopes

  def rounds():
    body, head = toy_problems.BODY, toy_problems.HEAD
    personal = [np.zeros_like(head)] * 2
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
      z, y, fitted = _CLIENTS[0].x @ body, _CLIENTS[0].y, np.zeros_like(head)
      for _ in range(2):
        fitted = fitted - _RATE * z.T @ slopes(z @ (head + fitted), y)
      yield {
        'global_weights': {'body': body, 'head': head},
        'local': [{'head': p} for p in personal],
        # The sums of both heads.
        'models': [{'head': head + p} for p in personal],
        'new': [{'body': body, 'head': head + fitted}],
      }

  state, _, _ = toy_problems.check_rounds(process, _CLIENTS, rounds())
  toy_problems.assert_same(
    process.model_without_data(state), state.global_weights
  )


def test_of_two_classes_with_one_score_the_shift_is_of_the_log_odds():
  model = keras_bridge.from_keras(
    keras.Sequential(
      [keras.layers.Input([2]), keras.layers.Dense(1, name='head')]
    ),
    head_layers=['head'],
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
  )
  client = toy_problems.client_of_classes([0, 1, 1, 1], 2, 0)
  (data,) = toy_problems.padded([client])
  np.testing.assert_allclose(
    fed_rod.class_shift(model, data), [np.log(3)], rtol=1e-6
  )
