import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.core import client_work, example_tensors
from tff_pfl.methods.shared import domain_heads, head_curvature
from tff_pfl.models import domain_models, domains, keras_bridge

_NUM_FEATURES = 4
_SIZES = (7, 12, 20)
_DOMAINS = domains.Domains(('a', 'b', 'c'), (20, 19, 0))


def _model(loss, dtype='float64'):
  """A linear model with a bias, of two layers of which the body is trivial."""
  network = keras.Sequential(
    [
      keras.layers.Input([_NUM_FEATURES], dtype=dtype),
      keras.layers.Dense(_NUM_FEATURES, name='body', dtype=dtype),
      keras.layers.Dense(1, name='head', dtype=dtype),
    ]
  )
  model = keras_bridge.from_keras(
    network, head_layers=['head'], loss=loss, metrics=[], jit_compile=False
  )
  return domain_models.with_domains(model, _DOMAINS)


def _features(num_examples, seed):
  """Inputs with a bias, differently spread on each client, and labels."""
  rng = np.random.default_rng(seed)
  scales = rng.uniform(0.3, 2, _NUM_FEATURES)
  z = rng.normal(size=[num_examples, _NUM_FEATURES]) * scales
  z = np.concatenate([z, np.ones([num_examples, 1])], axis=1)
  return z, rng.normal(size=num_examples)


# The aggregations as mathematics.


def _solve(hessians, moved, ridge=0.0):
  found = domain_heads.solve(tf.constant(hessians), tf.constant(moved), ridge)
  return [value.numpy() for value in found]


def _softmax_hessian(z, w):
  """Of the mean cross-entropy of three classes, the first class first."""
  outputs = z @ w.T
  p = np.exp(outputs - outputs.max(axis=1, keepdims=True))
  p /= p.sum(axis=1, keepdims=True)
  return np.mean(
    [
      np.kron(np.diag(row) - np.outer(row, row), np.outer(x, x))
      for row, x in zip(p, z)
    ],
    axis=0,
  )


def test_heads_do_not_move_along_the_null_direction_of_the_softmax():
  rng = np.random.default_rng(2)
  z, _ = _features(30, seed=0)
  size = _NUM_FEATURES + 1
  start, end = rng.normal(size=[2, 3, size])
  hessian = _softmax_hessian(z, end)
  wanted = start - end
  steps, ranks = _solve(
    hessian[np.newaxis], (hessian @ wanted.ravel())[np.newaxis]
  )
  moved = steps.reshape(3, size)
  # The same vector added to all classes' weights changes no probability.
  np.testing.assert_allclose(moved.sum(axis=0), 0, atol=1e-10)
  np.testing.assert_allclose(
    moved, wanted - wanted.mean(axis=0), rtol=0, atol=1e-8
  )
  assert ranks == [2 * size]


def test_fewer_examples_than_features_give_the_smallest_step_that_fits():
  z, y = _features(3, seed=4)
  start = np.random.default_rng(5).normal(size=_NUM_FEATURES + 1)
  end = np.linalg.lstsq(z, y, rcond=None)[0]
  hessian = 2 * z.T @ z
  steps, ranks = _solve(
    hessian[np.newaxis], (hessian @ (start - end))[np.newaxis]
  )
  found = start - steps[0]
  # The nearest to the start of those that fit.
  expected = start + np.linalg.pinv(z) @ (y - z @ start)
  np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
  np.testing.assert_allclose(z @ found, y, rtol=0, atol=1e-8)
  assert ranks == [3]


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_rounding_is_not_taken_for_curvature(dtype):
  # Of rank 1: the other eigenvalues are rounding, and of both signs.
  z = np.random.default_rng(6).normal(size=[1, 30])
  hessian = (z.T @ z).astype(dtype)
  step = np.random.default_rng(7).normal(size=30).astype(dtype)
  steps, ranks = _solve(hessian[np.newaxis], (hessian @ step)[np.newaxis], 0.0)
  assert steps.dtype == dtype and ranks.dtype == np.float32
  along = (z[0] @ step) / (z[0] @ z[0]) * z[0]
  np.testing.assert_allclose(steps[0], along, rtol=0, atol=1e-4)
  assert ranks[0] == 1


