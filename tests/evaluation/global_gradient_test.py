import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy_problems
from tff_pfl import datasets
from tff_pfl import runtime as runtime_lib
from tff_pfl.datasets import batches
from tff_pfl.evaluation import global_gradient

keras = tf.keras


@pytest.fixture(scope='module')
def normalizing_model():
  # The layers draw their weights from Keras' global state.
  tf.keras.utils.set_random_seed(0)
  return toy_problems.classifier_from(toy_problems.dropout_and_normalization())


class _Clients:
  """Clients with the given training examples that notes who was read."""

  def __init__(self, clients):
    self._clients = {f'client {i}': c for i, c in enumerate(clients)}
    self.client_ids = tuple(self._clients)
    self.read = []

  def train(self, client_id):
    self.read.append(client_id)
    return self._clients[client_id]

  def num_train_examples(self, client_id):
    return datasets.num_examples(self._clients[client_id])


def _linear():
  rng = np.random.default_rng(0)
  return toy_problems.linear_network(
    rng.normal(size=(4, 3)).astype(np.float32),
    rng.normal(size=(3, 2)).astype(np.float32),
  )


def _regression_clients(sizes):
  return [
    toy_problems.regression_examples(n, 4, 2, seed=i)
    for i, n in enumerate(sizes)
  ]


def _linear_gradient(weights, client):
  """Of a linear network's mean squared error, in float64."""
  kernels = {
    name: np.asarray(value, np.float64)
    for name, value in toy_problems.kernels(weights).items()
  }
  x, y = np.asarray(client.x, np.float64), np.asarray(client.y, np.float64)
  features = x @ kernels['body']
  error = 2 * (features @ kernels['head'] - y) / y.size
  return {
    'body/kernel': x.T @ error @ kernels['head'].T,
    'head/kernel': features.T @ error,
  }


def _mean_linear_gradient(weights, clients, client_weights):
  gradients = [_linear_gradient(weights, client) for client in clients]
  return {
    name: np.average(
      [gradient[name] for gradient in gradients], axis=0, weights=client_weights
    )
    for name in weights
  }


def _norm(gradient):
  return np.sqrt(sum(np.sum(np.square(v)) for v in gradient.values()))


# One client has more examples than go through the network at once.
_SIZES = (3, 600, 16, 1)


@pytest.mark.parametrize(
  'client_weighting, client_weights, weight',
  [('num_examples', _SIZES, 620), ('uniform', [1, 1, 1, 1], 4)],
)
def test_global_gradient_is_the_mean_of_the_clients(
  runtime, client_weighting, client_weights, weight
):
  model, clients = _linear(), _regression_clients(_SIZES)
  weights = model.initial_weights
  computation = global_gradient.build_global_gradient(
    model, client_weighting=client_weighting
  )
  # A client without examples has no say.
  empty = toy_problems.regression_examples(0, 4, 2, seed=9)
  result = runtime.run(
    computation, weights, toy_problems.padded([*clients, empty])
  )
  assert result.weight == weight
  expected = _mean_linear_gradient(weights, clients, client_weights)
  assert list(result.gradient) == list(expected)
  for name, value in expected.items():
    np.testing.assert_allclose(
      result.gradient[name], value, rtol=1e-4, atol=1e-6
    )


def test_clients_of_different_sizes_may_run_as_one_program():
  # They share a bucket and pass through in 3, 3 and 4 parts.
  sizes = (520, 600, 1000)
  model, clients = _linear(), _regression_clients(sizes)
  with runtime_lib.create_runtime(
    'in_process', batched_clients=True, max_concurrent_clients=1
  ) as batched:
    result = batched.run(
      global_gradient.build_global_gradient(model),
      model.initial_weights,
      toy_problems.padded(clients),
    )
  expected = _mean_linear_gradient(model.initial_weights, clients, sizes)
  for name, value in expected.items():
    np.testing.assert_allclose(
      result.gradient[name], value, rtol=1e-4, atol=1e-6
    )


def test_global_gradient_of_nobody_is_not_zero(runtime):
  model = _linear()
  result = runtime.run(
    global_gradient.build_global_gradient(model),
    model.initial_weights,
    toy_problems.padded([toy_problems.regression_examples(0, 4, 2, seed=0)]),
  )
  assert result.weight == 0
  assert np.all(np.isnan(result.gradient['head/kernel']))


def test_global_gradient_is_a_federated_computation_from_server_to_server():
  signature = global_gradient.build_global_gradient(_linear()).type_signature
  assert signature.parameter[0].placement is tff.SERVER
  assert signature.parameter[1].placement is tff.CLIENTS
  assert signature.result.placement is tff.SERVER


def test_norm_over_several_calls_is_that_of_the_whole(runtime):
  model = _linear()
  # Three calls, the last of one client; two clients without examples.
  sizes = [0, *(1 + 7 * i % 11 for i in range(40)), 0, 30]
  clients = _regression_clients(sizes)
  data = _Clients(clients)
  norm = global_gradient.global_gradient_norm(
    model, runtime, model.initial_weights, data
  )
  filled = [client for client in clients if len(client.y)]
  expected = _mean_linear_gradient(
    model.initial_weights, filled, [len(client.y) for client in filled]
  )
  assert norm == pytest.approx(_norm(expected), rel=1e-5)
  assert type(norm) is float
  assert data.read == [c for c, n in zip(data.client_ids, sizes) if n]


