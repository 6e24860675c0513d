import numpy as np
import pytest
import tensorflow_datasets as tfds
import tensorflow_federated as tff
import urllib3
from tensorflow_datasets.core.download import downloader

from tests.datasets import shared
from tff_pfl import datasets, errors


def _load(name):
  return datasets.load_dataset(name, num_clients=3, partition='iid')


@pytest.mark.parametrize(
  'name, shape',
  [
    ('mnist', (28, 28, 1)),
    ('fashion_mnist', (28, 28, 1)),
    ('cifar10', (32, 32, 3)),
  ],
)
def test_without_data_dir_the_data_come_through_tensorflow_datasets(
  name, shape
):
  with tfds.testing.mock_data(num_examples=30):
    dataset = _load(name)
  assert dataset.name == name
  assert dataset.class_counts('train').sum() == 30
  assert dataset.class_counts('test').sum() == 30
  part = dataset.train('client_0')
  assert part.x.shape[1:] == shape and part.x.dtype == np.float32
  assert 0 <= part.x.min() and 0.5 < part.x.max() <= 1


@pytest.mark.parametrize(
  'error, reason',
  [
    (ConnectionError(''), r'\(ConnectionError\)'),
    (OSError('Name or service not known\nand a long story'), 'Name or service'),
  ],
)
def test_a_failing_download_is_one_line(monkeypatch, error, reason):
  def fail(*_, **__):
    raise error

  monkeypatch.setattr(tfds, 'load', fail)
  match = f'mnist .*{reason}.*; pass `data_dir` .*mnist.npz'
  with shared.one_line_error(match, errors.RunError):
    _load('mnist')


def test_a_server_that_is_not_there_is_not_tried_for_minutes(monkeypatch):
  def load(*_, **__):
    with downloader._open_url('http://127.0.0.1:1'):
      pass

  waits = []
  monkeypatch.setattr(urllib3.Retry, 'sleep', lambda *_: waits.append(1))
  monkeypatch.setattr(tfds, 'load', load)
  with shared.one_line_error('mnist could not', errors.RunError):
    _load('mnist')
  assert len(waits) == 4


@pytest.mark.parametrize(
  'name, source, load, remedy',
  [
    ('femnist', 'emnist', 'load_data', '`data_dir` .* of femnist.npz'),
    ('shakespeare', 'shakespeare', 'load_data', '`data_dir` with a file'),
    ('stackoverflow', 'stackoverflow', 'load_word_counts', 'copy ~/.tff'),
  ],
)
def test_without_network_tffs_data_are_one_line_too(
  monkeypatch, name, source, load, remedy
):
  def fail(**_):
    raise OSError('Name or service not known\nand a long story')

  monkeypatch.setattr(getattr(tff.simulation.datasets, source), load, fail)
  match = f'{name} .*Name or service.*{remedy}'
  with shared.one_line_error(match, errors.RunError):
    datasets.load_dataset(name, num_clients=1, partition='natural')
