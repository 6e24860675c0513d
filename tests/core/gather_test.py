import collections
import functools

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl import tff_api as tff
from tff_pfl.core import aggregators, gather
from tff_pfl.methods import registry

_NUMBERS = [4.0, -1.0, 1000.0, 2.0, 3.0]


@functools.cache
def _process(name, shape):
  return aggregators.make_aggregator(name).create(
    tff.TensorType(np.float32, shape), tff.TensorType(np.float32)
  )


def _aggregate(name, values, weights=None):
  values = [np.asarray(value, np.float32) for value in values]
  process = _process(name, values[0].shape)
  weights = [1.0] * len(values) if weights is None else weights
  return process.next(process.initialize(), values, weights).result


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('median', 3.0),
    ('trimmed_mean:0.19', 1008 / 5),
    ('trimmed_mean:0.2', 3.0),
    ('trimmed_mean', 1008 / 5),
    ('trimmed_mean:0.5', 3.0),
    ('geometric_median', 3.0),
  ],
)
def test_one_number_of_five_clients(name, expected):
  assert _aggregate(name, _NUMBERS) == pytest.approx(expected, rel=1e-4)
  # Of an even number the median is between two.
  if name == 'median':
    assert _aggregate(name, _NUMBERS[:4]) == 3.0
    assert _aggregate(name, [5.0]) == 5.0


def test_weights_tell_who_is_left_out_and_move_the_geometric_median():
  weights = [7.0, 0.0, 0.0, 1.0, 1.0]
  assert _aggregate('median', _NUMBERS, weights) == 3.0
  actual = _aggregate('geometric_median', _NUMBERS, weights)
  assert actual == pytest.approx(4.0, rel=1e-4)
  assert _aggregate('median', _NUMBERS, [0.0] * 5) == 0.0


def test_no_number_moves_the_geometric_median_far():
  near = [[1, 0], [0, 1], [0, 0]]
  for far in (1e17, 1e22, 3e38, np.inf):
    actual = _aggregate('geometric_median', [*near, [far, far]])
    assert np.linalg.norm(actual) < 1.5


def test_geometric_median_of_points():
  # Where angles of 120 degrees meet (Fermat), though the mean is elsewhere.
  fermat = np.float32([1.0, 2.0, -1.0])
  sides = np.float32([[2, 0, 0], [-1, 3**0.5, 0], [-1.5, -(6.75**0.5), 0]])
  actual = _aggregate('geometric_median', fermat + sides)
  np.testing.assert_allclose(actual, fermat, atol=2e-4)
  # By coordinates the median is the middle of each.
  actual = _aggregate('median', fermat + sides)
  np.testing.assert_allclose(actual, fermat + [-1, 0, 0], atol=1e-6)


def test_structures_and_types_stay():
  process = gather.GeometricMedianFactory().create(
    tff.to_type(
      collections.OrderedDict(
        a=(np.float32, [2, 1]), b=tff.TensorType(np.float64)
      )
    ),
    tff.TensorType(np.float32),
  )
  value = collections.OrderedDict(a=np.float32([[1], [2]]), b=np.float64(3))
  actual = process.next(process.initialize(), [value] * 3, [1.0] * 3).result
  np.testing.assert_allclose(actual['a'], value['a'])
  assert actual['b'] == 3 and np.asarray(actual['b']).dtype == np.float64


_CLIENTS = [toy_problems.labeled_examples(20, seed=n) for n in range(5)]


def _build(name, aggregator):
  return registry.build(
    name,
    toy_problems.model_for(name, toy_problems.classifier()),
    aggregator=aggregators.make_aggregator(aggregator),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'aggregator'),
  [
    ('fed_rep', 'median'),
    ('fed_em', 'trimmed_mean:0.3'),
    *((n, 'geometric_median') for n in ('scaffold', 'fed_fac', 'fed_dar')),
  ],
)
def test_of_one_client_every_kind_of_method_gets_its_mean(name, aggregator):
  clients = toy_problems.examples_for(name, _CLIENTS[:1])
  actual, expected = (
    toy_problems.train(_build(name, each), clients, 2)[0].global_weights
    for each in (aggregator, 'mean')
  )
  toy_problems.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_minority_cannot_move_the_model_at_will():
  far = toy_problems.labeled_examples(20, seed=4)
  far.x[:] *= 1e3
  process = _build('fed_avg', 'median')
  moved, honest = (
    toy_problems.train(process, clients)[2]['update_norm']
    for clients in ([*_CLIENTS[:4], far], _CLIENTS)
  )
  assert 0 < moved < 3 * honest < 3


def _clusters(aggregator):
  options = {'aggregator': aggregators.make_aggregator(aggregator)}
  return toy_problems.linear('ifca', options, num_steps=1, learning_rate=0.1)


def test_methods_with_sums_take_the_geometric_median_only():
  for build in (_clusters, functools.partial(_build, 'scaffold')):
    with pytest.raises(ValueError, match='`aggregator` .* sums over clients'):
      build('median')
  # A client's choice and its update are one vector. Clients of one dataset
  # choose alike, and the median of equal vectors is their mean.
  process, client = _clusters('geometric_median'), toy_problems.CLIENTS[0]
  kernels = dict(process.initialize().global_weights)
  slopes = {
    name: toy_problems.squared_error_gradient(kernel, client)
    for name, kernel in kernels.items()
  }
  chosen = min(
    kernels,
    key=lambda name: np.square(
      client.x @ kernels[name] - client.y[:, None]
    ).sum(),
  )
  expected = {**kernels, chosen: kernels[chosen] - 0.1 * slopes[chosen]}
  toy_problems.check_rounds(
    process, [client] * 3, [{'global_weights': expected}]
  )


def test_values_are_stacked_and_too_many_of_them_refused():
  process = gather.StackFactory(2).create(
    tff.to_type(collections.OrderedDict(a=np.float32, b=(np.int32, [2]))),
    tff.TensorType(np.float32),
  )
  values = [{'a': 1.0, 'b': [2, 3]}, {'a': 4.0, 'b': [5, 6]}]

  def stacked(values, weights):
    return process.next(process.initialize(), values, weights).result

  both = stacked(values, [1.0, 7.0])
  np.testing.assert_array_equal(both['a'], [1, 4])
  np.testing.assert_array_equal(both['b'], [[2, 3], [5, 6]])
  # Who has no weight is left out; empty slots are zeros.
  second = stacked(values, [0.0, 7.0])
  np.testing.assert_array_equal(second['a'], [4, 0])
  np.testing.assert_array_equal(second['b'], [[5, 6], [0, 0]])
  nobody = stacked(values, [0.0, 0.0])
  np.testing.assert_array_equal(nobody['b'], np.zeros([2, 2]))
  with pytest.raises(Exception, match='found 2 and clients'):
    stacked(values * 2, [1.0] * 4)
