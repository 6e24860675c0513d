"""Options of local training, with numbers derived by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tests.core import shared
from tff_pfl import tff_api as tff
from tff_pfl.core import client as client_lib
from tff_pfl.core import in_place, objectives, schedules, training_options

_RATE = 0.1


@pytest.fixture(scope='module')
def two_slopes():
  return shared.slopes(2)


@pytest.fixture(params=['values', 'in_place'])
def form(request, monkeypatch):
  """Both forms of the loop."""
  if request.param == 'in_place':
    monkeypatch.setattr(in_place, '_MANY_WEIGHTS', 1)
  return request.param


def _train(
  model, options, rounds_done=None, optimizer='sgd', momentum=0.0, num_steps=1
):
  """The weights after steps from (1, 2) on x = (3, 4), y = 6: w x - y = 5."""
  phase = shared.phase(optimizer, _RATE, momentum, num_steps=num_steps)
  examples = shared.padded(np.float32([[3, 4]]), np.float32([6]), capacity=1)
  weights = {'head/kernel': tf.constant([[1.0], [2.0]])}

  @tf.function(autograph=False)
  def train():
    client = _client(model, options, rounds_done, examples)
    trained = client.sgd(objectives.joint_loss(model), weights, phase)
    return trained.weights['head/kernel']

  return train().numpy()[:, 0]


def _client(model, options, rounds_done=None, examples=None):
  factor = None
  if rounds_done is not None:
    factor = schedules.factor(options.learning_rate_schedule, rounds_done)
  return client_lib.Client(
    model,
    client_lib.Broadcast(0, 0, {}, {}),
    {},
    examples,
    tf.constant([1, 2]),
    training=options,
    rate_factor=factor,
  )


_WEIGHTS = np.array([1.0, 2.0])
_GRADIENT = np.array([30.0, 40.0])  # Of norm 50.


def _close(found, expected):
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
  ('options', 'expected'),
  [
    # Weight decay is part of the gradient, and comes after clipping.
    ({'weight_decay': 0.5}, _WEIGHTS - _RATE * (_GRADIENT + 0.5 * _WEIGHTS)),
    (
      {'weight_decay': 0.5, 'max_gradient_norm': 5.0},
      _WEIGHTS - _RATE * (0.1 * _GRADIENT + 0.5 * _WEIGHTS),
    ),
    # Only large gradients are scaled down.
    ({'max_gradient_norm': 60.0}, _WEIGHTS - _RATE * _GRADIENT),
  ],
)
def test_steps_by_hand(two_slopes, form, options, expected):
  options = training_options.TrainingOptions(**options)
  _close(_train(two_slopes, options), expected)


def test_weight_decay_enters_the_momentum(two_slopes, form):
  options = training_options.TrainingOptions(
    weight_decay=0.5, max_gradient_norm=1e-6
  )
  # Without a gradient to speak of only the decay moves the weights.
  first = _WEIGHTS - _RATE * 0.5 * _WEIGHTS
  second = first - _RATE * (0.9 * 0.5 * _WEIGHTS + 0.5 * first)
  actual = _train(two_slopes, options, momentum=0.9, num_steps=2)
  np.testing.assert_allclose(actual, second, atol=1e-5)


def test_decoupled_decay_is_beside_the_step(two_slopes, form):
  options = training_options.TrainingOptions(decoupled_weight_decay=0.5)
  _close(
    _train(two_slopes, options),
    _WEIGHTS * (1 - _RATE * 0.5) - _RATE * _GRADIENT,
  )


def test_learning_rate_follows_the_rounds(two_slopes, form):
  options = training_options.TrainingOptions(
    learning_rate_schedule='step:2:0.5'
  )
  _close(
    _train(two_slopes, options, tf.constant(5), momentum=0.9),
    _WEIGHTS - _RATE * 0.25 * _GRADIENT,
  )


def test_a_schedule_scales_adam_and_decoupled_decay(two_slopes, form):
  options = training_options.TrainingOptions(
    decoupled_weight_decay=0.5,
    learning_rate_schedule='step:1:0.5',
  )
  _close(
    _train(two_slopes, options, tf.constant(1), 'adam'),
    _WEIGHTS * (1 - _RATE * 0.25) - 0.5 * _RATE,
  )


def test_a_rate_that_a_method_computes_with_follows_the_rounds(two_slopes):
  options = training_options.TrainingOptions(
    learning_rate_schedule=lambda rounds_done: 0.5
  )
  assert _client(two_slopes, options).rate(3.0) == 3.0
  in_round = _client(two_slopes, options, tf.constant(0))
  assert float(in_round.rate(3.0)) == 1.5


def test_plain_training_is_without_the_options(two_slopes):
  """FedALA's mixing weights, say, do not decay."""
  options = training_options.TrainingOptions(weight_decay=0.5)
  phase = shared.phase('sgd', _RATE, num_steps=1)
  examples = shared.padded(np.float32([[3, 4]]), np.float32([6]), capacity=1)
  trained = _client(two_slopes, options, examples=examples).sgd(
    objectives.joint_loss(two_slopes),
    {'head/kernel': tf.constant([[1.0], [2.0]])},
    phase,
    plain=True,
  )
  kernel = trained.weights['head/kernel'].numpy()[:, 0]
  _close(kernel, _WEIGHTS - _RATE * _GRADIENT)


def test_what_needs_a_learning_rate_says_so():
  optimizer = tff.learning.optimizers.schedule_learning_rate(
    tff.learning.optimizers.build_sgdm(0.1), lambda step: 0.1
  )
  options = training_options.TrainingOptions(decoupled_weight_decay=0.5)
  chain = training_options.OptimizerChain(optimizer, options)
  state = chain.initialize(tf.TensorSpec([2]))
  with pytest.raises(ValueError, match="`optimizer` to be .*'learning_rate'"):
    chain.decay(state)
