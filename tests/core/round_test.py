import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  client_work,
  objectives,
  private_mean,
  process_options,
)
from tff_pfl.core import round as round_lib
from tff_pfl.methods import registry
from tff_pfl.models import split_model

_CLIENTS = [toy_problems.labeled_examples(n, seed=n) for n in (11, 25)]
_DATA = toy_problems.padded(_CLIENTS)
_NO_DATA = toy_problems.padded([toy_problems.labeled_examples(0, 0)])


def _build(name='fed_avg', **options):
  return registry.build(name, toy_problems.classifier(), **options)


@functools.cache
def _with(aggregator):
  """A process with a named aggregator, and its first two rounds."""
  process = _build(aggregator=aggregator)
  return process, *toy_problems.rounds(process, _CLIENTS, [(0, 1)] * 2)


@pytest.mark.parametrize('aggregator', ['mean', 'robust', 'secure'])
def test_every_named_mean_is_that_of_harmless_updates(aggregator):
  process, first, second = _with(aggregator)
  _, expected, _ = _with('mean')
  # Small updates are neither clipped nor zeroed; sums of integers round.
  toy_problems.assert_close(
    first[0].global_weights, expected[0].global_weights, atol=1e-5
  )
  toy_problems.assert_same(first[1], expected[1])
  state, states, metrics = second
  assert toy_problems.differ(state.global_weights, first[0].global_weights)
  assert ('aggregator' in metrics) == (aggregator != 'mean')
  if aggregator != 'mean':
    assert metrics['aggregator']['zeroed_count'] == 0
  # A cohort without data: the model stays, and no metric is 0 / 0.
  empty = process.next(state, states, _NO_DATA * 2)
  toy_problems.assert_same(empty.state.global_weights, state.global_weights)
  assert empty.metrics['update_norm'] == 0
  # Nobody trained, so there is no loss to report; all else is numbers.
  unknown = [empty.metrics.pop(name) for name in ('loss', 'accuracy')]
  assert np.isnan(unknown).all()
  assert np.isfinite(tf.nest.flatten(empty.metrics)).all()


def test_secure_aggregator_sums_metrics_and_counts_by_secure_sums_too():
  process, (*_, metrics), _ = _with('secure')
  _, (*_, expected), _ = _with('mean')
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  names = ('examples', 'clients', 'non_finite_clients')
  assert [metrics[name] for name in names] == [36, 2, 0]
  assert metrics['clipped_sums'] == 0
  # Sums of two clients, each rounded by up to 2^20 / 2^32, over 36 examples.
  for name in ('loss', 'accuracy'):
    assert metrics[name] == pytest.approx(expected[name], abs=3e-5)


def test_robust_aggregator_zeroes_an_outlying_update():
  outlying = toy_problems.labeled_examples(20, 0)
  outlying.x[:] *= 1e4
  process, *_ = _with('robust')
  *_, metrics = toy_problems.train(process, [_CLIENTS[0], outlying])
  assert metrics['aggregator']['zeroed_count'] == 1
  assert metrics['clients'] == 2


@pytest.mark.parametrize(
  ('option', 'value', 'error'),
  [
    ('aggregator', 'krum', ValueError),
    ('server_optimizer', keras.optimizers.SGD(1.0), TypeError),
    ('personalization', 'head', TypeError),
    ('fine_tune_epochs', 3, TypeError),
    ('server_learning_rate_schedule', 'cosine', ValueError),
    ('seed', 2**63, ValueError),
  ],
)
def test_wrong_option_is_refused_by_name(option, value, error):
  with pytest.raises(error, match=f'`{option}`'):
    _build('fed_rep', **{option: value})


def test_clients_of_large_index_have_work_of_their_own_and_seeds_are_64_bit():
  # Nothing is global, of which this aggregator cannot take a mean.
  process = _build('local_only', seed=-(2**63), aggregator='geometric_median')
  assert process.initialize().seed == -(2**63)
  output = process.next(
    process.initialize(),
    process.initialize_client_states([1, 1 + 2**32]),
    [_DATA[0]] * 2,
  )
  assert toy_problems.differ(
    output.client_states[0].local, output.client_states[1].local
  )


def _halved(rounds_done):
  return 0.5 ** tf.cast(rounds_done, tf.float32)


# Of which the first step is as long as without.
_MOMENTUM = tff.learning.optimizers.build_sgdm(1.0, 1e-30)


