import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy_problems
from tff_pfl.algorithms import fed_avg
from tff_pfl.client import training_loop

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_CLIENTS = [
  toy_problems.regression_examples(4, 2, 1, seed=0),
  toy_problems.regression_examples(12, 2, 1, seed=1),
]


@functools.cache
def _build(hparams=None, initial=None, **options):
  model = toy_problems.linear_network(
    None, _INITIAL if initial is None else np.float32(initial)
  )
  hparams = hparams or fed_avg.FedAvgHParams(
    num_steps=1, batch_size=None, learning_rate=0.1, momentum=0.0
  )
  return fed_avg.build_fed_avg(model, hparams, **options)


def _train(process, num_rounds=1, clients=_CLIENTS):
  """The global weight after some rounds, and the last round's metrics."""
  state = process.initialize()
  states = process.initialize_client_states(list(range(len(clients))))
  for _ in range(num_rounds):
    output = process.next(state, states, toy_problems.batched(clients))
    state, states = output.state, output.client_states
  return toy_problems.kernels(state.global_weights)['head'], output.metrics


def _gradient(weight, client):
  """Of the mean squared error of `x @ weight`."""
  errors = client.x @ weight - client.y[:, np.newaxis]
  return 2 * client.x.T @ errors / len(client.y)


def _local_weight(weight, client, num_steps, learning_rate, momentum=0.0):
  """Full-batch gradient descent with momentum, from the definition."""
  velocity = np.zeros_like(weight)
  for _ in range(num_steps):
    velocity = momentum * velocity + _gradient(weight, client)
    weight = weight - learning_rate * velocity
  return weight


def _mean(weights):
  return np.average(weights, axis=0, weights=[len(c.y) for c in _CLIENTS])


def test_one_weight_by_hand():
  # Client 1: x = 1, y = 0: gradient 2 w = 4. Clients 2 to 4 are one client with
  # x = 1, y = 1: gradient 2 (w - 1) = 2. Pooled gradient (4 + 3 * 2) / 4 = 2.5.
  clients = [
    toy_problems.regression_examples(1, 1, 1, seed=0)._replace(
      x=np.float32([[1]]), y=np.float32([0])
    ),
    toy_problems.regression_examples(3, 1, 1, seed=0)._replace(
      x=np.ones([3, 1], np.float32), y=np.ones(3, np.float32)
    ),
  ]
  process = _build(initial=((2,),))
  weight, metrics = _train(process, clients=clients)
  assert weight == pytest.approx(2 - 0.1 * 2.5)
  # The metrics are those of the training steps: losses 4 and 1, 1, 1.
  assert metrics['loss'] == pytest.approx((4 + 3) / 4)
  assert metrics['update_norm'] == pytest.approx(0.25)
  assert metrics['examples'] == 4
  assert metrics['clients'] == 2


def test_fed_sgd_is_a_gradient_step_on_the_pooled_data():
  weight, _ = _train(_build(), num_rounds=3)
  pooled = _CLIENTS[0]._replace(
    x=np.concatenate([client.x for client in _CLIENTS]),
    y=np.concatenate([client.y for client in _CLIENTS]),
  )
  expected = _local_weight(_INITIAL, pooled, num_steps=3, learning_rate=0.1)
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


@pytest.mark.parametrize('count', [{'num_steps': 4}, {'num_epochs': 4}])
def test_local_steps_are_averaged_by_number_of_examples(count):
  hparams = fed_avg.FedAvgHParams(
    batch_size=None, learning_rate=0.05, momentum=0.9, **count
  )
  weight, _ = _train(_build(hparams), num_rounds=2)
  expected = _INITIAL
  for _ in range(2):
    # The momentum starts anew each round.
    expected = _mean(
      [_local_weight(expected, client, 4, 0.05, 0.9) for client in _CLIENTS]
    )
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_uniform_weighting_takes_the_plain_mean():
  weight, _ = _train(_build(client_weighting='uniform'))
  locals_ = [_local_weight(_INITIAL, client, 1, 0.1) for client in _CLIENTS]
  np.testing.assert_allclose(weight, np.mean(locals_, axis=0), rtol=1e-5)
  assert not np.allclose(weight, _mean(locals_), rtol=1e-3)


def test_server_learning_rate_scales_the_mean_update():
  process = _build(server_optimizer=training_loop.build_optimizer('sgd', 0.5))
  weight, metrics = _train(process)
  mean = _mean([_local_weight(_INITIAL, client, 1, 0.1) for client in _CLIENTS])
  np.testing.assert_allclose(
    weight, _INITIAL - 0.5 * (_INITIAL - mean), rtol=1e-5
  )
  # The norm is that of the update, before the server's step.
  assert metrics['update_norm'] == pytest.approx(
    np.linalg.norm(_INITIAL - mean), rel=1e-5
  )


def test_server_momentum_accumulates_over_rounds():
  process = _build(
    server_optimizer=training_loop.build_optimizer('sgd', 0.5, momentum=0.9)
  )
  weight, _ = _train(process, num_rounds=3)
  expected, velocity = _INITIAL, 0
  for _ in range(3):
    update = expected - _mean(
      [_local_weight(expected, client, 1, 0.1) for client in _CLIENTS]
    )
    velocity = 0.9 * velocity + update
    expected = expected - 0.5 * velocity
  np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_first_server_step_of_adam_moves_by_its_learning_rate():
  process = _build(server_optimizer=training_loop.build_optimizer('adam', 0.25))
  weight, _ = _train(process)
  # m / sqrt(v) is update / |update| in the first step.
  update = _INITIAL - _mean(
    [_local_weight(_INITIAL, client, 1, 0.1) for client in _CLIENTS]
  )
  np.testing.assert_allclose(
    weight, _INITIAL - 0.25 * np.sign(update), rtol=1e-4
  )


def test_agrees_with_the_federated_averaging_of_tff():
  """An independent implementation, with the model as TFF's own form."""
  kernel = np.random.default_rng(3).normal(size=[3, 2]).astype(np.float32)
  clients = [toy_problems.regression_examples(n, 3, 2, n) for n in (5, 16)]
  spec = (
    tf.TensorSpec([None, 3], tf.float32),
    tf.TensorSpec([None, 2], tf.float32),
  )

  def keras_model():
    network = tf.keras.Sequential(
      [tf.keras.layers.Input([3]), tf.keras.layers.Dense(2, use_bias=False)]
    )
    return tff.learning.models.from_keras_model(
      network, loss=tf.keras.losses.MeanSquaredError(), input_spec=spec
    )

  learning_process = tff.learning.algorithms.build_weighted_fed_avg(
    keras_model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05, 0.9),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  # Three epochs of full batches.
  theirs = learning_process.next(
    learning_process.set_model_weights(
      learning_process.initialize(),
      tff.learning.models.ModelWeights([kernel], []),
    ),
    [
      tf.data.Dataset.from_tensors((client.x, client.y)).repeat(3)
      for client in clients
    ],
  )
  hparams = fed_avg.FedAvgHParams(
    num_epochs=3, batch_size=None, learning_rate=0.05, momentum=0.9
  )
  weight, metrics = _train(
    _build(hparams, tuple(map(tuple, kernel))), clients=clients
  )
  np.testing.assert_allclose(
    weight,
    learning_process.get_model_weights(theirs.state).trainable[0],
    rtol=1e-5,
  )
  assert metrics['loss'] == pytest.approx(
    theirs.metrics['client_work']['train']['loss'], rel=1e-5
  )
