import keras
import numpy as np
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl.core import client_work, objectives, training_loop
from tff_pfl.datasets import examples
from tff_pfl.methods.shared import class_means

_COHORT = client_work.Cohort(tf.constant(2), tf.constant(0.25))


def _network():
  """A model with features `[2, 2]`: the inputs, twice as large."""
  network = keras.Sequential(
    [
      keras.layers.Input([4]),
      keras.layers.Reshape([2, 2]),
      keras.layers.Dense(2, use_bias=False, name='body'),
      keras.layers.Conv1D(3, 2, name='head'),
      keras.layers.Flatten(),
    ]
  )
  network.layers[1].set_weights([2 * np.eye(2)])
  return toy_problems.classifier_from(network)


def test_reports_means_and_pull_by_hand():
  model = _network()
  means = class_means.ClassMeans(model, 'this')
  x = np.arange(12, dtype=np.float32).reshape([3, 4])
  (padded,) = toy_problems.padded(
    [examples.Examples(x, np.array([0, 2, 2], np.int32))]
  )
  weights = model.initial_weights
  report = means.report(training_loop.frozen_features(model, weights, padded))
  np.testing.assert_allclose(report['shares'], [1 / 3, 0, 2 / 3])
  rows = 2 * x.reshape([3, 2, 2])
  np.testing.assert_allclose(report['sums'][0], rows[0] / 3, rtol=1e-6)
  # A client alone; what is below the least share may be noise.
  before = {**means.initial_algorithm, 'is_known': np.float32([0, 1, 0])}
  noisy = {**report, 'shares': report['shares'] + [0, 0.2, 0]}
  after = means.update(before, noisy, _COHORT)
  np.testing.assert_array_equal(after['is_known'], [1, 1, 1])
  np.testing.assert_allclose(after['means'][0], rows[0], rtol=1e-6)
  np.testing.assert_array_equal(after['means'][1], np.zeros([2, 2]))
  np.testing.assert_allclose(after['means'][2], (rows[1] + rows[2]) / 2)
  # Class 1 has no mean, the last row is padding.
  after['is_known'] = tf.constant([1.0, 0.0, 1.0])
  batch = objectives.Batch(
    x, tf.constant([2, 1, 0, 0]), tf.constant([1.0, 1.0, 1.0, 0.0])
  )
  features = np.concatenate([rows, np.full([1, 2, 2], np.nan)])
  penalty = means.pull(after, 0.5)(tf.constant(features, tf.float32), {}, batch)
  distances = [
    np.mean((features[0] - after['means'][2]) ** 2),
    np.mean((features[2] - after['means'][0]) ** 2),
  ]
  np.testing.assert_allclose(penalty, 0.5 * sum(distances) / 3, rtol=1e-6)
