import numpy as np
import pytest

from binaries.benchmark import workloads


def _sizes(name):
  model = workloads.get_workload(name).build_model()
  kernels = [w for n, w in model.initial_weights.items() if 'kernel' in n]
  return [kernel.shape for kernel in kernels]


def _num_weights(model):
  return sum(value.size for value in model.initial_weights.values())


def test_models_have_the_published_sizes():
  mlp = [(784, 512), (512, 256), (256, 64), (64, 10)]
  assert _sizes('w1') == mlp
  assert _sizes('w2') == _sizes('w2f') == mlp
  assert _sizes('w3') == [
    (5, 5, 3, 64),
    (5, 5, 64, 64),
    (1600, 120),
    (120, 64),
    (64, 10),
  ]
  assert _sizes('w4') == [(784, 80), (80, 60), (60, 10)]


@pytest.mark.parametrize('name', ['w1', 'w3', 'w4', 'scale'])
def test_clients_have_two_classes_and_all_their_examples(name):
  workload = workloads.get_workload(name)
  data = workload.make_data()
  assert data.num_clients == workload.num_clients
  train = data.train(data.client_ids[-1])
  assert train.x.shape == (workload.examples_per_client, *workload.shape)
  _, counts = np.unique(train.y, return_counts=True)
  assert counts.tolist() == [workload.examples_per_client // 2] * 2


def test_examples_do_not_depend_on_the_population():
  workload = workloads.get_workload('scale').scaled_down()
  large, small = workload.make_data(), workload.make_data(6)
  assert (large.num_clients, small.num_clients) == (600, 6)
  np.testing.assert_array_equal(
    large.train(large.client_ids[5]).x, small.train(small.client_ids[5]).x
  )


@pytest.mark.parametrize('name', ['w1', 'w3', 'w4', 'scale'])
def test_scaled_down_workload_does_the_same_on_less(name):
  workload = workloads.get_workload(name)
  small = workload.scaled_down()
  assert small.name == name
  assert 'scaled down' in small.description
  assert (small.algorithm, small.hparams) == (
    workload.algorithm,
    workload.hparams,
  )
  model, small_model = workload.build_model(), small.build_model()
  assert list(model.initial_weights) == list(small_model.initial_weights)
  assert _num_weights(small_model) < _num_weights(model) / 10
