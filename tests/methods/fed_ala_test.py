import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.methods import fed_ala, registry
from tff_pfl.models import keras_bridge

_BODY, _HEAD = toy_problems.BODY, toy_problems.HEAD
_CLIENTS = toy_problems.DEEP_CLIENTS


def _learned(body, head, own, mixing, client):
  for _ in range(2):
    start = own + (head - own) * mixing
    slope = toy_problems.gradients(body, start, client)[1] * (head - own)
    mixing = np.clip(mixing - 20 * slope, 0, 1)
  return mixing


def _new_client(body, head, client):
  """Mixes the global head with one that it trains."""
  own = toy_problems.descended(
    lambda head: toy_problems.gradients(body, head, client)[1], head, 2, 0.1
  )
  mixing = _learned(body, head, own, np.ones_like(head), client)
  return {'body': body, 'head': own + (head - own) * mixing}


def test_rounds_by_hand():
  process = toy_problems.deep_linear(
    'fed_ala',
    mixing_learning_rate=20.0,
    mixing_data_share=1.0,
    num_mixing_epochs=2,
    num_epochs=2,
    learning_rate=0.1,
  )

  def rounds():
    body, head = _BODY, _HEAD
    own, mixing = [_HEAD, _HEAD], [np.ones_like(_HEAD)] * 2
    for _ in range(3):
      trained = []
      for i, client in enumerate(_CLIENTS):
        mixing[i] = _learned(body, head, own[i], mixing[i], client)
        start = own[i] + (head - own[i]) * mixing[i]
        trained.append(
          toy_problems.descended_together(body, start, client, 2, 0.1)
        )
      bodies, own = zip(*trained)
      body = toy_problems.weighted_mean(bodies, _CLIENTS)
      head = toy_problems.weighted_mean(own, _CLIENTS)
      yield {
        'global_weights': {'body': body, 'head': head},
        'local': [
          {'own': {'head': h}, 'mixing': {'head': w}}
          for h, w in zip(own, mixing)
        ],
        'models': [
          {'body': body, 'head': h + (head - h) * w}
          for h, w in zip(own, mixing)
        ],
        'new': [_new_client(body, head, _CLIENTS[0])],
      }
    # Some are between the bounds, and some at them.
    assert len(np.unique(mixing)) > 3
    assert {0, 1} < set(np.unique(mixing))

  toy_problems.check_rounds(process, _CLIENTS, rounds(), atol=1e-5)


@pytest.mark.parametrize(
  ('number', 'wanted'), [(0, 0), (1, 1), (4, 3), (10, 8)]
)
def test_a_share_of_the_examples_is_drawn_in_their_order(number, wanted):
  client = toy_problems.regression_examples(number, 1, 1, seed=number)
  (data,) = toy_problems.padded([client])
  drawn = set()
  for seed in ([0, 0], [0, 1]):
    some = fed_ala.share_of(data, 0.8, seed)
    assert some.num_examples == wanted
    rows = [
      client.x.tolist().index(x) for x in some.x[:wanted].numpy().tolist()
    ]
    assert rows == sorted(set(rows))
    drawn.add(tuple(rows))
  assert number < 10 or len(drawn) == 2


def test_a_head_may_have_statistics_and_frozen_layers():
  network = keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, name='body'),
      keras.layers.BatchNormalization(name='norm'),
      keras.layers.Dense(4, name='frozen', trainable=False),
      keras.layers.Dense(3, name='head'),
    ]
  )
  model = keras_bridge.from_keras(
    network,
    head_layers=['norm', 'frozen', 'head'],
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False,
  )
  process = registry.build('fed_ala', model)
  client = toy_problems.labeled_examples(20, seed=0)
  personal = toy_problems.new_client(process, process.initialize(), client)
  before = model.initial_weights
  moved = {
    n for n in before if toy_problems.differ(before[n], personal.weights[n])
  }
  assert moved == {'norm/gamma', 'norm/beta', 'head/kernel', 'head/bias'}
