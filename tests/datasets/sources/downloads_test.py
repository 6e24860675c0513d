import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import urllib3
from tensorflow_datasets.core.download import downloader

from tests.datasets import shared
from tff_pfl import datasets, errors
from tff_pfl import tff_api as tff
from tff_pfl.datasets.sources import vocabulary

_TFF = tff.simulation.datasets
_load = functools.partial(shared.load, num_clients=3, partition='iid')


@pytest.mark.parametrize(
  'name, shape', [('mnist', (28, 28, 1)), ('svhn', (32, 32, 3))]
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


def _mock(**features):
  """Lets TensorFlow Datasets have these examples in every split."""
  return tfds.testing.mock_data(
    as_dataset_fn=lambda *_, **__: tf.data.Dataset.from_tensor_slices(features)
  )


@pytest.mark.parametrize('name, first', [('letters', 1), ('byclass', 0)])
def test_emnist_is_upright_and_its_classes_are_numbered_from_0(name, first):
  # An upright I is published as a line from left to right.
  published = np.zeros((26, 28, 28, 1), np.uint8)
  published[:, 14, 4:24] = 255
  with _mock(image=published, label=np.arange(26) + first):
    arrays = datasets.load_arrays(f'emnist_{name}')
  assert arrays.y.tolist() == arrays.y_test.tolist() == list(range(26))
  assert arrays.num_classes == {'letters': 26, 'byclass': 62}[name]
  for x in (arrays.x, arrays.x_test):
    assert np.argwhere(x[0, ..., 0]).tolist() == [[i, 14] for i in range(4, 24)]


def test_without_a_file_sentiment_is_sentiment140_by_user():
  # Each user says 10 of their own words twice; the repeats are left out.
  said = [(f'u{i % 3}', f'word{i % 30}') for i in range(60)]
  with _mock(
    user=[user for user, _ in said],
    text=[f'{word} caf\u00e9' for _, word in said],
    polarity=np.where(np.arange(60) % 30 < 15, 0, 4),
  ):
    data = shared.load('sentiment', min_texts=10, max_words=3)
    with shared.one_line_error('at most 3, the number of users'):
      shared.load('sentiment', num_clients=4)
  assert set(data.client_ids) < {'u0', 'u1', 'u2'}
  # Words 0 to 14 are negative, five of each user.
  assert shared.all_labels(data).tolist() == [[5, 5], [5, 5]]
  cafe = vocabulary.hashed('caf\u00e9', 10_000)
  assert all(
    (data.train(c).x[:, 1:] == [cafe, 0]).all() for c in data.client_ids
  )


def _fail(*_, **__):
  raise OSError('Name or service not known\nand a long story')


@pytest.mark.parametrize(
  'name, module, load, match',
  [
    ('mnist', tfds, 'load', 'mnist.npz'),
    ('sentiment', tfds, 'load', '`data_dir` with a CSV file'),
    ('femnist', _TFF.emnist, 'load_data', 'femnist.npz'),
    ('stackoverflow', _TFF.stackoverflow, 'load_word_counts', 'copy ~/.tff'),
  ],
)
def test_a_failing_download_is_one_line(monkeypatch, name, module, load, match):
  monkeypatch.setattr(module, load, _fail)
  match = f'{name}.* could not .*Name or service.*{match}'
  with shared.one_line_error(match, errors.RunError):
    shared.load(name, num_clients=1)


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
