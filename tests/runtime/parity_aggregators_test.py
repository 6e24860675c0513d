"""Aggregators give the same in process as on the native runtime.

Some draw random numbers. Where their seed is in their state, both runtimes
start from the same state; where they take the time or no seed at all, what is
compared is what does not depend on it: the state, and bounds on the result.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

from tests.runtime import parity
from tff_pfl import tff_api as tff
from tff_pfl.core import aggregators, private_mean

_aggregators = tff.aggregators


def _values():
  """Clients' values: usual ones, one far too large, and zeros."""
  rng = np.random.default_rng(0)
  return [
    collections.OrderedDict(
      kernel=scale * rng.normal(size=[2, 3]).astype(np.float32),
      bias=scale * rng.normal(size=[3]).astype(np.float32),
    )
    for scale in np.float32([1, 0.1, 100, 0, 2])
  ]


_WEIGHTS = [3.0, 1.0, 2.0, 4.0, 0.0]
# Those of three rounds: all, some, and one.
_COHORTS = (slice(None), slice(1, None), slice(1))


def _create(factory, value):
  value_type = tff.types.tensorflow_to_type(
    tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), value)
  )
  if isinstance(factory, _aggregators.WeightedAggregationFactory):
    return factory.create(value_type, tff.TensorType(np.float32))
  return factory.create(value_type)


def _aggregate(rt, process, initial, values):
  """Returns what some rounds give, from an initial state."""
  outputs = []
  state = initial
  for cohort in _COHORTS:
    arguments = [state, values[cohort]]
    if process.is_weighted:
      arguments.append(_WEIGHTS[cohort])
    output = rt.run(process.next, *arguments)
    state = output.state
    outputs.append(output)
  return outputs


def _quantile():
  return _aggregators.PrivateQuantileEstimationProcess.no_noise(
    1.0, 0.8, 0.2, multiplier=2.0, increment=0.5
  )


_dp = _aggregators.DifferentiallyPrivateFactory
_FACTORIES = {
  # Nothing here is large enough for 'compressed' to round it.
  **aggregators.AGGREGATORS,
  'sum': _aggregators.SumFactory,
  'unweighted_mean': _aggregators.UnweightedMeanFactory,
  'clipping': lambda: _aggregators.clipping_factory(
    1.0, _aggregators.UnweightedMeanFactory()
  ),
  'adaptive_clipping': lambda: _aggregators.clipping_factory(
    _quantile(), _aggregators.MeanFactory()
  ),
  'adaptive_zeroing': lambda: _aggregators.zeroing_factory(
    _quantile(), _aggregators.MeanFactory(), norm_order=float('inf')
  ),
  'dp_without_noise': lambda: _dp.gaussian_fixed(0.0, 3, 1.0),
  'adaptive_dp_without_noise': lambda: _dp(
    tfp.NormalizedQuery(
      tfp.QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=1.0,
        noise_multiplier=0.0,
        target_unclipped_quantile=0.8,
        learning_rate=0.2,
        clipped_count_stddev=0.0,
        expected_num_records=3,
      ),
      3.0,
    )
  ),
  'dp_with_seeded_noise': lambda: _dp.tree_aggregation(
    noise_multiplier=1.0,
    clients_per_round=3,
    l2_norm_clip=1.0,
    record_specs=_specs(_values()[0]),
    noise_seed=7,
  ),
  'private_mean': lambda: private_mean.PrivateMeanFactory(1.0, 3, seed=7),
  'secure_sum': lambda: _aggregators.SecureSumFactory(4.0, -4.0),
  'adaptive_secure_sum': lambda: _aggregators.SecureSumFactory(_quantile()),
  'concatenated': lambda: _aggregators.concat_factory(
    _aggregators.clipping_factory(1.0, _aggregators.SumFactory())
  ),
  'measured': lambda: tff.learning.add_debug_measurements(
    _aggregators.MeanFactory()
  ),
  'hadamard': _aggregators.HadamardTransformFactory,
  'fourier': lambda: _aggregators.DiscreteFourierTransformFactory(
    num_repeats=2
  ),
}


# The time seeds their random rotations, and is a part of their state.
_ROTATIONS = ('hadamard', 'fourier')


def _specs(value):
  return tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), value)


@pytest.mark.parametrize(
  'name',
  [
    name
    if name in ('private_mean', 'geometric_median')
    else pytest.param(name, marks=pytest.mark.slow)
    for name in _FACTORIES
  ],
)
def test_aggregates_are_the_same(runtimes, name):
  in_process, native = runtimes
  process = _create(_FACTORIES[name](), _values()[0])
  initial = native.run(process.initialize)
  if name in _ROTATIONS:
    inner_state, seed = initial
    initial = (inner_state, np.array([5, 0], seed.dtype))
  else:
    parity.assert_same(in_process.run(process.initialize), initial)
  parity.assert_close(
    _aggregate(in_process, process, initial, _values()),
    _aggregate(native, process, initial, _values()),
    # A rotation spreads the rounding of the largest number over all.
    atol=1e-4 if name in _ROTATIONS else 1e-6,
  )


def test_integers_are_summed_exactly(runtimes):
  in_process, native = runtimes
  values = [np.int64([2**40 + n, -n]) for n in range(5)]
  process = _create(_aggregators.SecureSumFactory(2**41, -(2**41)), values[0])
  initial = native.run(process.initialize)
  outputs = _aggregate(in_process, process, initial, values)
  parity.assert_same(outputs, _aggregate(native, process, initial, values))
  np.testing.assert_array_equal(outputs[0].result, [5 * 2**40 + 10, -10])


def _deviations(rt, process, values, exact):
  """Returns a new state, and how the results of two equal rounds deviate."""
  initial = rt.run(process.initialize)
  outputs = [rt.run(process.next, initial, values) for _ in range(2)]
  return outputs[0].state, [output.result - exact for output in outputs]


def test_noise_of_the_server_has_its_size_and_is_drawn_anew(runtimes):
  num_clients, noise_multiplier = 4, 2.0
  values = [np.zeros([5000], np.float32)] * num_clients
  process = _create(
    _dp.gaussian_fixed(noise_multiplier, num_clients, clip=1.0), values[0]
  )
  states = []
  for rt in runtimes:
    state, noises = _deviations(rt, process, values, 0.0)
    states.append(state)
    np.testing.assert_allclose(
      np.std(noises, axis=1), noise_multiplier / num_clients, rtol=0.1
    )
    assert np.max(np.abs(np.mean(noises, axis=1))) < 0.05
    assert abs(np.corrcoef(noises)[0, 1]) < 0.1
  parity.assert_close(*states)
