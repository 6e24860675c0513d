import keras
import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.methods.shared import domain_heads, second_order
from tff_pfl.models import domain_models, domains, keras_bridge

_NUM_FEATURES = 4


def _features(num_examples, seed):
  """Inputs with a bias, differently spread on each client, and labels."""
  rng = np.random.default_rng(seed)
  scales = rng.uniform(0.3, 2, _NUM_FEATURES)
  z = rng.normal(size=[num_examples, _NUM_FEATURES]) * scales
  z = np.concatenate([z, np.ones([num_examples, 1])], axis=1)
  return z, rng.normal(size=num_examples)


def _solve(hessians, moved, ridge=0.0):
  found = second_order.solve(tf.constant(hessians), tf.constant(moved), ridge)
  return [value.numpy() for value in found]


def _softmax_hessian(z, w):
  """The Hessian of the mean cross-entropy of three classes, class by class."""
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


def test_the_clients_optima_give_that_of_all_data():
  clients = [_features(n, seed=n) for n in (30, 45, 60)]
  start = np.random.default_rng(5).normal(size=_NUM_FEATURES + 1)
  hessian, moved = 0, 0
  for z, y in clients:
    own = np.linalg.lstsq(z, y, rcond=None)[0]
    hessian = hessian + 2 * z.T @ z
    moved = moved + 2 * z.T @ z @ (start - own)
  steps, ranks = _solve(hessian[np.newaxis], moved[np.newaxis])
  pooled = np.linalg.lstsq(*map(np.concatenate, zip(*clients)), rcond=None)[0]
  np.testing.assert_allclose(start - steps[0], pooled, rtol=0, atol=1e-8)
  assert ranks == [_NUM_FEATURES + 1]


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


def test_second_order_needs_a_loss_whose_curvature_is_known():
  network = keras.Sequential(
    [keras.layers.Input([4]), keras.layers.Dense(1, name='head')]
  )
  model = keras_bridge.from_keras(
    network, head_layers=['head'], loss='mae', metrics=[]
  )
  model = domain_models.with_domains(
    model, domains.Domains(('a', 'b'), (20, 19))
  )
  domain_heads.WeightedAverage(model)
  with pytest.raises(ValueError, match='weighted_average takes any loss'):
    second_order.SecondOrder(model)
