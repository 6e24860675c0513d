"""Tests of the idx reader and of MNIST and Fashion-MNIST."""

import gzip

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl import datasets

TRAIN_IMAGES = 'train-images-idx3-ubyte.gz'
TRAIN_LABELS = 'train-labels-idx1-ubyte.gz'
TEST_LABELS = 't10k-labels-idx1-ubyte.gz'


def _write(path, content):
  path.write_bytes(gzip.compress(content))


def _write_all(folder, seed=0, num_train=40, num_test=20):
  folder.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(seed)
  arrays = {}
  for prefix, n in (('train', num_train), ('t10k', num_test)):
    arrays[prefix] = rng.integers(0, 256, (n, 28, 28)), np.arange(n) % 10
    _write(
      folder / f'{prefix}-images-idx3-ubyte.gz', shared.idx(arrays[prefix][0])
    )
    _write(
      folder / f'{prefix}-labels-idx1-ubyte.gz', shared.idx(arrays[prefix][1])
    )
  return arrays


def _load(folder, name='mnist', num_clients=2, partition='iid'):
  return datasets.load_dataset(
    name,
    num_clients=num_clients,
    partition=partition,
    data_dir=str(folder),
  )


def test_all_images_arrive_scaled_with_their_labels(tmp_path):
  arrays = _write_all(tmp_path)
  dataset = _load(tmp_path)
  assert dataset.name == 'mnist'
  assert dataset.num_classes == 10
  assert dataset.element_spec == shared.spec(28, 28, 1)
  for prefix, read in (('train', dataset.train), ('t10k', dataset.test)):
    images, labels = arrays[prefix]
    expected = {
      (images[i] / 255).astype(np.float32).tobytes(): labels[i]
      for i in range(len(images))
    }
    parts = [read(client_id) for client_id in dataset.client_ids]
    found = {
      x.tobytes(): y for part in parts for x, y in zip(part.x[..., 0], part.y)
    }
    assert found == expected


def test_folders_tell_the_two_data_sets_apart(tmp_path):
  for seed, folder in enumerate(('mnist_idx', 'fashion_mnist_idx')):
    _write_all(tmp_path / folder, seed, num_train=30 + 10 * seed)
  digits, fashion = _load(tmp_path), _load(tmp_path, 'fashion_mnist')
  assert digits.class_counts().sum() == 30
  assert fashion.class_counts().sum() == 40
  assert fashion.name == 'fashion_mnist'


def test_the_folder_of_the_other_data_set_is_refused(tmp_path):
  _write_all(tmp_path / 'fashion_mnist_idx')
  with pytest.raises(ValueError, match='found a folder of fashion_mnist'):
    _load(tmp_path / 'fashion_mnist_idx', 'mnist')
  with pytest.raises(ValueError, match='found none of them'):
    _load(tmp_path, 'mnist')
  assert _load(tmp_path / 'fashion_mnist_idx', 'fashion_mnist')


def test_one_missing_file_is_named(tmp_path):
  _write_all(tmp_path)
  (tmp_path / TEST_LABELS).unlink()
  with pytest.raises(
    ValueError, match=f'{TEST_LABELS}` to be a file, found none'
  ):
    _load(tmp_path)


@pytest.mark.parametrize(
  'content, match',
  [
    (b'', 'found 0 bytes'),
    (shared.idx(np.zeros(5)), 'magic 00000801'),
    (b'\0\0\x08\x03\0\0', '16 bytes of header.*found 6 bytes'),
    (shared.idx(np.zeros((5, 14, 56))), r'shape \(5, 14, 56\)'),
    (shared.idx(np.zeros((0, 28, 28))), r'shape \(0, 28, 28\)'),
    (shared.idx(np.zeros((5, 28, 28)))[:-1], '3935 bytes, not 3936'),
    (shared.idx(np.zeros((5, 28, 28))) + b'\0', '3937 bytes, not 3936'),
  ],
  ids=range(7),
)
def test_images_of_the_wrong_form_are_named(tmp_path, content, match):
  _write_all(tmp_path)
  _write(tmp_path / TRAIN_IMAGES, content)
  with shared.one_line_error(f'{TRAIN_IMAGES}`.*{match}'):
    _load(tmp_path)


@pytest.mark.parametrize(
  'labels, match',
  [
    (np.zeros(41), 'to be 40 labels.*found 41'),
    (10 * (np.arange(40) == 17), 'found 10 at index 17'),
  ],
)
def test_labels_that_are_not_the_images_are_errors(tmp_path, labels, match):
  _write_all(tmp_path)
  _write(tmp_path / TRAIN_LABELS, shared.idx(labels))
  with pytest.raises(ValueError, match=f'{TRAIN_LABELS}`.*{match}'):
    _load(tmp_path)


def test_real_mnist_has_the_published_class_counts(real_data):
  dataset = _load(real_data, 'mnist', 100, 'shards:2')
  train, test = dataset.class_counts('train'), dataset.class_counts('test')
  assert train.sum(axis=0).tolist() == [
    5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
  ]  # fmt: skip
  assert test.sum(axis=0).tolist() == [
    980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
  ]  # fmt: skip
  assert ((train > 0).sum(axis=1) == 2).all()
  assert np.array_equal(train > 0, test > 0)
  sizes = train.sum(axis=1)
  assert sizes.min() > 550 and sizes.max() < 650
  # The published mean of the training pixels.
  mean = np.mean([dataset.train(c).x.mean() for c in dataset.client_ids])
  assert abs(mean - 0.1307) < 0.002
