import functools

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.datasets import examples
from tff_pfl.methods import fed_rod, registry

pytestmark = pytest.mark.usefixtures('runtime')

_BODY = np.array([[0.3, -0.2], [0.1, 0.5]], np.float32)
_HEAD = np.array([[1.0, -0.5, 0.2], [-2.0, 0.4, 0.7]], np.float32)
_RATE = 0.1


def _model(body=_BODY, head=_HEAD):
  """The classifier with the scores `x @ body @ head`."""
  network = keras.Sequential(
    [
      keras.layers.Input([2]),
      keras.layers.Dense(2, use_bias=False, name='body'),
      keras.layers.Dense(head.shape[1], use_bias=False, name='head'),
    ]
  )
  network.set_weights([body, head])
  return toy_problems.classifier_from(network)


def _client(labels, seed):
  x = np.random.default_rng(seed).normal(size=[len(labels), 2])
  return examples.Examples(x.astype(np.float32), np.array(labels, np.int32))


# The second client has no example of class 0.
_CLIENTS = [_client([0, 0, 0, 1, 2], 1), _client([1, 2, 2, 1], 2)]


@functools.cache
def _trained():
  """The process, and the states after two rounds of two full-batch steps."""
  process = toy_problems.full_batches(
    'fed_rod', _model(), num_steps=2, learning_rate=_RATE
  )
  return process, *toy_problems.train(process, _CLIENTS, 2)[:2]


def _error(scores, y):
  """The gradient of the mean cross-entropy in the scores."""
  scores = np.exp(scores - scores.max(axis=1, keepdims=True))
  return (scores / scores.sum(axis=1, keepdims=True) - np.eye(3)[y]) / len(y)


def test_steps_by_hand():
  _, state, states = _trained()
  body, head, personal = _BODY, _HEAD, [np.zeros([2, 3])] * 2
  for _ in range(2):
    models = []
    for i, client in enumerate(_CLIENTS):
      w, g, x, y = body, head, client.x, client.y
      with np.errstate(divide='ignore'):
        shift = np.log(np.bincount(y, minlength=3))
      for _ in range(2):
        z = x @ w
        balanced = _error(z @ g + shift, y)
        empirical = _error(z @ (g + personal[i]), y)
        w, g = w - _RATE * x.T @ balanced @ g.T, g - _RATE * z.T @ balanced
        personal[i] = personal[i] - _RATE * z.T @ empirical
      models.append((w, g))
    body, head = (
      toy_problems.weighted_mean(part, _CLIENTS) for part in zip(*models)
    )
  toy_problems.assert_kernels(
    state.global_weights, atol=1e-6, body=body, head=head
  )
  for client_state, expected in zip(states, personal):
    toy_problems.assert_kernels(client_state.local, atol=1e-6, head=expected)


def test_personal_model_has_the_sum_of_both_heads():
  process, state, states = _trained()
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


def test_of_two_classes_with_one_score_the_shift_is_of_the_log_odds():
  network = keras.Sequential(
    [keras.layers.Input([2]), keras.layers.Dense(1, name='head')]
  )
  model = toy_problems.keras_bridge.from_keras(
    network,
    head_layers=['head'],
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
  )
  (data,) = toy_problems.padded([_client([0, 1, 1, 1], 0)])
  np.testing.assert_allclose(
    fed_rod.class_shift(model, data), [np.log(3)], rtol=1e-6
  )


def test_head_that_is_not_linear_is_refused():
  network = keras.Sequential(
    [
      keras.layers.Input([2]),
      keras.layers.Dense(3, 'softmax', name='head'),
    ]
  )
  with pytest.raises(ValueError, match='single dense layer without'):
    registry.build('fed_rod', toy_problems.classifier_from(network))