def test_norm_may_weight_clients_uniformly_and_keep_what_it_read(runtime):
  model, clients = _linear(), _regression_clients((2, 12, 5))
  data = _Clients(clients)
  gradient = global_gradient.build_global_gradient(
    model, client_weighting='uniform'
  )
  train = batches.ClientBatches(data.train)
  for scale in (1.0, 0.5):
    weights = {k: scale * v for k, v in model.initial_weights.items()}
    norm = global_gradient.global_gradient_norm(
      model, runtime, weights, data, gradient=gradient, train=train
    )
    expected = _mean_linear_gradient(weights, clients, [1, 1, 1])
    assert norm == pytest.approx(_norm(expected), rel=1e-5)
  assert len(data.read) == len(clients)


def test_norm_vanishes_at_the_global_optimum(runtime):
  clients = _regression_clients((20, 30))
  x, y, _ = zip(*clients)
  x, y = (np.concatenate(v).astype(np.float64) for v in (x, y))
  solution = np.linalg.lstsq(x, y, rcond=None)[0].astype(np.float32)
  model = toy_problems.linear_network(None, solution)
  data = _Clients(clients)
  norm = global_gradient.global_gradient_norm(
    model, runtime, model.initial_weights, data
  )
  assert norm < 1e-6
  # No client alone is at its optimum.
  assert (
    global_gradient.global_gradient_norm(
      model, runtime, model.initial_weights, _Clients(clients[:1])
    )
    > 0.1
  )


def test_gradient_with_dropout_and_moving_statistics_is_that_of_one_function(
  runtime, normalizing_model
):
  model = normalizing_model
  weights = toy_problems.jittered(model.initial_weights)
  clients = [toy_problems.labeled_examples(n, seed=n) for n in (5, 30)]
  gradient = runtime.run(
    global_gradient.build_global_gradient(model),
    weights,
    toy_problems.padded(clients),
  ).gradient
  # Moving statistics have none.
  assert list(gradient) == [n for n in weights if n not in model.statistics]
  x, y, _ = zip(*clients)
  x, y = np.concatenate(x), np.concatenate(y)

  def loss(changed):
    outputs, _ = model.forward(changed, x)
    return np.mean(model.loss(y, outputs), dtype=np.float64)

  step = 1e-2
  for name, value in gradient.items():
    index = tuple(size // 2 for size in value.shape)
    moved = np.zeros_like(value)
    moved[index] = step
    slope = (
      loss({**weights, name: weights[name] + moved})
      - loss({**weights, name: weights[name] - moved})
    ) / (2 * step)
    assert value[index] == pytest.approx(slope, rel=2e-2, abs=2e-4), name


def test_padding_that_a_network_cannot_take_does_not_reach_the_gradient(
  runtime,
):
  # Its slope at an input of zeros, which padding is, is not a number.
  network = keras.Sequential(
    [
      keras.layers.Input([5]),
      keras.layers.Lambda(lambda x: x / tf.norm(x, axis=1, keepdims=True)),
      keras.layers.Dense(4, name='dense'),
      keras.layers.Dense(3, name='head'),
    ]
  )
  model = toy_problems.classifier_from(network)
  full, empty = (toy_problems.labeled_examples(n, seed=1) for n in (5, 0))
  result = runtime.run(
    global_gradient.build_global_gradient(model),
    model.initial_weights,
    toy_problems.padded([full, empty]),
  )
  assert all(np.all(np.isfinite(v)) for v in result.gradient.values())


def test_a_gradient_that_is_not_finite_shows_in_the_norm(runtime):
  model, (client,) = _linear(), _regression_clients((4,))
  client = client._replace(x=np.full_like(client.x, np.nan))
  norm = global_gradient.global_gradient_norm(
    model, runtime, model.initial_weights, _Clients([client])
  )
  assert not np.isfinite(norm)


def test_dataset_of_the_library_is_taken(runtime):
  model, (client,) = _linear(), _regression_clients((24,))
  data = datasets.FederatedDataset.from_arrays(
    client.x, client.y, num_clients=3, test_fraction=0.0, seed=0
  )
  norm = global_gradient.global_gradient_norm(
    model, runtime, model.initial_weights, data
  )
  expected = _linear_gradient(model.initial_weights, client)
  assert norm == pytest.approx(_norm(expected), rel=1e-5)


def test_impossible_global_gradients_are_refused(runtime):
  model = _linear()
  with pytest.raises(ValueError, match="num_examples, uniform, found 'loss'"):
    global_gradient.build_global_gradient(model, client_weighting='loss')
  empty = _Clients(_regression_clients((0, 0)))
  with pytest.raises(ValueError, match='one client with training examples'):
    global_gradient.global_gradient_norm(
      model, runtime, model.initial_weights, empty
    )
  with pytest.raises(ValueError, match="no 'head/kernel'"):
    global_gradient.global_gradient_norm(
      model,
      runtime,
      {'body/kernel': model.initial_weights['body/kernel']},
      _Clients(_regression_clients((2,))),
    )
