"""Tests of CIFAR-100 and of its files; see also those of CIFAR-10."""

import dataclasses

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import cifar

_NUM_TRAIN, _NUM_TEST = 20, 6
_RECORD_SIZE = 3074


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
  small = dataclasses.replace(
    cifar.FILES['cifar100'],
    images_per_file=_NUM_TRAIN,
    num_test_images=_NUM_TEST,
  )
  monkeypatch.setitem(cifar.FILES, 'cifar100', small)


def _images(count, seed):
  rng = np.random.default_rng(seed)
  x = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
  return x, rng.integers(0, 100, count, dtype=np.uint8)


def _write_binary(folder):
  folder.mkdir(parents=True, exist_ok=True)
  splits = _images(_NUM_TRAIN, 0), _images(_NUM_TEST, 1)
  for name, (x, y) in zip(('train.bin', 'test.bin'), splits):
    # The coarse label comes first; 19 is not the class.
    records = [
      bytes([19, label]) + image.transpose(2, 0, 1).tobytes()
      for image, label in zip(x, y)
    ]
    (folder / name).write_bytes(b''.join(records))
  return splits


def _write_npz(folder):
  folder.mkdir(parents=True, exist_ok=True)
  splits = _images(_NUM_TRAIN, 0), _images(_NUM_TEST, 1)
  (x, y), (x_test, y_test) = splits
  np.savez(folder / 'train.npz', x_train=x, y_train=y)
  np.savez(folder / 'test.npz', x_test=x_test, y_test=y_test)
  return splits


@pytest.mark.parametrize('folder', ['.', 'cifar-100-binary', 'cifar100'])
@pytest.mark.parametrize('write', [_write_binary, _write_npz])
def test_all_images_arrive_in_order_with_their_fine_labels(
  tmp_path, folder, write
):
  (x, y), (x_test, y_test) = write(tmp_path / folder)
  arrays = cifar.load('cifar100', str(tmp_path))
  assert (arrays.name, arrays.num_classes) == ('cifar100', 100)
  np.testing.assert_array_equal(arrays.x, x)
  np.testing.assert_array_equal(arrays.y, y)
  np.testing.assert_array_equal(arrays.x_test, x_test)
  np.testing.assert_array_equal(arrays.y_test, y_test)


def test_a_file_of_another_size_is_named(tmp_path):
  _write_binary(tmp_path)
  path = tmp_path / 'train.bin'
  # Whole records of CIFAR-10's size would fit, too.
  path.write_bytes(path.read_bytes()[: _NUM_TRAIN * 3073])
  with pytest.raises(
    ValueError, match=f'train.bin` to be {_NUM_TRAIN * _RECORD_SIZE} bytes'
  ):
    cifar.load('cifar100', str(tmp_path))


def test_a_label_out_of_range_is_named(tmp_path):
  _write_binary(tmp_path)
  path = tmp_path / 'test.bin'
  content = bytearray(path.read_bytes())
  content[3 * _RECORD_SIZE + 1] = 100
  path.write_bytes(content)
  with pytest.raises(ValueError, match='test.bin`.*found 100 at index 3'):
    cifar.load('cifar100', str(tmp_path))


def test_missing_files_are_a_one_line_error(tmp_path):
  with shared.one_line_error(
    'train.bin, test.bin, or train.npz and test.*cifar100/'
  ):
    cifar.load('cifar100', str(tmp_path))
