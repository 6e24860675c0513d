import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.core import shared
from tests.methods import toy_problems
from tff_pfl.core import objectives
from tff_pfl.models import split_model

layers = keras.layers
_tensors = shared.tensors

SEED = tf.constant([1, 2])


def _bridge(*stack, shape=(4,), dtype='float32', head=('head',)):
  outputs = layers.Dense(3, name='head', dtype=dtype.replace('int', 'float'))
  return shared.bridge(*stack, outputs, shape=shape, dtype=dtype, head=head)


@pytest.fixture(scope='module')
def model():
  return _bridge(
    layers.Dense(5, 'tanh', name='first'), layers.BatchNormalization(name='n')
  )


def _batch(num_examples=6, num_padding=0, padding=0.0, dtype=np.float32):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(num_examples, 4)).astype(dtype)
  y = rng.integers(0, 3, num_examples).astype(np.int32)
  return objectives.Batch(
    tf.constant(np.concatenate([x, np.full([num_padding, 4], padding, dtype)])),
    tf.constant(np.concatenate([y, np.zeros([num_padding], np.int32)])),
    tf.constant([1.0] * num_examples + [0.0] * num_padding),
  )


def _part(model, layers):
  return _tensors(
    split_model.select(model.initial_weights, model.weight_names(layers))
  )


def _head(model):
  return _part(model, model.head_layers)


def _body(model):
  return _part(model, model.body_layers)


def test_the_gradient_is_that_of_finite_differences():
  model = _bridge(
    layers.Dense(5, 'tanh', name='first', dtype='float64'), dtype='float64'
  )
  objective = objectives.joint_loss(model)
  batch = _batch(5, 2, 3.0, np.float64)
  weights = model.initial_weights
  gradient = objective(_tensors(weights), batch, seed=SEED).gradient

  def mean_loss(weights):
    outputs, _ = model.forward(_tensors(weights), batch.x)
    return np.mean(model.loss(batch.y, outputs).numpy()[:5])

  slopes = toy_problems.slopes_by_differences(mean_loss, weights)
  for name, slope in slopes.items():
    assert gradient[name].dtype == tf.float64
    np.testing.assert_allclose(
      gradient[name], slope, rtol=1e-5, atol=1e-9, err_msg=name
    )


def test_joint_loss_trains_all_but_the_statistics_and_body_loss_no_head(model):
  for objective, layers in (
    (objectives.joint_loss(model), model.layers),
    (objectives.body_loss(model, _head(model)), model.body_layers),
  ):
    output = objective(_part(model, layers), _batch(), seed=SEED)
    trained = set(model.weight_names(layers)) - model.statistics
    assert set(output.statistics) == model.statistics
    assert set(output.gradient) == trained
    assert np.any(output.gradient['first/kernel'] != 0)


def test_head_loss_takes_features_and_trains_the_head_alone(model):
  batch = _batch()
  features, _ = model.body(model.initial_weights, batch.x)
  output = objectives.prediction_loss(model, model.head)(
    _head(model), batch._replace(x=features), seed=SEED
  )
  assert set(output.gradient) == {'head/kernel', 'head/bias'}
  assert not output.statistics
  outputs, _ = model.forward(model.initial_weights, batch.x)
  np.testing.assert_allclose(
    output.metrics['loss'], np.sum(model.loss(batch.y, outputs)), rtol=1e-5
  )


def test_a_frozen_head_runs_in_inference_mode():
  model = _bridge(
    layers.Dense(5, name='first'),
    layers.BatchNormalization(name='head_norm'),
    layers.Dropout(0.5),
    head=('head_norm', 'head'),
  )
  batch = _batch()
  output = objectives.body_loss(model, _head(model))(
    _body(model), batch, seed=SEED
  )
  assert not output.statistics
  outputs, _ = model.forward(model.initial_weights, batch.x)
  np.testing.assert_allclose(
    output.metrics['loss'], np.sum(model.loss(batch.y, outputs)), rtol=1e-5
  )


def test_padding_changes_nothing(model):
  objective = objectives.joint_loss(model)
  weights = _tensors(model.initial_weights)
  expected = objective(weights, _batch(6), seed=SEED)
  padded = objective(weights, _batch(6, 10, 50.0), seed=SEED)
  shared.assert_close(padded, expected)
  # A batch of padding has no gradient and keeps statistics.
  output = objective(weights, _batch(0, 4), seed=SEED)
  tf.nest.map_structure(
    lambda value: np.testing.assert_array_equal(value, tf.zeros_like(value)),
    (dict(output.gradient), dict(output.metrics)),
  )
  for name, value in output.statistics.items():
    np.testing.assert_array_equal(value, weights[name])


