import collections

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl import tff_api as tff
from tff_pfl.core import aggregators, private_mean
from tff_pfl.methods import registry
from tff_pfl.runs import value_codec

# Of norms 5 and 1.
_VALUES = [
  collections.OrderedDict(a=np.float32([3, 0]), b=np.float32(4)),
  collections.OrderedDict(a=np.float32([0, -1]), b=np.float32(0)),
]


def _aggregation(**options):
  factory = private_mean.PrivateMeanFactory(clients_per_round=2, **options)
  return factory.create(
    tff.to_type(
      collections.OrderedDict(a=(np.float32, [2]), b=tff.TensorType(np.float32))
    )
  )


def _next(process, state=None, values=_VALUES):
  return process.next(process.initialize() if state is None else state, values)


def _clip_of(output):
  return output.measurements['dp_query_metrics']['clip']


def test_what_a_client_sends_is_clipped_together():
  result = _next(_aggregation(noise_multiplier=0.0, clip='fixed:2')).result
  # The first is (6 / 5, 0, 8 / 5), the second below the norm.
  np.testing.assert_allclose(result['a'], [0.6, -0.5], rtol=1e-6)
  np.testing.assert_allclose(result['b'], 0.8, rtol=1e-6)


def test_adaptive_norm_moves_towards_its_quantile():
  process = _aggregation(noise_multiplier=0.0, clip='adaptive:0.8')
  state, clip = None, 0.1
  small = collections.OrderedDict(a=np.float32([0, 0.05]), b=np.float32(0))
  # No norm is below 0.1, so it grows, by exp(0.2 * 0.8). Half of them are, then
  # all: it grows slowly, and falls.
  for values, step in (
    (_VALUES, 0.16),
    ([_VALUES[0], small], 0.06),
    ([small, small], -0.04),
  ):
    output = _next(process, state, values)
    state, clip = output.state, clip * np.exp(step)
    assert _clip_of(output) == pytest.approx(clip, rel=1e-6)


def test_a_client_that_sends_zeros_is_as_one_that_is_not_there():
  process = _aggregation(noise_multiplier=0.0, clip='adaptive:0.5')
  zeros = collections.OrderedDict(a=np.float32([0, 0]), b=np.float32(0))
  for values in ([_VALUES[0], zeros], _VALUES[:1]):
    clip = _clip_of(_next(process, values=values))
    assert clip == pytest.approx(0.1 * np.exp(0.05), rel=1e-6)


def test_noise_has_its_size_and_comes_from_seed_round_and_exchange():
  size = 20000
  nothing = [np.zeros([size], np.float32)] * 2

  def noise(num_rounds=1, **options):
    factory = private_mean.PrivateMeanFactory(
      3.0, clients_per_round=2, clip='fixed:0.5', **options
    )
    process = factory.create(tff.TensorType(np.float32, [size]))
    state = process.initialize()
    for _ in range(num_rounds):
      output = process.next(state, nothing)
      state = output.state
    return output.result

  draws = [noise(), noise(2), noise(seed=1), noise(number=1)]
  for draw in draws:
    # Of the sum 3 * 0.5, of the mean of two clients half of it.
    assert np.std(draw) == pytest.approx(0.75, rel=0.03)
    assert abs(np.mean(draw)) < 0.03
  assert np.max(np.abs(np.corrcoef(draws) - np.eye(4))) < 0.04
  np.testing.assert_array_equal(noise(2), draws[1])


def test_adaptive_noise_pays_for_that_of_the_norm():
  events = _next(_aggregation(noise_multiplier=1.5)).state.dp_event.events
  multipliers = [event.noise_multiplier for event in events]
  # Both sums together: 1 / z^2 = 1 / z_1^2 + 1 / z_2^2.
  assert sum(m**-2 for m in multipliers) == pytest.approx(1.5**-2, rel=1e-5)
  assert multipliers[0] == pytest.approx(1.5 * 2 / 3**0.5, rel=1e-5)


def test_states_of_private_aggregators_can_be_stored():
  for process in (
    _aggregation(noise_multiplier=1.0),
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      1.0, 2, 1.0
    ).create(tff.TensorType(np.float32, [2])),
  ):
    state = process.initialize()
    decoded = value_codec.decode(value_codec.encode(state), state)
    assert decoded.dp_event == state.dp_event


@pytest.mark.parametrize(
  ('argument', 'value'),
  [
    *(('clip', clip) for clip in ('1.0', 'fixed:-1', 'adaptive:1.5')),
    *(('clip', f'fixed:{norm}') for norm in ('inf', '1e39')),
    *(('noise_multiplier', z) for z in (1e-300, 1e7)),
  ],
)
def test_wrong_argument_is_refused_by_name(argument, value):
  with pytest.raises(ValueError, match=f'`{argument}`'):
    private_mean.PrivateMeanFactory(
      **{'noise_multiplier': 1.0, 'clients_per_round': 2, argument: value}
    )


_CLIENTS = [toy_problems.labeled_examples(n, seed=n) for n in (11, 25)]


