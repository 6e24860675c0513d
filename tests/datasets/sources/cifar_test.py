"""Tests of CIFAR-10 and CIFAR-100 and of the readers of their files."""

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import cifar

_SIZE = 12


@pytest.fixture(autouse=True)
def small_batches(request, monkeypatch):
  if 'real' not in request.node.name:
    for name, its in cifar.FILES.items():
      small = its._replace(images_per_file=_SIZE, num_test_images=_SIZE)
      monkeypatch.setitem(cifar.FILES, name, small)


def _batches(name):
  """Returns images and labels of each file; those of the last are for test."""
  its = cifar.FILES[name]
  rng = np.random.default_rng(0)
  count = len(its.binary_files)
  x = rng.integers(0, 256, (count, _SIZE, 32, 32, 3), dtype=np.uint8)
  return x, rng.integers(0, its.num_classes, (count, _SIZE), dtype=np.uint8)


def _write_binary(folder, name='cifar10'):
  folder.mkdir(parents=True, exist_ok=True)
  x, y = _batches(name)
  # Of CIFAR-100, the coarse label comes first; 19 is not the class.
  coarse = b'\x13' if name == 'cifar100' else b''
  for file, of_file, labels in zip(cifar.FILES[name].binary_files, x, y):
    content = b''.join(
      coarse + bytes([label]) + image.transpose(2, 0, 1).tobytes()
      for image, label in zip(of_file, labels)
    )
    (folder / file).write_bytes(content)
  return x, y


def _write_npz(
  folder, name='cifar10', num_test=_SIZE, test_name='test_batch.npz'
):
  folder.mkdir(parents=True, exist_ok=True)
  x, y = _batches(name)
  for file, of_file, labels in zip(cifar.FILES[name].npz_files, x, y):
    np.savez_compressed(folder / file, x_train=of_file, y_train=labels)
  np.savez_compressed(
    folder / test_name, x_test=x[-1][:num_test], y_test=y[-1][:num_test]
  )
  return x, y


_WRITERS = {'bin': _write_binary, 'npz': _write_npz}


def _load(folder, name='cifar10'):
  return cifar.load(name, str(folder))


@pytest.mark.parametrize('form', _WRITERS)
@pytest.mark.parametrize(
  'name, folder',
  [
    ('cifar10', '.'),
    ('cifar10', 'cifar-10-batches-bin'),
    ('cifar100', 'cifar-100-binary'),
  ],
)
def test_all_images_arrive_in_order_with_their_labels(
  tmp_path, name, folder, form
):
  x, y = _WRITERS[form](tmp_path / folder, name)
  arrays = _load(tmp_path, name)
  assert arrays.name == name
  assert arrays.num_classes == {'cifar10': 10, 'cifar100': 100}[name]
  assert arrays.x.dtype == np.uint8 and arrays.y.dtype == np.int32
  assert arrays.x.flags.c_contiguous
  np.testing.assert_array_equal(arrays.x, x[:-1].reshape(-1, 32, 32, 3))
  np.testing.assert_array_equal(arrays.y, y[:-1].ravel())
  np.testing.assert_array_equal(arrays.x_test, x[-1])
  np.testing.assert_array_equal(arrays.y_test, y[-1])


def test_the_same_data_twice_are_ambiguous(tmp_path):
  _write_binary(tmp_path / 'cifar-10-batches-bin')
  _write_npz(tmp_path / 'cifar10')
  with pytest.raises(ValueError, match='to hold cifar10 once, found it in'):
    _load(tmp_path)
  _write_binary(tmp_path / 'cifar10')
  with pytest.raises(ValueError, match='found .bin and .npz files; move'):
    _load(tmp_path / 'cifar10')


def test_fewer_test_images_are_loaded_with_a_warning(tmp_path, caplog):
  _write_npz(tmp_path / 'all')
  _load(tmp_path / 'all')
  assert caplog.text == ''
  x, _ = _write_npz(tmp_path, num_test=4, test_name='test_first4.npz')
  arrays = _load(tmp_path)
  np.testing.assert_array_equal(arrays.x_test, x[5][:4])
  assert f'Only 4 of the {_SIZE} test images of cifar10' in caplog.text
  assert 'test_first4.npz' in caplog.text


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


@pytest.mark.parametrize(
  'name, file, record, change',
  [
    ('cifar10', 'data_batch_3.bin', 3073, -1),
    ('cifar10', 'data_batch_3.bin', 3073, -3073),
    ('cifar10', 'data_batch_3.bin', 3073, 1),
    # Whole records of CIFAR-10's size would fit, too.
    ('cifar100', 'train.bin', 3074, -_SIZE),
  ],
)
def test_binary_files_of_another_size_are_named(
  tmp_path, name, file, record, change
):
  _write_binary(tmp_path, name)
  path = tmp_path / file
  size = _SIZE * record
  path.write_bytes((path.read_bytes() + b'\0')[: size + change])
  with shared.one_line_error(f'{file}` to be {size} bytes.*again'):
    _load(tmp_path, name)
  # The class is the last of an image's labels.
  content = bytearray(path.read_bytes() + bytes(record))[:size]
  content[record - 3073] = 100
  path.write_bytes(content)
  with pytest.raises(ValueError, match=f'{file}`.*found 100 at index 0'):
    _load(tmp_path, name)


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
  x, y = (np.zeros((num_test, *shape), np.uint8) for shape in ((32, 32, 3), ()))
  np.savez(tmp_path / 'test_batch.npz', x_test=x, y_test=y)
  match = f'test_batch.npz` .*found .*{num_test}'
  with pytest.raises(ValueError, match=match):
    _load(tmp_path)


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
