"""Batch normalization whose moving statistics stay on the clients."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import local_statistics, padding
from tff_pfl.datasets import examples
from tff_pfl.methods import lg_fed_avg, registry
from tff_pfl.models import split_model

_MOVING = ('norm/moving_mean', 'norm/moving_variance')


@functools.cache
def _model(trainable=True):
  network = keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, name='dense'),
      keras.layers.BatchNormalization(
        momentum=0.8, name='norm', trainable=trainable
      ),
      keras.layers.ReLU(),
      keras.layers.Dense(3, name='head'),
    ]
  )
  return toy_problems.classifier_from(network)


def _clients(name='fed_avg', sizes=(20, 13)):
  rng = np.random.default_rng(0)
  clients = [
    examples.Examples(
      rng.normal(2 * i, 1 + i, [size, 5]).astype(np.float32),
      rng.integers(0, 3, size).astype(np.int32),
    )
    for i, size in enumerate(sizes)
  ]
  return [
    padding.padded(client)
    for client in toy_problems.examples_for(name, clients)
  ]


@functools.cache
def _train(name, **options):
  """The process, the server's state, clients' states and personal weights."""
  model = toy_problems.model_for(name, _model())
  process = registry.build(name, model, **options)
  clients = _clients(name)
  state = process.initialize()
  states = process.initialize_client_states([0, 1])
  for _ in range(2):
    state, states, _ = process.next(state, states, clients)
  weights = [
    process.personalize(state, client_state, client).weights
    for client_state, client in zip(states, clients)
  ]
  return process, state, states, weights


def _assert_equal(found, expected):
  assert set(found) == set(expected)
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)


def test_clients_share_the_weights_but_not_the_statistics():
  process, state, _, (a, b) = _train('fed_avg', statistics='local')
  assert not set(_MOVING) & set(state.global_weights)
  for name in a:
    assert np.array_equal(a[name], b[name]) == (name not in _MOVING)
  # Kernels and biases, scales and offsets; down with the round and a seed.
  up = 4 * (5 * 4 + 4 + 2 * 4 + 4 * 3 + 3)
  assert process.bytes_per_round == (up + 4 + 8, up)
  # Programs fine-tune new clients that have statistics alone.
  assert process.has_local_weights and not process.trains_new_clients
  # Nobody has a model with the initial statistics.
  assert not process.has_global_model


@pytest.mark.slow
def test_rounds_of_several_parts_keep_them():
  """With two exchanges and a head of one's own."""
  _, state, states, (a, b) = _train('fed_pac', statistics='local')
  assert not set(_MOVING) & set(state.global_weights)
  for moving in _MOVING:
    assert not np.array_equal(a[moving], b[moving])
    np.testing.assert_array_equal(
      a[moving], states[0].local['statistics'][moving]
    )


@pytest.mark.parametrize('scale', [1, 3e4])
def test_a_new_client_takes_those_of_its_examples(scale):
  process, state, _, _ = _train('fed_avg', statistics='local')
  (newcomer,) = process.initialize_client_states([7])
  client = _clients(sizes=(9,))[0]
  client = client._replace(x=client.x * scale)
  weights = process.personalize(state, newcomer, client).weights
  before = client.x[:9] @ weights['dense/kernel'] + weights['dense/bias']
  np.testing.assert_allclose(
    weights['norm/moving_mean'], np.mean(before, axis=0), rtol=1e-4, atol=1e-5
  )
  np.testing.assert_allclose(
    weights['norm/moving_variance'], np.var(before, axis=0), rtol=1e-4
  )


@pytest.mark.parametrize('trainable', [True, False])
def test_without_examples_or_frozen_statistics_stay(trainable):
  model = _model(trainable)
  (client,) = _clients(sizes=(5,))
  if trainable:
    client = client._replace(num_examples=tf.constant(0))
  actual = local_statistics.statistics_of(
    model, model.initial_weights, client, tf.constant([1, 2])
  )
  kept = _MOVING if trainable else ()
  _assert_equal(actual, split_model.select(model.initial_weights, kept))


def test_what_a_new_client_trains_below_decides_its_statistics():
  # The first layer is the client's own, below a global one.
  hparams = lg_fed_avg.LgFedAvgHParams(global_depth=2)
  process = registry.build('lg_fed_avg', _model(), hparams, statistics='local')
  (newcomer,) = process.initialize_client_states([7])
  client = _clients(sizes=(9,))[0]
  personal = process.personalize(process.initialize(), newcomer, client)
  expected = local_statistics.statistics_of(
    _model(), personal.weights, client, tf.constant([1, 2])
  )
  kept = split_model.select(personal.weights, _MOVING)
  _assert_equal(kept, expected)


@pytest.mark.parametrize(
  ('name', 'options', 'words'),
  [
    ('scaffold', {}, 'local or global for scaffold'),
    ('fed_avg', {'stateless': True}, 'local or global for fed_avg'),
    ('ifca', {'statistics': 'local'}, 'global for ifca'),
    ('fed_split', {'statistics': 'local'}, 'global for fed_split'),
    ('separate_fed_avg', {'statistics': 'local'}, 'for separate_fed_avg'),
  ],
)
def test_they_are_not_kept_where_that_cannot_be(name, options, words):
  model = toy_problems.model_for(name, _model())
  with pytest.raises(ValueError, match=f'`statistics`.*{words}'):
    registry.build(name, model, **{'statistics': 'local_all', **options})
