import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.methods import toy_problems
from tff_pfl.core import aggregators, client_examples, training_options
from tff_pfl.methods import registry

pytestmark = pytest.mark.usefixtures('runtime')

_DATA = toy_problems.padded(
  toy_problems.labeled_examples(n, seed=n) for n in (11, 25)
)
_NO_DATA = toy_problems.padded([toy_problems.labeled_examples(0, 0)])


def _first_round(process, data=_DATA):
  return process.next(
    process.initialize(),
    process.initialize_client_states(list(range(len(data)))),
    data,
  )


def _all_finite(values):
  return all(np.isfinite(value).all() for value in tf.nest.flatten(values))


@functools.cache
def _with_mean(name):
  return _first_round(registry.build(name, toy_problems.classifier()))


@pytest.mark.parametrize(
  'name', ['fed_avg', pytest.param('fed_rep', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
  'aggregator', ['mean', 'robust', 'secure', 'compressed']
)
def test_every_named_mean_is_that_of_harmless_updates(aggregator, name):
  process = registry.build(
    name,
    toy_problems.classifier(),
    aggregator=aggregators.make_aggregator(aggregator),
  )
  output = _first_round(process)
  expected = _with_mean(name)
  # Small updates are neither clipped nor zeroed; sums of integers round.
  toy_problems.assert_close(
    output.state.global_weights, expected.state.global_weights, atol=1e-5
  )
  toy_problems.assert_same(output.client_states, expected.client_states)
  second = process.next(output.state, output.client_states, _DATA)
  assert second.state.round_number == 2
  assert toy_problems.differ(
    second.state.global_weights, output.state.global_weights
  )
  assert ('aggregator' in second.metrics) == (aggregator != 'mean')
  if aggregator != 'mean':
    assert second.metrics['aggregator']['zeroed_count'] == 0
  # A cohort without data: the model stays, and no metric is 0 / 0.
  empty = process.next(
    second.state, second.client_states, [_NO_DATA[0]] * len(_DATA)
  )
  toy_problems.assert_same(
    empty.state.global_weights, second.state.global_weights
  )
  assert empty.metrics['update_norm'] == 0
  # Nobody trained, so there is no loss to report; all else is numbers.
  unknown = [empty.metrics.pop(name) for name in ('loss', 'accuracy')]
  assert np.isnan(unknown).all()
  assert _all_finite(empty.metrics)


@pytest.mark.parametrize('aggregator', aggregators.AGGREGATORS)
def test_method_without_global_weights_takes_any_aggregator(aggregator):
  process = registry.build(
    'local_only',
    toy_problems.classifier(),
    aggregator=aggregators.make_aggregator(aggregator),
  )
  assert (
    tff.structure.name_list(process.next.type_signature.result.metrics.member)[
      -1
    ]
    == 'non_finite_clients'
  )


def test_robust_aggregator_zeroes_an_outlying_update():
  process = registry.build(
    'fed_avg',
    toy_problems.classifier(),
    aggregator=aggregators.make_aggregator('robust'),
  )
  outlying = toy_problems.labeled_examples(20, 0)
  outlying.x[:] *= 1e4
  output = _first_round(process, [*_DATA, client_examples.padded(outlying)])
  assert output.metrics['aggregator']['zeroed_count'] == 1
  assert output.metrics['clients'] == 3


def test_unweighted_aggregator_ignores_numbers_of_examples():
  unweighted = registry.build(
    'fed_avg',
    toy_problems.classifier(),
    aggregator=tff.aggregators.UnweightedMeanFactory(),
  )
  uniform = registry.build(
    'fed_avg', toy_problems.classifier(), client_weighting='uniform'
  )
  toy_problems.assert_close(
    _first_round(unweighted).state.global_weights,
    _first_round(uniform).state.global_weights,
  )


def test_nested_measurements_are_found_in_the_metrics():
  factory = tff.aggregators.clipping_factory(
    1e-4, tff.aggregators.MeanFactory(), clipped_count_sum_factory=None
  )
  process = registry.build(
    'fed_avg', toy_problems.classifier(), aggregator=factory
  )
  output = _first_round(process)
  assert output.metrics['aggregator']['clipped_count'] == 2
  assert output.metrics['aggregator']['clipping_norm'] == pytest.approx(1e-4)
  assert output.metrics['update_norm'] <= 1.001e-4


@pytest.mark.parametrize(
  ('option', 'value', 'error'),
  [
    ('aggregator', 'mean', TypeError),
    ('aggregator', aggregators.make_aggregator, TypeError),
    ('server_optimizer', keras.optimizers.SGD(1.0), TypeError),
    ('personalization', 'head', TypeError),
    ('server_schedule', 'cosine:100', TypeError),
    ('client_weighting', 'equal', ValueError),
    ('seed', 2**63, ValueError),
  ],
)
def test_wrong_option_is_refused_by_name(option, value, error):
  with pytest.raises(error, match=f'`{option}`'):
    registry.build('fed_rep', toy_problems.classifier(), **{option: value})


def test_any_64_bit_seed_is_taken():
  process = registry.build('fed_avg', toy_problems.classifier(), seed=-(2**63))
  assert process.initialize().seed == -(2**63)


def test_clients_of_large_index_have_work_of_their_own():
  process = registry.build('local_only', toy_problems.classifier())
  output = process.next(
    process.initialize(),
    process.initialize_client_states([1, 1 + 2**32]),
    [_DATA[0]] * 2,
  )
  assert toy_problems.differ(
    output.client_states[0].local, output.client_states[1].local
  )


_KERNEL = np.array([[0.5], [-1.0]], np.float32)
_LINEAR = [toy_problems.regression_examples(n, 2, 1, seed=n) for n in (4, 9)]


def _halved(rounds_done):
  return 0.5 ** tf.cast(rounds_done, tf.float32)


@pytest.mark.parametrize(
  'options',
  [
    {
      'training': training_options.TrainingOptions(
        learning_rate_schedule=_halved
      )
    },
    {'server_schedule': _halved},
    {
      'server_schedule': _halved,
      # Of which the first step is as long as without.
      'server_optimizer': tff.learning.optimizers.build_sgdm(1.0, 1e-30),
    },
  ],
)
def test_rates_fall_by_round(options):
  process = registry.build(
    'fed_avg',
    toy_problems.linear_network(None, _KERNEL),
    toy_problems.hparams_for(
      'fed_avg', num_steps=1, batch_size=None, learning_rate=0.1, momentum=0.0
    ),
    **options,
  )
  state, _, _ = toy_problems.train(process, _LINEAR, num_rounds=3)
  expected = _KERNEL
  for rate in (0.1, 0.05, 0.025):
    slopes = [
      toy_problems.squared_error_gradient(expected, client)
      for client in _LINEAR
    ]
    expected = expected - rate * toy_problems.weighted_mean(slopes, _LINEAR)
  toy_problems.assert_kernels(state.global_weights, head=expected)


def test_new_clients_train_at_the_full_rate_with_weight_decay():
  def new_client(schedule, weight_decay):
    process = registry.build(
      'fed_per',
      toy_problems.linear_network(np.eye(2, dtype=np.float32), _KERNEL),
      toy_problems.hparams_for('fed_per', batch_size=None),
      training=training_options.TrainingOptions(
        weight_decay=weight_decay, learning_rate_schedule=schedule
      ),
    )
    state, _, _ = toy_problems.train(process, _LINEAR)
    return toy_problems.new_client(
      process, process.initialize(), _LINEAR[0]
    ).weights, state.global_weights

  plain, _ = new_client(None, 0.0)
  stopped, kept = new_client(lambda rounds_done: 0.0, 0.0)
  decayed, _ = new_client(None, 10.0)
  toy_problems.assert_kernels(kept, body=np.eye(2))
  toy_problems.assert_same(stopped, plain)
  heads = [np.linalg.norm(w['head/kernel']) for w in (plain, decayed)]
  assert heads[1] < 0.9 * heads[0]
