import collections
import gc

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.core import aggregators, gather

_PRIVATE = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
  noise_multiplier=0.1, clients_per_round=4, clip=1.0
)


@pytest.mark.parametrize(
  'factory, expected',
  [
    (None, 0),
    (tff.learning.robust_aggregator(), 0),
    (tff.aggregators.UnweightedMeanFactory(), 0),
    (_PRIVATE, 0.125),
    (tff.learning.dp_aggregator(0.1, 4), 0.125),
    (tff.aggregators.UnweightedMeanFactory(_PRIVATE), 0.125),
  ],
)
def test_least_share_is_half_a_client_where_there_may_be_noise(
  factory, expected
):
  assert aggregators.least_share(factory, 4) == expected


def test_compressed_updates_are_the_same_each_time():
  # Of more numbers than 20,000 each is rounded.
  values = np.random.default_rng(0).normal(size=[2, 20001]).astype(np.float32)
  process = aggregators.make_aggregator('compressed').create(
    tff.TensorType(np.float32, [20001]), tff.TensorType(np.float32)
  )
  state = process.initialize()
  a, b = (
    process.next(state, list(values), [1.0, 1.0]).result for _ in range(2)
  )
  np.testing.assert_array_equal(a, b)
  assert not np.array_equal(a, values.mean(axis=0))


@pytest.mark.parametrize(
  'name', ['krum', None, 'median:1', 'trimmed_mean:0.6', 'mean:x']
)
def test_unknown_aggregator_is_refused_with_those_there_are(name):
  with pytest.raises(ValueError, match='`aggregator` to be one of mean'):
    aggregators.make_aggregator(name)


@pytest.mark.parametrize(
  'factory',
  [
    tff.learning.secure_aggregator(),
    _PRIVATE,
    tff.aggregators.MeanFactory(tff.aggregators.SecureSumFactory(1.0)),
    aggregators.make_aggregator('median'),
  ],
)
def test_what_is_collected_is_not_promised_to_be_private_or_robust(factory):
  with pytest.raises(ValueError, match='`aggregator` to be a plain mean'):
    aggregators.create(
      factory, [tff.to_type([('x', np.float32)])], [gather.StackFactory(2)]
    )


@pytest.mark.parametrize(
  ('factory', 'is_secure', 'has_global'),
  [
    (tff.learning.secure_aggregator(), True, True),
    (tff.learning.secure_aggregator(), True, False),
    # Of weights in the clear.
    (
      tff.aggregators.MeanFactory(tff.aggregators.SecureSumFactory(1.0)),
      False,
      True,
    ),
    (tff.learning.robust_aggregator(), False, False),
  ],
)
def test_metrics_and_counts_are_summed_as_updates_are(
  factory, is_secure, has_global, monkeypatch, caplog
):
  monkeypatch.setattr(tf.get_logger(), 'propagate', True)
  values = [
    collections.OrderedDict(loss=np.float32(loss), number=np.int32(number))
    for loss, number in [(2.0**21, 3), (-0.3, 2**21), (np.pi, 4)]
  ]
  sent = collections.OrderedDict(x=np.float32) if has_global else []
  aggregations = aggregators.create(factory, [tff.to_type(sent)])
  value_type = tff.to_type(
    collections.OrderedDict(loss=np.float32, number=np.int32)
  )
  (process,) = aggregators.create_sums([value_type], factory, aggregations)
  # It is said of objects that are freed.
  gc.collect()
  assert 'Object was never used' not in caplog.text
  output = process.next(process.initialize(), values)
  if not is_secure:
    tff.test.assert_not_contains_secure_aggregation(process.next)
    assert output.result['loss'] == pytest.approx(2.0**21 - 0.3 + np.pi)
    assert output.result['number'] == 2**21 + 7
    return
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  largest = 2**20 - 1
  step = 2 * largest / (2**32 - 1)
  rounded = [round(value / step) for value in (largest, -0.3, np.pi)]
  # Both ends of the range have integers of 32 bits.
  assert output.result['loss'] == pytest.approx(step * sum(rounded), abs=0.07)
  assert output.result['number'] == largest + 7
  clipped = [
    m['secure_upper_clipped_count'] for m in output.measurements.values()
  ]
  assert clipped == [1, 1]
