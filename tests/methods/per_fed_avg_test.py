import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems
from tff_pfl import datasets
from tff_pfl.core import objectives
from tff_pfl.methods import per_fed_avg, registry
from tff_pfl.models import keras_bridge

_SEED = tf.constant([1, 2])
_RNG = np.random.default_rng(3)
_KERNEL = _RNG.normal(size=[4, 2]).astype(np.float32)
_CLIENTS = [
  toy_problems.regression_examples(n, 4, 2, seed=n) for n in (6, 11, 30)
]
# A batch larger than any client: every batch is all of a client's examples.
_HPARAMS = per_fed_avg.PerFedAvgHParams(
  num_steps=3,
  learning_rate=0.2,
  inner_learning_rate=0.3,
  batch_size=None,
  # In float32 a small difference would drown.
  hessian_free_step=0.5,
)


# Changes of how a model is scored.
_ADAPTATION = {
  'first_order': {},
  'hessian_free': {'num_adaptation_steps': 3},
  'exact': {'num_adaptation_steps': 0},
}


@functools.cache
def _process(variant):
  return registry.build(
    'per_fed_avg',
    toy_problems.linear_network(None, _KERNEL),
    dataclasses.replace(
      _HPARAMS, variant=variant, num_inner_steps=2, **_ADAPTATION[variant]
    ),
  )


# A quadratic loss: the mean over examples and outputs of (x w - y)^2.


def _hessian(client):
  return 2 * client.x.T @ client.x / client.y.size


def _local_iterations(client, w, hparams):
  """Algorithm 1 with full batches, in closed form."""
  alpha = hparams.inner_learning_rate
  contraction = np.eye(4) - alpha * _hessian(client)
  for _ in range(hparams.num_steps):
    adapted = toy_problems.descended_alone(
      w, client, hparams.num_inner_steps, alpha
    )
    v = toy_problems.squared_error_gradient(adapted, client)
    if hparams.variant != 'first_order':
      v = np.linalg.matrix_power(contraction, hparams.num_inner_steps) @ v
    w = w - hparams.learning_rate * v
  return w


@pytest.mark.parametrize('variant', list(_ADAPTATION))
def test_a_round_on_a_quadratic_is_algorithm_1_in_closed_form(variant):
  hparams = dataclasses.replace(_HPARAMS, variant=variant, num_inner_steps=2)
  models = [_local_iterations(client, _KERNEL, hparams) for client in _CLIENTS]
  mean = toy_problems.weighted_mean(models, _CLIENTS)
  toy_problems.check_rounds(
    _process(variant), _CLIENTS, [{'global_weights': {'head': mean}}]
  )


def test_a_local_iteration_by_hand():
  process = registry.build(
    'per_fed_avg',
    toy_problems.linear_network(None, np.ones([1, 1], np.float32)),
    variant='exact',
    num_steps=1,
    learning_rate=0.1,
    inner_learning_rate=0.25,
    batch_size=None,
  )
  client = datasets.Examples(
    x=np.ones([1, 1], np.float32), y=np.zeros([1], np.float32)
  )
  # f = w^2 at w = 1: the inner step goes to 1 - 0.25 * 2 = 0.5, where the
  # gradient is v = 1; the Hessian is 2, so v - 0.25 * 2 * v = 0.5. The loss
  # that is reported is that of the adapted model.
  expected = {'global_weights': {'head': [[0.95]]}, 'metrics': {'loss': 0.25}}
  toy_problems.check_rounds(process, [client], [expected], rtol=1e-6)


# The meta-gradient of a small network in float64.


@functools.cache
def _smooth_network():
  keras.utils.set_random_seed(5)
  return keras_bridge.from_keras(
    keras.Sequential(
      [
        keras.Input([5], dtype='float64'),
        keras.layers.Dense(4, 'elu', name='dense', dtype='float64'),
        keras.layers.Dense(3, name='head', dtype='float64'),
      ]
    ),
    head_layers=['head'],
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  )


def _batch(seed, num_examples=8):
  client = toy_problems.labeled_examples(num_examples, seed)
  return objectives.Batch(
    tf.constant(client.x, tf.float64),
    tf.constant(client.y),
    tf.ones([num_examples]),
  )


def _meta_gradient(weights=None, batches=None, **hparams):
  """The meta-gradient at the network's weights, as numbers."""
  model = _smooth_network()
  hparams = per_fed_avg.PerFedAvgHParams(
    **{'inner_learning_rate': 0.5, 'variant': 'exact', **hparams}
  )
  batches = batches or [
    _batch(i) for i in range(hparams.phase().batches_per_step)
  ]
  weights = {
    k: tf.constant(v) for k, v in (weights or model.initial_weights).items()
  }
  output = per_fed_avg.meta_loss(model, hparams)(weights, *batches, seed=_SEED)
  return {k: v.numpy() for k, v in output.gradient.items()}


def _adapted_loss(weights, outer, inner, alpha, scope):
  """f(w - alpha * gradient f(w)), step by step over the `inner` batches."""
  model = _smooth_network()

  def loss(weights, batch):
    outputs, _ = model.forward(weights, batch.x)
    return tf.reduce_mean(model.loss(batch.y, outputs))

  for batch in inner:
    with tf.GradientTape() as tape:
      tape.watch(weights)
      value = loss(weights, batch)
    gradient = tape.gradient(value, weights)
    weights = {
      k: v - alpha * gradient[k]
      if scope == 'all' or k.startswith('head/')
      else v
      for k, v in weights.items()
    }
  return loss(weights, outer)


