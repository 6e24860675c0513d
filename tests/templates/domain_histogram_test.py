"""Tests of the federated count of domains."""

import numpy as np
import pytest
import tensorflow as tf

from tff_pfl import datasets
from tff_pfl.models import domains, zoo
from tff_pfl.templates import domain_histogram

_NAMES = ('a', 'b', 'c')


class _IdsOnly(datasets.ExampleSource):
  """Clients whose inputs must not be read."""

  def __init__(self, clients):
    self._clients = clients

  def examples(self, position):
    raise AssertionError('Inputs were read.')

  labels = examples

  def num_examples(self, position):
    return len(self._clients[position])

  def domains(self, position):
    return np.array(self._clients[position], np.int32)


def _dataset(*clients, names=_NAMES):
  return datasets.FederatedDataset(
    name='ids',
    client_ids=[f'client_{i}' for i in range(len(clients))],
    element_spec={
      'x': tf.TensorSpec([], tf.float32),
      'y': tf.TensorSpec([], tf.int32),
      'domain': tf.TensorSpec([], tf.int32),
    },
    num_classes=2,
    train=_IdsOnly(clients),
    test=_IdsOnly(clients),
    domain_names=names,
  )


def test_counts_are_summed_over_clients_without_reading_inputs(runtime):
  data = _dataset([0, 2, 2], [], [2, 0], [0])
  assert domain_histogram.count_domains(data, runtime) == (3, 0, 3)


def test_model_knows_the_counts_and_how_many_a_client_has():
  model = zoo.make_model(
    'linear', datasets.make_synthetic(2).element_spec, 2, 0
  )
  data = _dataset([0, 2, 2], [], [2, 0], [0])
  found = domain_histogram.with_domains(model, data).domains
  assert found == domains.Domains(_NAMES, (3, 0, 3), 1.5)


def test_counts_are_those_of_the_dataset_on_a_runtime_of_its_own():
  rng = np.random.default_rng(0)
  data = datasets.FederatedDataset.from_arrays(
    np.zeros((90, 1)),
    np.zeros(90, int),
    num_clients=7,
    domain=rng.integers(0, 3, 90),
    domain_names=_NAMES,
  )
  counts = domain_histogram.count_domains(data)
  assert counts == tuple(data.domain_counts().sum(axis=0))
  assert all(type(count) is int for count in counts)


@pytest.mark.parametrize('bad', [3, -1])
def test_id_out_of_range_is_an_error_that_names_the_client(runtime, bad):
  data = _dataset([0], [1, bad])
  with pytest.raises(
    ValueError,
    match=r"`domain of client 'client_1'\[1\]` to be .*in \[0, 3\), found "
    + str(bad),
  ):
    domain_histogram.count_domains(data, runtime)


def test_dataset_without_domains_is_an_error(runtime):
  data = datasets.make_synthetic(3)
  with pytest.raises(ValueError, match='`data` to be a dataset with domains'):
    domain_histogram.count_domains(data, runtime)