def _trained(name='fed_avg', clients=_CLIENTS, **options):
  process = registry.build(name, toy_problems.classifier(), **options)
  return toy_problems.train(process, clients)


def test_without_training_metrics_only_the_noised_mean_leaves_clients():
  clients = [*_CLIENTS, toy_problems.labeled_examples(0, 0)]
  (plain, _, counted), (state, _, metrics) = (
    _trained(
      clients=clients,
      aggregator=private_mean.PrivateMeanFactory(0.5, 3, 'fixed:1'),
      training_metrics=which,
    )
    for which in ('plain', 'none')
  )
  toy_problems.assert_same(state.global_weights, plain.global_weights)
  assert (counted['clients'], counted['examples']) == (2, 36)
  # The client without examples is not told from others.
  assert (metrics['clients'], metrics['examples']) == (3, 0)
  assert np.isnan(metrics['loss']) and np.isfinite(counted['loss'])


def test_frozen_layers_are_not_sent_and_get_no_noise():
  network = keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Dense(4, name='frozen', trainable=False),
      keras.layers.Dense(3, name='head'),
    ]
  )
  model = toy_problems.classifier_from(network)
  private = private_mean.PrivateMeanFactory(1.0, 2, 'fixed:1')
  process = registry.build('fed_avg', model, aggregator=private)
  state, *_ = toy_problems.train(process, _CLIENTS)
  for name, value in model.initial_weights.items():
    same = np.array_equal(state.global_weights[name], value)
    assert same == (name in model.statistics)
  # The head's alone.
  assert process.bytes_per_round.up == 4 * (4 * 3 + 3)
  # A server of a method's own would move them.
  with pytest.raises(ValueError, match='`aggregator` .* move the frozen'):
    registry.build('scaffold', model, aggregator=private)


def test_training_metrics_are_needed_where_clients_are_weighted():
  with pytest.raises(ValueError, match='`dp_metrics`'):
    _trained(training_metrics='none')


def test_two_exchanges_share_the_noise_of_a_round():
  sent = tff.to_type(collections.OrderedDict(a=(np.float32, [2])))
  nothing = tff.to_type(collections.OrderedDict())
  created = aggregators.create(
    private_mean.PrivateMeanFactory(2.0, 2, 'fixed:1'), [sent, nothing, sent]
  )
  states = [created[number].initialize() for number in (0, 2)]
  multipliers = [s.dp_event.events[0].noise_multiplier for s in states]
  assert sum(m**-2 for m in multipliers) == pytest.approx(2.0**-2, rel=1e-5)
  # And each has its own.
  seeds = [state.query_state.numerator_state.seed for state in states]
  assert tuple(seeds[0]) != tuple(seeds[1])


def _distributed(num_clients, size, noise_multiplier, **options):
  factory = private_mean.DistributedPrivateMeanFactory(
    noise_multiplier, num_clients, **options
  )
  return factory.create(tff.TensorType(np.float32, [size]))


def test_clients_noise_adds_up_to_that_of_the_mean():
  process = _distributed(4, 1000, 2.0, clip='fixed:0.5')
  values = [np.full([1000], n, np.float32) for n in range(4)]
  state = process.initialize()
  draws = [process.next(state, values).result for _ in range(2)]
  for draw in draws:
    # Three clients are clipped to 0.5, one has sent nothing.
    mean = 3 * 0.5 / 1000**0.5 / 4
    assert np.mean(draw) == pytest.approx(mean, abs=0.03)
    assert np.std(draw) == pytest.approx(2.0 * 0.5 / 4, rel=0.1)
  # Rounding is in it: nearly 2, but less.
  assert 1.9 < private_mean.noise_multiplier_of((state,), 4) < 2.0
  # Two exchanges tell more than one.
  both = private_mean.noise_multiplier_of([state, state], 4)
  assert both == pytest.approx(
    private_mean.noise_multiplier_of([state], 4) / 2**0.5
  )


def test_noise_multiplier_of_coarse_integers_by_hand():
  query = collections.namedtuple('Query', 'l2_norm_bound local_stddev')
  # Without rounding it would be 5 * sqrt(3) / 10; for small noise the sum of
  # discrete Gaussians is not one.
  actual = private_mean.noise_multiplier_of(({'a': query(10.0, 5.0)},), 3)
  assert actual == pytest.approx(0.866025, rel=1e-5)
  gap = 10 * np.exp(-(np.pi**2) * 0.25) * 2**31
  actual = private_mean.noise_multiplier_of(query(10.0, 0.5), 2)
  assert actual == pytest.approx((200 + gap) ** -0.5, rel=1e-6)


@pytest.mark.slow
def test_methods_train_with_the_noise_of_clients():
  state, _, metrics = _trained(
    'fed_fac',
    aggregator=private_mean.DistributedPrivateMeanFactory(1e-3, 2),
    training_metrics='none',
  )
  assert state.round_number == 1 and np.isfinite(metrics['update_norm'])
