"""Batch normalization whose moving statistics stay on the clients."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import client_examples, local_statistics
from tff_pfl.datasets import examples
from tff_pfl.methods import lg_fed_avg, registry
from tff_pfl.models import split_model

pytestmark = pytest.mark.usefixtures('runtime')

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
    client_examples.padded(client)
    for client in toy_problems.examples_for(name, clients)
  ]


def _train(name, num_rounds=2, num_clients=2, **options):
  """The process, the server's state, clients' states and personal weights."""
  model = toy_problems.model_for(name, _model())
  process = registry.build(name, model, **options)
  clients = _clients(name)[:num_clients]
  state = process.initialize()
  states = process.initialize_client_states(list(range(num_clients)))
  for _ in range(num_rounds):
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


def test_fed_avg_that_keeps_all_of_it_is_fed_bn():
  *_, found = _train('fed_avg', statistics='local_all')
  *_, expected = _train('fed_bn')
  for client in range(2):
    _assert_equal(found[client], expected[client])


def test_clients_share_the_weights_but_not_the_statistics():
  process, state, _, (a, b) = _train('fed_avg', statistics='local')
  assert not set(_MOVING) & set(state.global_weights)
  for name in a:
    assert np.array_equal(a[name], b[name]) == (name not in _MOVING)
  without, *_ = _train('fed_avg', num_rounds=0)
  assert (
    without.bytes_per_round.down - process.bytes_per_round.down == 2 * 4 * 4
  )


@pytest.mark.parametrize(
  'name', [pytest.param('fed_rep', marks=pytest.mark.slow), 'fed_dar']
)
def test_rounds_of_several_parts_keep_them(name):
  """With a head of one's own; with two exchanges."""
  _, state, states, (a, b) = _train(name, statistics='local')
  assert not set(_MOVING) & set(state.global_weights)
  for moving in _MOVING:
    assert not np.array_equal(a[moving], b[moving])
    np.testing.assert_array_equal(
      a[moving], states[0].local['statistics'][moving]
    )


def test_a_new_client_takes_those_of_its_examples():
  process, state, _, _ = _train('fed_avg', statistics='local')
  (newcomer,) = process.initialize_client_states([7])
  client = _clients(sizes=(9,))[0]
  weights = process.personalize(state, newcomer, client).weights
  before = client.x[:9] @ weights['dense/kernel'] + weights['dense/bias']
  np.testing.assert_allclose(
    weights['norm/moving_mean'], np.mean(before, axis=0), rtol=1e-4, atol=1e-5
  )
  np.testing.assert_allclose(
    weights['norm/moving_variance'], np.var(before, axis=0), rtol=1e-4
  )


def test_without_examples_statistics_stay():
  model = _model()
  client = _clients(sizes=(5,))[0]._replace(num_examples=tf.constant(0))
  found = local_statistics.statistics_of(
    model, model.initial_weights, client, tf.constant([1, 2])
  )
  _assert_equal(found, split_model.select(model.initial_weights, _MOVING))


def test_frozen_statistics_stay():
  model = _model(trainable=False)
  found = local_statistics.statistics_of(
    model, model.initial_weights, _clients(sizes=(5,))[0], tf.constant([1, 2])
  )
  assert not found


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


def test_programs_fine_tune_new_clients_that_have_statistics_alone():
  process, *_ = _train('fed_avg', num_rounds=0, statistics='local')
  assert process.has_local_weights and not process.trains_new_clients
  # Nobody has a model with the initial statistics.
  assert not process.has_global_model


@pytest.mark.parametrize(
  'name, options, words',
  [
    ('scaffold', {}, 'whose server knows more'),
    ('fed_avg', {'stateless': True}, 'keep nothing between rounds'),
    ('knn_per', {}, 'keep nothing between rounds'),
  ],
)
def test_scales_are_not_kept_where_that_cannot_be(name, options, words):
  with pytest.raises(ValueError, match=f'local or global for {name}.*{words}'):
    registry.build(name, _model(), statistics='local_all', **options)


@pytest.mark.parametrize('name', ['ifca', 'fed_split'])
def test_methods_without_one_network_refuse(name):
  with pytest.raises(ValueError, match=f'`statistics` to be global for {name}'):
    _train(name, statistics='local')


def test_separate_models_by_domain_refuse():
  with pytest.raises(ValueError, match='global for separate_fed_avg'):
    _train('separate_fed_avg', statistics='local')


def test_a_network_without_batch_normalization_refuses():
  with pytest.raises(ValueError, match='has no batch normalization'):
    registry.build('fed_avg', toy_problems.classifier(), statistics='local')