@pytest.mark.parametrize(
  ('scope', 'num_inner_steps'), [('all', 3), ('head', 1)]
)
def test_the_exact_variant_is_the_derivative_of_the_adapted_loss(
  scope, num_inner_steps
):
  outer, *inner = (_batch(i) for i in range(1 + num_inner_steps))
  # With D'' = D the meta-gradient is a derivative, which differences give.
  actual = _meta_gradient(
    batches=[outer, *inner, *inner],
    num_inner_steps=num_inner_steps,
    inner_scope=scope,
  )
  loss = tf.function(
    lambda weights: _adapted_loss(weights, outer, inner, 0.5, scope),
    autograph=False,
  )
  slopes = toy_problems.slopes_by_differences(
    lambda weights: loss(weights).numpy(), _smooth_network().initial_weights
  )
  for name, slope in slopes.items():
    np.testing.assert_allclose(actual[name], slope, atol=1e-8)


def _distance(a, b):
  return np.sqrt(sum(np.sum((a[k] - b[k]) ** 2) for k in a))


@pytest.mark.parametrize('num_inner_steps', [1, 2])
def test_the_error_of_hessian_free_falls_as_delta_squared(num_inner_steps):
  exact = _meta_gradient(num_inner_steps=num_inner_steps)

  def error(delta):
    approximate = _meta_gradient(
      variant='hessian_free',
      hessian_free_step=delta,
      num_inner_steps=num_inner_steps,
    )
    return _distance(approximate, exact)

  errors = np.array([error(10.0**-i) for i in range(1, 5)])
  np.testing.assert_allclose(errors[:-1] / errors[1:], 100, rtol=0.1)
  # From there on it is rounding, which grows as 1 / delta.
  assert error(1e-5) < 1e-9
  assert error(1e-9) > error(1e-5)


def _first(batch, number):
  return objectives.Batch(*[value[:number] for value in batch])


def test_the_curvature_is_that_of_its_own_batch():
  outer, inner = _batch(0), _batch(1)
  one, other = (
    _meta_gradient(batches=[outer, inner, _batch(i)]) for i in (2, 3)
  )
  assert _distance(one, other) > 1e-3


@pytest.mark.parametrize(
  ('variant', 'sizes', 'expected'),
  [
    ('exact', {'inner_batch_size': 3, 'curvature_batch_size': 5}, (8, 3, 5)),
    # Of batches of the largest size, D' is the first examples.
    ('first_order', {'batch_size': 2, 'inner_batch_size': 8}, (2, 8)),
  ],
)
def test_batches_may_be_of_unequal_sizes(variant, sizes, expected):
  batches = [_batch(i) for i in range(len(expected))]
  actual = _meta_gradient(batches=batches, variant=variant, **sizes)
  first = [_first(*each) for each in zip(batches, expected)]
  target = _meta_gradient(batches=first, variant=variant)
  assert _distance(actual, target) < 1e-12
  assert _distance(actual, _meta_gradient(variant=variant)) > 1e-3


@pytest.mark.parametrize(
  ('sizes', 'planned'),
  [
    ({'batch_size': 2, 'inner_batch_size': 5}, 5),
    # The first order has no D''.
    ({'batch_size': 2, 'curvature_batch_size': 5}, 2),
    ({'batch_size': 2, 'curvature_batch_size': 5, 'variant': 'exact'}, 5),
    ({'batch_size': None, 'curvature_batch_size': 5, 'variant': 'exact'}, None),
  ],
)
def test_batches_of_the_largest_size_are_drawn(sizes, planned):
  hparams = per_fed_avg.PerFedAvgHParams(**sizes)
  assert hparams.phase().batch_size == planned


# Networks of all kinds.


@pytest.mark.slow
def test_exact_and_hessian_free_agree_on_a_recurrent_network():
  keras.utils.set_random_seed(5)
  model = toy_problems.classifier_from(
    toy_problems.convolutional_and_recurrent()
  )
  weights = {k: tf.constant(v) for k, v in model.initial_weights.items()}
  batches = [
    batch._replace(x=tf.cast(batch.x, tf.float32))
    for batch in (_batch(i) for i in range(3))
  ]

  def meta_gradient(variant, *batches):
    hparams = per_fed_avg.PerFedAvgHParams(
      variant=variant, inner_learning_rate=1.0, hessian_free_step=0.01
    )
    return (
      per_fed_avg.meta_loss(model, hparams)(weights, *batches, seed=_SEED)
    ).gradient

  exact = meta_gradient('exact', *batches)
  hessian_free = meta_gradient('hessian_free', *batches)
  first_order = meta_gradient('first_order', *batches[:2])
  assert _distance(exact, hessian_free) < 0.05 * _distance(exact, first_order)


# Evaluation.


@pytest.mark.parametrize(
  ('variant', 'num_steps'),
  [('first_order', 2), ('hessian_free', 3), ('exact', 0)],
)
def test_a_model_is_scored_after_gradient_steps_of_size_alpha(
  variant, num_steps
):
  process, client = _process(variant), _CLIENTS[2]
  adapted = toy_problems.descended_alone(
    *(_KERNEL, client, num_steps, _HPARAMS.inner_learning_rate)
  )
  weights = toy_problems.new_client(
    process, process.initialize(), client
  ).weights
  toy_problems.assert_part(weights, {'head': adapted})
  known = process.initialize_client_state(0)._replace(num_rounds=np.int32(1))
  assert process.needs_training_data(known) == (num_steps > 0)


def test_adaptation_changes_what_inner_steps_change():
  hparams = dataclasses.replace(_HPARAMS, inner_scope='head')
  assert hparams.adaptation().fine_tune == 'head'