@pytest.mark.parametrize(
  ('options', 'factor'),
  [
    (
      {
        'learning_rate_schedule': _halved,
        # Without noise and clipping it is the unweighted mean.
        'aggregator': private_mean.PrivateMeanFactory(0.0, 2, 'fixed:inf'),
      },
      0.25,
    ),
    ({'server_optimizer': _MOMENTUM, 'client_weighting': 'uniform'}, 0.5),
  ],
)
def test_rates_fall_by_round_and_clients_count_alike(options, factor):
  clients = toy_problems.CLIENTS
  options = {'server_learning_rate_schedule': _halved, **options}

  def rounds():
    weight = toy_problems.KERNEL
    for rate in 0.1 * factor ** np.arange(3):
      slopes = [toy_problems.squared_error_gradient(weight, c) for c in clients]
      weight = weight - rate * np.mean(slopes, axis=0)
      yield {'global_weights': {'head': weight}}

  process = toy_problems.linear(
    'fed_avg', options, num_steps=1, learning_rate=0.1
  )
  toy_problems.check_rounds(process, clients, rounds())


def test_new_clients_train_at_the_full_rate_with_weight_decay():
  training = {
    'weight_decay': 0.5,
    'learning_rate_schedule': lambda rounds_done: 0.0,
  }
  body, client = toy_problems.BODY, toy_problems.DEEP_CLIENTS[0]
  process = toy_problems.deep_linear(
    'fed_per', training, num_epochs=4, learning_rate=0.05
  )
  head = toy_problems.descended(
    lambda head: toy_problems.gradients(body, head, client)[1] + 0.5 * head,
    toy_problems.HEAD,
    num_steps=4,
    learning_rate=0.05,
  )
  expected = {'global_weights': {'body': body}, 'new': [{'head': head}]}
  toy_problems.check_rounds(process, toy_problems.DEEP_CLIENTS, [expected])


@pytest.mark.parametrize(
  'optimizer', ['sgd', tff.learning.optimizers.build_adamw(0.1)]
)
def test_global_weights_without_an_update_do_not_change(optimizer):
  model = toy_problems.classifier()
  hparams = toy_problems.hparams_for('fed_avg')
  head_names = model.weight_names(model.head_layers)

  def train(client):
    head = split_model.select(client.received, head_names)
    return client.result(client.fit_head(head, hparams.phase()), initial=head)

  process = round_lib.build_personalized_process(
    'head_only',
    client_work.global_weights_work(model, client_work.Exchange(train)),
    process_options.ProcessOptions(server_optimizer=optimizer),
    hparams,
    seed=0,
    cohorts=None,
    num_rounds=None,
  )
  *_, (state, _, _) = toy_problems.rounds(process, _CLIENTS, [(0, 1)] * 2)
  for name, value in model.initial_weights.items():
    is_changed = np.any(state.global_weights[name] != value)
    assert is_changed == (name in head_names)


@pytest.mark.parametrize('order', [1, -1])
def test_states_that_a_method_returns_may_be_in_another_order(order):
  model = toy_problems.classifier()
  hparams = toy_problems.hparams_for('fed_avg')

  def add(state, added):
    items = [(name, state[name] + added[name]) for name in ('a', 'b')]
    return dict(items[::order])

  def train(client):
    trained = client.sgd(
      objectives.joint_loss(model), client.received, hparams.phase()
    )
    local = add(client.local, {'a': 1.0, 'b': 10.0})
    return client.result(trained, local=local, report=local)

  def server(state, update, report, cohort):
    del cohort
    return update, add(state.algorithm, report)

  zeros = {'a': np.float32(0), 'b': np.float32(0)}
  process = round_lib.build_personalized_process(
    'counting',
    client_work.global_weights_work(
      model,
      client_work.Exchange(train, server),
      initial_local=zeros,
      initial_algorithm=zeros,
    ),
    process_options.ProcessOptions(),
    hparams,
    seed=0,
    cohorts=None,
    num_rounds=None,
  )
  *_, (state, states, _) = toy_problems.rounds(process, _CLIENTS, [(0, 1)] * 2)
  assert [dict(one.local) for one in states] == [{'a': 2, 'b': 20}] * 2
  # The counts after the first round and after the second one.
  assert dict(state.algorithm) == {'a': 1 + 2, 'b': 10 + 20}


def test_layers_train_although_their_names_end_like_a_frozen_one():
  def dense(trainable):
    return keras.layers.Dense(5, name='dense', trainable=trainable)

  inputs = keras.layers.Input([5])
  block = keras.Sequential([keras.layers.Input([5]), dense(True)], name='block')
  head = keras.layers.Dense(3, name='head')
  network = keras.Sequential([inputs, dense(False), block, head])
  model = toy_problems.classifier_from(network)
  assert model.statistics == {'dense/kernel', 'dense/bias'}
  process = registry.build('fed_avg', model)
  clients = [toy_problems.labeled_examples(20, seed=0)]
  state, _, _ = toy_problems.train(process, clients)
  for name, before in model.initial_weights.items():
    is_same = np.array_equal(state.global_weights[name], before)
    assert is_same == (name in model.statistics)