def test_ridge_and_effective_ranks_by_hand():
  hessians = np.stack([np.diag([8.0, 2.0, 0.0]), np.zeros([3, 3])])
  right_sides = np.array([[8.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
  steps, ranks = _solve(hessians, right_sides, 0.25)
  # The largest eigenvalue is 8: 2 is added to those that are not 0.
  np.testing.assert_allclose(steps, [[0.8, 0.5, 0.0], [0.0, 0.0, 0.0]])
  np.testing.assert_allclose(ranks, [8 / 10 + 2 / 4, 0.0])
  steps, ranks = _solve(hessians, right_sides, 0.0)
  np.testing.assert_allclose(steps, [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
  np.testing.assert_allclose(ranks, [2.0, 0.0])


def test_what_noise_makes_negative_gets_no_step():
  hessian = np.diag([2.0, -1.0, 1.0])
  steps, ranks = _solve(hessian[np.newaxis], np.ones([1, 3]), 0.0)
  np.testing.assert_allclose(steps, [[0.5, 0.0, 1.0]])
  assert ranks == [2.0]
  steps, ranks = _solve(-np.eye(3)[np.newaxis], np.ones([1, 3]), 0.0)
  assert not np.any(steps) and ranks == [0.0]


def test_mean_over_nobody_is_no_error():
  # Some aggregators give 0 / 0 for a cohort of which nobody is accepted.
  nan = np.full([2, 3, 3], np.nan)
  steps, _ = _solve(nan, nan[:, 0], 0.0)
  assert np.isnan(steps).all()


# What clients report, and what the server makes of it.


def _examples(num_examples, seed):
  """A client's features with their domain, padded by NaN."""
  rng = np.random.default_rng(seed)
  capacity = int(example_tensors.bucket_size(num_examples))
  z = np.full([capacity, _NUM_FEATURES], np.nan)
  z[:num_examples] = rng.normal(size=[num_examples, _NUM_FEATURES])
  domain = np.zeros(capacity, np.int32)
  domain[:num_examples] = rng.choice([0, 1], num_examples)
  y = np.zeros(capacity, np.float32)
  y[:num_examples] = rng.normal(size=num_examples)
  return example_tensors.ExampleTensors(
    collections.OrderedDict(inputs=tf.constant(z), domain=tf.constant(domain)),
    tf.constant(y),
    tf.constant(num_examples),
  )


def _of_domain(examples, m):
  """The real features with a 1, and the labels, of a domain."""
  rows = np.arange(len(examples.y)) < examples.num_examples
  rows &= examples.x['domain'].numpy() == m
  z = examples.x['inputs'].numpy()[rows]
  return np.concatenate([z, np.ones([len(z), 1])], 1), examples.y.numpy()[rows]


def _random_heads(model, seed):
  rng = np.random.default_rng(seed)
  multi_head = domain_models.multi_head(model)
  return collections.OrderedDict(
    (name, tf.constant(rng.normal(size=multi_head.initial_weights[name].shape)))
    for name in multi_head.weight_names(multi_head.head_layers)
  )


def _vectors(model, heads):
  """`[domains, features + 1]`, of heads with one output."""
  parts = domain_models.domain_copies(model)
  head = domain_models.linear_head(model)
  return np.stack(
    [
      head_curvature.as_vector(head, parts.part(heads, name))
      for name in parts.names
    ]
  )


def _mean_report(combination, old, clients):
  """What the server gets: the sum, here by the number of all examples."""
  reports = [combination.report(old, new, z) for new, z in clients]
  total = sum(int(z.num_examples) for _, z in clients)
  return tf.nest.map_structure(
    lambda *values: tf.constant(np.sum(values, axis=0, dtype=float) / total),
    *reports,
  )


def _float_shares(report):
  return {**report, 'shares': tf.cast(report['shares'], tf.float32)}


@pytest.fixture(name='regression', scope='module')
def _regression():
  return _model('mse')


def _exact_clients(model, sizes=_SIZES):
  """Clients whose heads are the optima on their own examples."""
  parts = domain_models.domain_copies(model)
  head = domain_models.linear_head(model)
  clients = []
  for i, n in enumerate(sizes):
    examples = _examples(n, seed=i)
    heads = {}
    for m, name in enumerate(parts.names):
      z, y = _of_domain(examples, m)
      optimum = np.linalg.lstsq(z, y, rcond=None)[0]
      heads[name] = head_curvature.from_vector(head, tf.constant(optimum), 1)
    clients.append((parts.join(heads), examples))
  return clients


_every_aggregation = pytest.mark.parametrize(
  'aggregation', [domain_heads.WeightedAverage, domain_heads.SecondOrder]
)


def _second_order(model, old, clients, **options):
  combination = domain_heads.SecondOrder(model, **options)
  report = _mean_report(combination, old, clients)
  cohort = client_work.Cohort(tf.constant(2), tf.constant(0.0))
  update, algorithm = combination.update(_float_shares(report), cohort)
  return {n: old[n] - update[n] for n in old}, algorithm


def test_second_order_of_reports_is_the_pooled_optimum(regression):
  clients = _exact_clients(regression, (30, 45, 60))
  old = _random_heads(regression, 0)
  found, algorithm = _second_order(regression, old, clients)
  vectors = _vectors(regression, found)
  for m in (0, 1):
    zs, ys = zip(*[_of_domain(examples, m) for _, examples in clients])
    pooled, *_ = np.linalg.lstsq(
      np.concatenate(zs), np.concatenate(ys), rcond=None
    )
    np.testing.assert_allclose(vectors[m], pooled, rtol=0, atol=1e-8)
  # Of all features, and of none.
  size = _NUM_FEATURES + 1
  np.testing.assert_allclose(algorithm['effective_rank'], [size, size, 0])


def test_any_ridge_leaves_what_clients_agree_in(regression):
  ((heads, _), *_) = _exact_clients(regression)
  clients = [(heads, _examples(n, seed=n)) for n in _SIZES]
  old = _random_heads(regression, 0)
  found, _ = _second_order(regression, old, clients, ridge=1.0)
  for m in (0, 1):
    np.testing.assert_allclose(
      _vectors(regression, found)[m], _vectors(regression, heads)[m], rtol=1e-5
    )


@_every_aggregation
def test_noise_does_not_move_a_head_that_nobody_has(regression, aggregation):
  combination = aggregation(regression)
  old = _random_heads(regression, 0)
  clients = _exact_clients(regression)
  report = _mean_report(combination, old, clients)
  rng = np.random.default_rng(0)
  noisy = tf.nest.map_structure(
    lambda value: value + tf.constant(0.02 * rng.normal(size=value.shape)),
    report,
  )
  cohort = client_work.Cohort(tf.constant(3), tf.constant(0.5 / 3))
  update, _ = combination.update(_float_shares(noisy), cohort)
  for key, value in update.items():
    assert np.any(value) == (not key.startswith('domain_2/')), key


# Training on clients.


def test_second_order_needs_a_loss_whose_curvature_is_known():
  model = _model('mae', dtype='float32')
  domain_heads.WeightedAverage(model)
  with pytest.raises(ValueError, match='weighted_average takes any loss'):
    domain_heads.SecondOrder(model)
