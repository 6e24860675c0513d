"""The files of CIFAR-10 and CIFAR-100, in two forms.

The published files of the binary version have, per image, one or two bytes for
the labels, of which the last is the class, then 1,024 bytes of each of red,
green and blue. The .npz files have the same images as `x_train` uint8
`[n, 32, 32, 3]` and `y_train`, or `x_test` and `y_test`.
"""

import dataclasses
import glob
import os
from typing import Optional

import numpy as np
from absl import logging

from tff_pfl.datasets import arrays as arrays_lib

IMAGE_SHAPE = (32, 32, 3)
_TEST_NPZ_PATTERN = 'test*.npz'

Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class CifarFiles:
  """What the files of one of the data sets are.

  Attributes:
    name: The data set's.
    num_classes: Number of classes.
    folders: What the files' folder may be called.
    train_files: The binary version's files of training images, in order.
    test_file: Its file of test images.
    train_npz_files: The .npz files of training images, in the same order. That
      of test images is any one `test*.npz`.
    images_per_file: Images in each file of training images.
    num_test_images: Images in the file of test images; an .npz file may hold
      fewer.
    label_bytes: Bytes for labels before an image.
  """

  name: str
  num_classes: int
  folders: tuple[str, ...]
  train_files: tuple[str, ...]
  test_file: str
  train_npz_files: tuple[str, ...]
  images_per_file: int
  num_test_images: int
  label_bytes: int = 1

  @property
  def binary_files(self) -> tuple[str, ...]:
    """All files of the binary version."""
    return (*self.train_files, self.test_file)

  def read_arrays(self, data_dir: str) -> dict[str, np.ndarray]:
    """Reads and checks the files of a folder, of either form.

    Args:
      data_dir: The files' folder, or its parent if it is called like one of
        `folders`.

    Returns:
      `x` and `x_test`, uint8 `[n, 32, 32, 3]`, `y` and `y_test`, integers.

    Raises:
      ValueError: A file is missing or damaged, or the folder has files of both
        forms.
    """
    folder = arrays_lib.find_folder(
      self.name,
      data_dir,
      self.folders,
      (*self.binary_files, *self.train_npz_files),
      f'{", ".join(self.binary_files)}, or {", ".join(self.train_npz_files)}'
      f' and {_TEST_NPZ_PATTERN}',
    )
    is_binary, is_npz = (
      any(os.path.exists(os.path.join(folder, file)) for file in files)
      for files in (self.binary_files, self.train_npz_files)
    )
    if is_binary and is_npz:
      raise ValueError(
        f'Expected `{folder}` to hold {self.name} once, found .bin and .npz'
        ' files; move one kind to another folder.'
      )
    read = self._read_binary_folder if is_binary else self._read_npz_folder
    train, (x_test, y_test) = read(folder)
    x, y = (np.concatenate(part) for part in zip(*train))
    return dict(x=x, y=y, x_test=x_test, y_test=y_test)

  def _read_binary_folder(self, folder: str) -> tuple[list[Batch], Batch]:
    train = [
      self._read_binary(os.path.join(folder, file), self.images_per_file)
      for file in self.train_files
    ]
    test_path = os.path.join(folder, self.test_file)
    return train, self._read_binary(test_path, self.num_test_images)

  def _read_binary(self, path: str, num_images: int) -> Batch:
    """Returns images and labels of a file of the binary version."""
    content = arrays_lib.read_bytes(path)
    height, width, channels = IMAGE_SHAPE
    record_size = self.label_bytes + height * width * channels
    size = num_images * record_size
    if len(content) != size:
      raise arrays_lib.file_error(
        path, f'{size} bytes, {num_images} images', len(content)
      )
    records = np.frombuffer(content, np.uint8).reshape(-1, record_size)
    y = records[:, self.label_bytes - 1]
    arrays_lib.check_file_labels(y, path, self.num_classes)
    planes = records[:, self.label_bytes :].reshape(-1, channels, height, width)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), y

  def _read_npz_folder(self, folder: str) -> tuple[list[Batch], Batch]:
    test_path = _test_npz(folder)
    paths = [os.path.join(folder, file) for file in self.train_npz_files]
    splits = ['train'] * len(paths) + ['test']
    paths.append(test_path)
    keys = [(f'x_{split}', f'y_{split}') for split in splits]
    *train, test = (
      self._checked_npz(path, split, x, y)
      for path, split, (x, y) in zip(
        paths, splits, arrays_lib.read_npz_files(paths, keys)
      )
    )
    num_test = len(test[1])
    if num_test < self.num_test_images:
      logging.warning(
        'Only %d of the %d test images of %s are in %s.',
        num_test,
        self.num_test_images,
        self.name,
        test_path,
      )
    return train, test

  def _checked_npz(
    self, path: str, split: str, x: np.ndarray, y: np.ndarray
  ) -> Batch:
    """Returns images and labels of a complete or, for 'test', partial file."""
    if x.dtype != np.uint8 or x.shape[1:] != IMAGE_SHAPE:
      raise arrays_lib.file_error(
        path,
        f'an .npz file with x_{split} uint8 of shape (n, *{IMAGE_SHAPE})',
        f'{x.dtype} of shape {x.shape}',
      )
    arrays_lib.check_npz_labels(y, path, f'y_{split}', x.shape[:1])
    least, most = self.images_per_file, self.images_per_file
    if split == 'test':
      least, most = 1, self.num_test_images
    if not least <= len(x) <= most:
      sizes = f'1 to {most}' if split == 'test' else most
      raise arrays_lib.file_error(
        path, f'an .npz file of {sizes} images', len(x)
      )
    arrays_lib.check_file_labels(y, path, self.num_classes)
    return x, y


def _test_npz(folder: str) -> str:
  """Returns the one file of test images in a folder of .npz files."""
  found = sorted(
    glob.glob(os.path.join(glob.escape(folder), _TEST_NPZ_PATTERN))
  )
  if len(found) != 1:
    raise ValueError(
      f'Expected `{folder}` to hold one file of test images,'
      f' {_TEST_NPZ_PATTERN}, found'
      f' {", ".join(map(os.path.basename, found)) or "none"}.'
    )
  return found[0]


def load_arrays(
  files: CifarFiles, data_dir: Optional[str], url: str
) -> arrays_lib.Arrays:
  """Returns all images of one of the data sets, uint8.

  Args:
    files: What its files are.
    data_dir: See `CifarFiles.read_arrays`; None for TensorFlow Datasets.
    url: Where TensorFlow Datasets downloads it from.

  Raises:
    ValueError: The files are missing or damaged.
    RunError: TensorFlow Datasets cannot get the data.
  """
  if data_dir is None:
    arrays = arrays_lib.from_tensorflow_datasets(
      files.name, f'its files {", ".join(files.binary_files)}', url
    )
  else:
    arrays = files.read_arrays(data_dir)
  return arrays_lib.Arrays(
    name=files.name,
    num_classes=files.num_classes,
    transform=arrays_lib.to_unit_interval,
    **arrays,
  )
