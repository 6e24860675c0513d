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

The images stay uint8 in memory (184 MB); a client's become float32 when they
are asked for.
"""

import concurrent.futures
import dataclasses
import os
from typing import Optional

import numpy as np
from absl import logging

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import downloads, images

IMAGE_SHAPE = (32, 32, 3)
_TEST_NPZ_PATTERN = 'test*.npz'
_URL = 'https://www.cs.toronto.edu/~kriz/{}.tar.gz'

Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class CifarFiles:
  """What the files of one of the data sets are.

  Attributes:
    archive: What the published archive is called.
    folders: What the files' folder may be called.
    train_files: The binary version's files of training images, in order.
    test_file: Its file of test images.
    train_npz_files: The .npz files of training images, in the same order.
    images_per_file: Images in each file of training images.
    num_test_images: Images in the file of test images, at most.
    label_bytes: Bytes for labels before an image.
  """

  name: str
  num_classes: int
  archive: str
  folders: tuple[str, ...]
  train_files: tuple[str, ...]
  test_file: str
  train_npz_files: tuple[str, ...]
  images_per_file: int
  num_test_images: int = 10_000
  label_bytes: int = 1

  @property
  def binary_files(self) -> tuple[str, ...]:
    """All files of the binary version."""
    return (*self.train_files, self.test_file)

  def read_arrays(self, data_dir: str) -> dict[str, np.ndarray]:
    """Reads and checks the files of a folder, of either form.

    Returns:
      `x` and `x_test`, uint8 `[n, 32, 32, 3]`, `y` and `y_test`, integers.

    Raises:
      ValueError: A file is missing or damaged, or the folder has files of both
        forms.
    """
    folder = files.find_folder(
      self.name,
      data_dir,
      self.folders,
      (*self.binary_files, *self.train_npz_files),
      f'{", ".join(self.binary_files)}, or {", ".join(self.train_npz_files)}'
      f' and {_TEST_NPZ_PATTERN}',
    )
    is_binary, is_npz = (
      any(os.path.exists(os.path.join(folder, file)) for file in names)
      for names in (self.binary_files, self.train_npz_files)
    )
    if is_binary and is_npz:
      raise ValueError(
        f'Expected `{folder}` to hold {self.name} once, found .bin and .npz'
        ' files; move one kind to another folder.'
      )
    if is_binary:
      sizes = [self.images_per_file] * len(self.train_files)
      sizes.append(self.num_test_images)
      batches = [
        self._read_binary(os.path.join(folder, file), size)
        for file, size in zip(self.binary_files, sizes)
      ]
    else:
      batches = self._read_npz_folder(folder)
    *train, (x_test, y_test) = batches
    x, y = (np.concatenate(part) for part in zip(*train))
    return dict(x=x, y=y, x_test=x_test, y_test=y_test)

  def _read_binary(self, path: str, num_images: int) -> Batch:
    """Returns images and labels of a file of the binary version."""
    content = files.read_bytes(path)
    height, width, channels = IMAGE_SHAPE
    record_size = self.label_bytes + height * width * channels
    size = num_images * record_size
    if len(content) != size:
      raise files.file_error(
        path, f'{size} bytes, {num_images} images', len(content)
      )
    records = np.frombuffer(content, np.uint8).reshape(-1, record_size)
    y = records[:, self.label_bytes - 1]
    files.check_labels(y, path, 'y', (num_images,), self.num_classes)
    planes = records[:, self.label_bytes :].reshape(-1, channels, height, width)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), y

  def _read_npz_folder(self, folder: str) -> list[Batch]:
    paths = [os.path.join(folder, file) for file in self.train_npz_files]
    splits = ['train'] * len(paths) + ['test']
    paths.append(_test_npz(folder))
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
    files.check_images(x, path, f'x_{split}', IMAGE_SHAPE)
    files.check_labels(y, path, f'y_{split}', x.shape[:1], self.num_classes)
    least, most, sizes = self.images_per_file, self.images_per_file, ''
    if split == 'test':
      least, most, sizes = 1, self.num_test_images, '1 to '
    if not least <= len(x) <= most:
      raise files.file_error(
        path, f'an .npz file of {sizes}{most} images', len(x)
      )
    return x, y


def _test_npz(folder: str) -> str:
  """Returns the one file of test images in a folder of .npz files."""
  found = sorted(files.matching(folder, _TEST_NPZ_PATTERN))
  if len(found) != 1:
    raise ValueError(
      f'Expected `{folder}` to hold one file of test images,'
      f' {_TEST_NPZ_PATTERN}, found'
      f' {", ".join(map(os.path.basename, found)) or "none"}.'
    )
  return found[0]


FILES = {
  'cifar10': CifarFiles(
    name='cifar10',
    num_classes=10,
    archive='cifar-10-binary',
    folders=('cifar-10-batches-bin', 'cifar10'),
    train_files=tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
    test_file='test_batch.bin',
    train_npz_files=tuple(f'train_batch_{i}.npz' for i in range(1, 6)),
    images_per_file=10_000,
  ),
  'cifar100': CifarFiles(
    name='cifar100',
    num_classes=100,
    archive='cifar-100-binary',
    folders=('cifar-100-binary', 'cifar100'),
    train_files=('train.bin',),
    test_file='test.bin',
    train_npz_files=('train.npz',),
    images_per_file=50_000,
    label_bytes=2,
  ),
}


def load(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Returns `cifar10` or `cifar100`, `x` uint8 `[50000, 32, 32, 3]`.

  Args:
    data_dir: Folder of the .bin or of the .npz files, or its parent if it is
      called like one of the `folders` in `FILES`; None for TensorFlow Datasets.

  Raises:
    ValueError: The files are missing or damaged.
    RunError: TensorFlow Datasets cannot get the data.
  """
  its = FILES[name]
  if data_dir is None:
    arrays = downloads.from_tensorflow_datasets(
      name,
      f'its files {", ".join(its.binary_files)}',
      _URL.format(its.archive),
    )
  else:
    arrays = its.read_arrays(data_dir)
  return arrays_lib.Arrays(
    name=name,
    num_classes=its.num_classes,
    transform=images.to_unit_interval,
    **arrays,
  )
