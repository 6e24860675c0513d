"""CIFAR-10 and CIFAR-100, 32x32 color pictures.

Source: A. Krizhevsky, V. Nair, G. Hinton; A. Krizhevsky, Learning Multiple
Layers of Features from Tiny Images, technical report, University of Toronto,
2009. https://www.cs.toronto.edu/~kriz/cifar.html
License: none is stated; free for research, cite the report.
Sizes of each: 50,000 training and 10,000 test images, every class equally
often. CIFAR-10 has 10 classes (airplane, automobile, bird, cat, deer, dog,
frog, horse, ship, truck), CIFAR-100 has 100 (the "fine" labels).

The files are the published ones of the binary version: per image one byte for
the label (of CIFAR-100 two, of which the last is the class), then 1,024 bytes
of each of red, green and blue. Or they are the same images as .npz files:
`x_train` uint8 `[n, 32, 32, 3]` and `y_train`, and one `test*.npz` with
`x_test` and `y_test`, which may hold fewer images. Both give the images in the
same order; TensorFlow Datasets, used without a data folder, has another one.
"""

import concurrent.futures
import os
from typing import NamedTuple, Optional

import numpy as np
from absl import logging

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import downloads, images

IMAGE_SHAPE = (32, 32, 3)
_TEST_NPZ_PATTERN = 'test*.npz'
_URL = 'https://www.cs.toronto.edu/~kriz/cifar-{}-binary.tar.gz'

Batch = tuple[np.ndarray, np.ndarray]


class CifarFiles(NamedTuple):
  """What the files of one of the data sets are.

  Attributes:
    folders: What the files' folder may be called.
    binary_files: The binary version's files, that of test images last.
    npz_files: The .npz files of training images, in the same order.
    images_per_file: Images in each file of training images.
    num_test_images: Images in the file of test images, at most.
  """

  name: str
  num_classes: int
  folders: tuple[str, ...]
  binary_files: tuple[str, ...]
  npz_files: tuple[str, ...]
  images_per_file: int
  num_test_images: int = 10_000

  def read_arrays(self, data_dir: str) -> dict[str, np.ndarray]:
    """Reads and checks the files of a folder, of either form.

    Returns:
      `x` and `x_test`, uint8 `[n, 32, 32, 3]`, `y` and `y_test`, integers.
    """
    folder = files.find_folder(
      self.name,
      data_dir,
      self.folders,
      (*self.binary_files, *self.npz_files),
      f'{", ".join(self.binary_files)}, or {", ".join(self.npz_files)}'
      f' and {_TEST_NPZ_PATTERN}',
    )
    is_binary, is_npz = (
      any(os.path.exists(os.path.join(folder, file)) for file in names)
      for names in (self.binary_files, self.npz_files)
    )
    if is_binary and is_npz:
      raise ValueError(
        f'Expected `{folder}` to hold {self.name} once, found .bin and .npz'
        ' files; move one kind to another folder.'
      )
    if is_binary:
      batches = [
        self._read_binary(os.path.join(folder, file))
        for file in self.binary_files
      ]
    else:
      batches = self._read_npz_folder(folder)
    *train, (x_test, y_test) = batches
    x, y = (np.concatenate(part) for part in zip(*train))
    return dict(x=x, y=y, x_test=x_test, y_test=y_test)

  def _read_binary(self, path: str) -> Batch:
    """Returns images and labels of a file of the binary version."""
    content = files.read_bytes(path)
    is_test = path.endswith(self.binary_files[-1])
    num_images = self.num_test_images if is_test else self.images_per_file
    height, width, channels = IMAGE_SHAPE
    # CIFAR-100 has a coarse label before the class.
    label_bytes = 2 if self.num_classes == 100 else 1
    record_size = label_bytes + height * width * channels
    size = num_images * record_size
    if len(content) != size:
      raise files.file_error(
        path, f'{size} bytes, {num_images} images', len(content)
      )
    records = np.frombuffer(content, np.uint8).reshape(-1, record_size)
    y = records[:, label_bytes - 1]
    files.check_labels(y, path, 'y', (num_images,), self.num_classes)
    planes = records[:, label_bytes:].reshape(-1, channels, height, width)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), y

  def _read_npz_folder(self, folder: str) -> list[Batch]:
    found = sorted(files.matching(folder, _TEST_NPZ_PATTERN))
    if len(found) != 1:
      raise ValueError(
        f'Expected `{folder}` to hold one file of test images,'
        f' {_TEST_NPZ_PATTERN}, found'
        f' {", ".join(map(os.path.basename, found)) or "none"}.'
      )
    paths = [os.path.join(folder, file) for file in self.npz_files] + found
    splits = ['train'] * len(self.npz_files) + ['test']
    keys = [(f'x_{split}', f'y_{split}') for split in splits]
    with concurrent.futures.ThreadPoolExecutor() as pool:
      contents = list(pool.map(files.read_npz, paths, keys))
    batches = [
      self._checked_npz(path, split, *content.values())
      for path, split, content in zip(paths, splits, contents)
    ]
    num_test = len(batches[-1][1])
    if num_test < self.num_test_images:
      logging.warning(
        'Only %d of the %d test images of %s are in %s.',
        num_test,
        self.num_test_images,
        self.name,
        paths[-1],
      )
    return batches

  def _checked_npz(
    self, path: str, split: str, x: np.ndarray, y: np.ndarray
  ) -> Batch:
    """Returns images and labels of a complete or, for 'test', partial file."""
    names = f'x_{split}', f'y_{split}'
    files.check_images(path, x, y, names, self.num_classes, IMAGE_SHAPE)
    least, most, sizes = self.images_per_file, self.images_per_file, ''
    if split == 'test':
      least, most, sizes = 1, self.num_test_images, '1 to '
    if not least <= len(x) <= most:
      raise files.file_error(
        path, f'an .npz file of {sizes}{most} images', len(x)
      )
    return x, y


FILES = {
  'cifar10': CifarFiles(
    'cifar10',
    10,
    ('cifar-10-batches-bin', 'cifar10'),
    (*(f'data_batch_{i}.bin' for i in range(1, 6)), 'test_batch.bin'),
    tuple(f'train_batch_{i}.npz' for i in range(1, 6)),
    10_000,
  ),
  'cifar100': CifarFiles(
    'cifar100',
    100,
    ('cifar-100-binary', 'cifar100'),
    ('train.bin', 'test.bin'),
    ('train.npz',),
    50_000,
  ),
}


def load(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Returns `cifar10` or `cifar100`, `x` uint8 `[50000, 32, 32, 3]`.

  Args:
    data_dir: Folder of the files, or its parent if it is called like one of the
      `folders` in `FILES`; None for TensorFlow Datasets.
  """
  its = FILES[name]
  if data_dir is None:
    arrays = downloads.from_tensorflow_datasets(
      name,
      f'its files {", ".join(its.binary_files)}',
      _URL.format(its.num_classes),
    )
  else:
    arrays = its.read_arrays(data_dir)
  return arrays_lib.Arrays(
    name=name,
    num_classes=its.num_classes,
    transform=images.to_unit_interval,
    **arrays,
  )