def test_gradients_of_embeddings_are_dense():
  model = _bridge(
    layers.Embedding(7, 2, name='embedding'),
    layers.Flatten(),
    shape=(3,),
    dtype='int32',
  )
  batch = objectives.Batch(
    tf.constant([[1, 1, 4]]), tf.constant([2]), tf.ones([1])
  )
  gradient = objectives.joint_loss(model)(
    _tensors(model.initial_weights), batch, seed=SEED
  ).gradient['embedding/embeddings']
  assert isinstance(gradient, tf.Tensor)
  assert gradient.shape == (7, 2)
  used = np.any(gradient.numpy() != 0, axis=1)
  np.testing.assert_array_equal(used, [0, 1, 0, 0, 1, 0, 0])


def test_weights_without_influence_have_gradient_zero():
  model = _bridge(layers.Dense(2, name='first'))

  def forward(weights, x, mode):
    return model.forward({**weights, 'first/bias': tf.zeros([2])}, x, mode)

  output = objectives.prediction_loss(model, forward)(
    _tensors(model.initial_weights), _batch(), seed=SEED
  )
  np.testing.assert_array_equal(output.gradient['first/bias'], [0, 0])
  assert np.any(output.gradient['first/kernel'] != 0)


def test_examples_count_as_often_as_they_weigh(model):
  x, y, is_example, _ = _batch(4, 2, 3.0)
  weighted = objectives.Batch(
    x, y, is_example, tf.constant([2.0, 0, 1, 1, 5, 5])
  )
  # As many of them, so that the mean is over the same number.
  rows = [0, 0, 2, 3]
  repeated = objectives.Batch(
    tf.gather(x, rows), tf.gather(y, rows), tf.ones(4)
  )
  weights = _tensors(model.initial_weights)
  inference = objectives.prediction_loss(
    model, lambda weights, x, mode: model.forward(weights, x)
  )
  actual, expected = (
    inference(weights, batch, seed=SEED) for batch in (weighted, repeated)
  )
  for name, value in expected.gradient.items():
    np.testing.assert_allclose(actual.gradient[name], value, atol=1e-6)
  np.testing.assert_allclose(
    actual.metrics['loss'], expected.metrics['loss'], rtol=1e-6
  )
  # Metrics are without weights.
  plain = inference(weights, weighted._replace(weight=()), seed=SEED)
  assert actual.metrics['accuracy'] == plain.metrics['accuracy']


def test_metric_sums_are_over_the_real_examples():
  model = _bridge()
  logits = tf.constant(
    [[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [5.0, 0.0, 0.0], [np.nan] * 3]
  )
  y = tf.constant([0, 0, 0, 0])
  sums = objectives.metric_sums(
    model, logits, y, tf.constant([1.0, 1.0, 0.0, 0.0])
  )
  losses = [np.log(np.exp(2) + np.exp(1) + 1) - 2, np.log(2 + np.exp(1))]
  assert list(sums) == ['loss', 'accuracy', 'examples']
  np.testing.assert_allclose(sums['loss'], sum(losses), rtol=1e-5)
  assert sums['accuracy'] == 1
  assert sums['examples'] == 2
  # Of NaN the first is the largest, and yet not right.
  diverged = objectives.metric_sums(model, logits, y, tf.ones([4]))
  assert diverged['accuracy'] == 2
  zeros = objectives.zero_metrics(model)
  assert list(zeros) == list(sums)
  assert all(value == 0 for value in zeros.values())


@pytest.mark.parametrize('loss', [objectives.joint_loss, objectives.body_loss])
def test_a_penalty_of_the_features_adds_to_the_gradient_alone(model, loss):
  batch, weights = _batch(5, 2), _tensors(model.initial_weights)

  def penalty(features, statistics, batch):
    norms = tf.reduce_sum(features**2, axis=1) * batch.example_weights
    return tf.reduce_sum(norms) + tf.reduce_sum(statistics['n/moving_mean'])

  with tf.GradientTape() as tape:
    tape.watch(weights)
    mode = split_model.Mode(True, SEED, batch.example_weights)
    added = penalty(*model.body(weights, batch.x, mode), batch)
  expected = tape.gradient(added, weights)
  frozen = [_head(model)] if loss is objectives.body_loss else []
  plain, penalized = (
    loss(model, *frozen, penalty=term)(weights, batch, seed=SEED)
    for term in (None, penalty)
  )
  assert penalized.metrics == plain.metrics
  for name, slope in plain.gradient.items():
    np.testing.assert_allclose(
      penalized.gradient[name] - slope,
      tf.zeros_like(slope) if expected[name] is None else expected[name],
      rtol=1e-4,
      atol=1e-5,
      err_msg=name,
    )
