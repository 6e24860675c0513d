"""Tests of CIFAR-10 and of the readers of its files."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tests.datasets import shared
from tff_pfl import datasets, errors
from tff_pfl.datasets.sources import cifar, images

_SIZE = 12


@pytest.fixture(autouse=True)
def small_batches(request, monkeypatch):
  if 'real' not in request.node.name:
    small = dataclasses.replace(
      cifar.FILES['cifar10'], images_per_file=_SIZE, num_test_images=_SIZE
    )
    monkeypatch.setitem(cifar.FILES, 'cifar10', small)


def _batches(seed=0):
  """Returns images [6, 12, 32, 32, 3] and labels [6, 12]; the last for test."""
  rng = np.random.default_rng(seed)
  x = rng.integers(0, 256, (6, _SIZE, 32, 32, 3), dtype=np.uint8)
  return x, rng.integers(0, 10, (6, _SIZE), dtype=np.uint8)


def _write_binary(folder, seed=0):
  folder.mkdir(parents=True, exist_ok=True)
  names = [f'data_batch_{i}.bin' for i in range(1, 6)] + ['test_batch.bin']
  x, y = _batches(seed)
  for name, of_file, labels in zip(names, x, y):
    content = b''.join(
      bytes([label]) + b''.join(image[..., c].tobytes() for c in range(3))
      for image, label in zip(of_file, labels)
    )
    (folder / name).write_bytes(content)
  return x, y


def _write_npz(folder, seed=0, num_test=_SIZE, test_name='test_batch.npz'):
  folder.mkdir(parents=True, exist_ok=True)
  x, y = _batches(seed)
  for i in range(5):
    np.savez_compressed(
      folder / f'train_batch_{i + 1}.npz', x_train=x[i], y_train=y[i]
    )
  np.savez_compressed(
    folder / test_name, x_test=x[5][:num_test], y_test=y[5][:num_test]
  )
  return x, y


_WRITERS = {'bin': _write_binary, 'npz': _write_npz}


def _load(folder):
  return cifar.load('cifar10', str(folder))


@pytest.mark.parametrize('form', _WRITERS)
def test_all_images_arrive_in_order_with_their_labels(tmp_path, form):
  x, y = _WRITERS[form](tmp_path)
  arrays = _load(tmp_path)
  assert (arrays.name, arrays.num_classes) == ('cifar10', 10)
  assert arrays.x.dtype == np.uint8 and arrays.y.dtype == np.int32
  assert arrays.x.flags.c_contiguous
  np.testing.assert_array_equal(arrays.x, x[:5].reshape(-1, 32, 32, 3))
  np.testing.assert_array_equal(arrays.y, y[:5].ravel())
  np.testing.assert_array_equal(arrays.x_test, x[5])
  np.testing.assert_array_equal(arrays.y_test, y[5])


def test_clients_get_floats_in_the_unit_interval(tmp_path):
  x, _ = _write_binary(tmp_path)
  dataset = datasets.load_dataset(
    'cifar10', num_clients=1, partition='iid', data_dir=str(tmp_path)
  )
  assert dataset.name == 'cifar10'
  assert dataset.num_classes == 10
  assert dict(dataset.element_spec) == {
    'x': tf.TensorSpec([32, 32, 3], tf.float32),
    'y': tf.TensorSpec([], tf.int32),
  }
  found = dataset.test('client_0').x
  expected = (x[5] / 255).astype(np.float32)
  assert {i.tobytes() for i in found} == {i.tobytes() for i in expected}


@pytest.mark.parametrize(
  'folder, form',
  [
    ('.', 'bin'),
    ('.', 'npz'),
    ('cifar-10-batches-bin', 'bin'),
    ('cifar10', 'bin'),
    ('cifar10', 'npz'),
  ],
)
def test_files_are_found_in_the_folder_or_a_named_one(tmp_path, folder, form):
  _WRITERS[form](tmp_path / folder)
  assert len(_load(tmp_path).x) == 5 * _SIZE


def test_the_same_data_twice_are_ambiguous(tmp_path):
  _write_binary(tmp_path / 'cifar-10-batches-bin')
  _write_npz(tmp_path / 'cifar10')
  with pytest.raises(ValueError, match='to hold cifar10 once, found it in'):
    _load(tmp_path)
  _write_binary(tmp_path / 'cifar10')
  with pytest.raises(ValueError, match='found .bin and .npz files; move'):
    _load(tmp_path / 'cifar10')


def test_fewer_test_images_are_loaded_with_a_warning(tmp_path, caplog):
  x, _ = _write_npz(tmp_path, num_test=4, test_name='test_first4.npz')
  arrays = _load(tmp_path)
  np.testing.assert_array_equal(arrays.x_test, x[5][:4])
  assert f'Only 4 of the {_SIZE} test images of cifar10' in caplog.text
  assert 'test_first4.npz' in caplog.text


def test_all_test_images_give_no_warning(tmp_path, caplog):
  _write_npz(tmp_path)
  _load(tmp_path)
  assert caplog.text == ''


def test_missing_folder_and_missing_files_are_one_line_errors(tmp_path):
  with pytest.raises(ValueError, match='`data_dir` to be an existing folder'):
    _load(tmp_path / 'nowhere')
  with shared.one_line_error('data_batch_1.bin, .*train_batch_1.npz.*cifar10/'):
    _load(tmp_path)


@pytest.mark.parametrize(
  'form, file',
  [
    ('bin', 'data_batch_1.bin'),
    ('bin', 'test_batch.bin'),
    ('npz', 'train_batch_4.npz'),
  ],
)
def test_one_missing_file_is_named(tmp_path, form, file):
  _WRITERS[form](tmp_path)
  (tmp_path / file).unlink()
  with pytest.raises(ValueError, match=f'{file}` to be a file, found none'):
    _load(tmp_path)


def test_none_or_two_files_of_test_images_are_an_error(tmp_path):
  _write_npz(tmp_path)
  _write_npz(tmp_path, test_name='test_first4.npz')
  with pytest.raises(
    ValueError, match='one file .*found test_batch.npz, test_first4.npz'
  ):
    _load(tmp_path)
  for path in tmp_path.glob('test*.npz'):
    path.unlink()
  with pytest.raises(ValueError, match='one file .*test.*npz, found none'):
    _load(tmp_path)


# A record is 3,073 bytes: also a whole number of them too few is found.
@pytest.mark.parametrize('change', [-1, -3073, 1, 3073, -12 * 3073])
def test_binary_files_of_another_size_are_named(tmp_path, change):
  _write_binary(tmp_path)
  path = tmp_path / 'data_batch_3.bin'
  content = path.read_bytes() + bytes(max(change, 0))
  path.write_bytes(content[: _SIZE * 3073 + change])
  with shared.one_line_error(
    rf'{path.name}` to be {_SIZE * 3073} bytes.*again'
  ):
    _load(tmp_path)


def test_a_label_out_of_range_is_named(tmp_path):
  _write_binary(tmp_path)
  path = tmp_path / 'data_batch_2.bin'
  content = bytearray(path.read_bytes())
  content[7 * 3073] = 10
  path.write_bytes(content)
  with pytest.raises(
    ValueError, match='data_batch_2.bin`.*found 10 at index 7'
  ):
    _load(tmp_path)


def _batch(**changes):
  batch = dict(
    x_train=np.zeros((_SIZE, 32, 32, 3), np.uint8),
    y_train=np.zeros(_SIZE, np.uint8),
  )
  return {**batch, **changes}


@pytest.mark.parametrize(
  'content, match',
  [
    ({}, 'with x_train and y_train, found nothing'),
    (dict(x_train=[1]), 'with x_train and y_train, found x_train'),
    (_batch(x_train=np.zeros((12, 32, 32, 3))), 'uint8 .*found float64'),
    (
      _batch(x_train=np.zeros((12, 3, 32, 32), np.uint8)),
      r'\(n, \*\(32, 32, 3\)\), found uint8 of shape \(12, 3, 32, 32\)',
    ),
    (_batch(y_train=np.zeros(11, int)), r'\(12,\), found int64 .*\(11,\)'),
    (_batch(y_train=np.zeros(12)), 'y_train integers .*found float64'),
    (_batch(y_train=np.full(12, 10)), 'labels .*found 10 at index 0'),
    (_batch(y_train=np.full(12, -1)), 'labels .*found -1 at index 0'),
    (
      dict(x_train=_batch()['x_train'][1:], y_train=np.zeros(11, int)),
      'of 12 images, found 11',
    ),
    (_batch(y_train=np.array([{}] * 12)), 'a damaged one .*allow_pickle'),
  ],
)
def test_npz_files_of_the_wrong_form_are_named(tmp_path, content, match):
  _write_npz(tmp_path)
  np.savez(tmp_path / 'train_batch_2.npz', **content)
  with shared.one_line_error(f'train_batch_2.npz`.*{match}'):
    _load(tmp_path)


@pytest.mark.parametrize('num_test', [0, _SIZE + 1])
def test_no_or_too_many_test_images_are_an_error(tmp_path, num_test):
  _write_npz(tmp_path)
  np.savez(
    tmp_path / 'test_batch.npz',
    x_test=np.zeros((num_test, 32, 32, 3), np.uint8),
    y_test=np.zeros(num_test, np.uint8),
  )
  with pytest.raises(
    ValueError, match=f'test_batch.npz`.*of 1 to 12 images, found {num_test}'
  ):
    _load(tmp_path)


def test_without_data_dir_the_data_come_through_tensorflow_datasets(
  monkeypatch,
):
  monkeypatch.setattr(images, '_expect_reachable', lambda url: None)
  with tfds.testing.mock_data(num_examples=30):
    dataset = datasets.load_dataset('cifar10', num_clients=3, partition='iid')
  assert dataset.class_counts('train').sum() == 30
  assert dataset.class_counts('test').sum() == 30
  part = dataset.train('client_0')
  assert part.x.shape[1:] == (32, 32, 3) and part.x.dtype == np.float32
  assert 0 <= part.x.min() and 0.5 < part.x.max() <= 1


def test_without_network_one_line_says_what_to_do_at_once(
  monkeypatch, tmp_path
):
  asked = []

  def fail(request, timeout):
    asked.append(request.full_url)
    raise OSError('Name or service not known\nand a long story')

  monkeypatch.setattr(images.urllib.request, 'urlopen', fail)
  builder = tfds.builder
  monkeypatch.setattr(tfds, 'builder', lambda n: builder(n, data_dir=tmp_path))
  with shared.one_line_error(
    'cifar10 .*Name or service.*--data_dir .*data_batch_1.bin', errors.RunError
  ):
    datasets.load_dataset('cifar10', num_clients=3, partition='iid')
  assert asked == ['https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz']


@pytest.mark.slow  # The .npz files are slow to decompress.
def test_real_cifar10_has_the_published_class_counts_and_means(real_data):
  arrays = cifar.load('cifar10', real_data)
  assert arrays.x.shape == (50_000, 32, 32, 3)
  assert np.bincount(arrays.y).tolist() == [5000] * 10
  assert arrays.x_test.shape[1:] == (32, 32, 3)
  assert set(arrays.y_test.tolist()) == set(range(10))
  # The published means of red, green and blue.
  means = arrays.x.mean(axis=(0, 1, 2)) / 255
  np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)
