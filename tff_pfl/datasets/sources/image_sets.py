"""Image sets, each in one .npz file.

The file NAME.npz has `x` and `x_test`, uint8 `[n, height, width, channels]`,
and `y` and `y_test`, as for the data set `npz`. The program `prepare` makes
it of the published files, in their order. TensorFlow Datasets, used without a
data folder, has another order, so that the same seed deals other images to a
client.

MNIST: handwritten digits. Source: Y. LeCun, C. Cortes, C. Burges, from NIST
Special Databases 1 and 3. License: commonly given as CC BY-SA 3.0.
Fashion-MNIST: pictures of clothes in 10 categories. Source: H. Xiao, K. Rasul,
R. Vollgraf, Zalando Research, 2017. License: MIT.
Sizes of each: 60,000 training and 10,000 test images, gray, 28x28, of 10
classes; MNIST has 5,421 to 6,742 training images of a class, Fashion-MNIST
6,000.

CIFAR-10 and CIFAR-100: color pictures. Source: A. Krizhevsky, V. Nair,
G. Hinton; A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images,
technical report, University of Toronto, 2009.
https://www.cs.toronto.edu/~kriz/cifar.html
License: none is stated; free for research, cite the report.
Sizes of each: 50,000 training and 10,000 test images, 32x32, every class
equally often. CIFAR-10 has 10 classes (airplane, automobile, bird, cat, deer,
dog, frog, horse, ship, truck), CIFAR-100 has 100 (the "fine" labels).

EMNIST: handwritten characters, gray, 28x28, white on black. Source: G. Cohen,
S. Afshar, J. Tapson, A. van Schaik, EMNIST: Extending MNIST to Handwritten
Letters, IJCNN 2017, from NIST Special Database 19 (a work of the US
government). `emnist_letters` has the 26 letters, capital and small together, A
being class 0; `emnist_byclass` has 62 classes: digits, 10 to 35 for capital
letters, 36 to 61 for small ones (697,932 + 116,323 images). The published
images have rows and columns exchanged, and the letters' labels begin at 1: both
are undone here. Of the 124,800 + 20,800 letters TensorFlow Datasets has the
first 88,800 + 14,800.

SVHN: house numbers, see `digits5`; TensorFlow Datasets calls it svhn_cropped.
"""

import importlib.util
import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import downloads, images, npz_file, own_files

_SPLITS = ('x', 'y', 'x_test', 'y_test')
# The wheel has the programs within this library's package.
_IS_WHEEL = importlib.util.find_spec('tff_pfl.programs') is not None
_PROGRAMS = 'tff_pfl.programs' if _IS_WHEEL else 'binaries'
_PREPARE = f'python -m {_PROGRAMS}.prepare'


class ImageSet(NamedTuple):
  """The form of an image set.

  Attributes:
    num_classes: Number of classes.
    shape: Height, width and channels of an image; None for any height and
      width, and one or three channels.
    tfds_name: Name in TensorFlow Datasets; None for the set's own.
    is_transposed: True if rows and columns of published images are exchanged.
    first_label: The published label of class 0.
  """

  num_classes: int = 10
  shape: Optional[tuple[int, int, int]] = None
  tfds_name: Optional[str] = None
  is_transposed: bool = False
  first_label: int = 0

  def from_published(
    self, x: np.ndarray, y: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns published images upright, and their labels from 0 on."""
    if self.is_transposed:
      x = x.swapaxes(1, 2)
    return x, y - self.first_label

  def check(self, path: str, x: np.ndarray, y: np.ndarray) -> None:
    """Raises `ValueError`, which names the file, of other images or labels."""
    is_of_shape = x.shape[1:] == self.shape
    if self.shape is None:
      is_of_shape = x.ndim == 4 and x.shape[3] in (1, 3)
    are_labels = y.dtype.kind in 'iu' and y.shape == x.shape[:1]
    if x.dtype != np.uint8 or not is_of_shape or not len(x) or not are_labels:
      form = ', '.join(map(str, self.shape or ('height', 'width', '1 or 3')))
      raise files.file_error(
        path,
        f'a file with images, uint8 of shape (n, {form}), n at least 1, and a'
        ' label each, an integer',
        f'{x.dtype} of shape {x.shape} and {y.dtype} of shape {y.shape}',
      )
    if y.min() < 0 or y.max() >= self.num_classes:
      raise files.file_error(
        path,
        f'a file with labels in [0, {self.num_classes})',
        f'labels from {y.min()} to {y.max()}',
      )


IMAGE_SETS = {
  'mnist': ImageSet(shape=(28, 28, 1)),
  'fashion_mnist': ImageSet(shape=(28, 28, 1)),
  'cifar10': ImageSet(10, (32, 32, 3)),
  'cifar100': ImageSet(100, (32, 32, 3)),
  'emnist_letters': ImageSet(26, (28, 28, 1), 'emnist/letters', True, 1),
  'emnist_byclass': ImageSet(62, (28, 28, 1), 'emnist/byclass', True),
  'femnist': ImageSet(62, (28, 28, 1)),
  'mnist_m': ImageSet(),
  'svhn': ImageSet(tfds_name='svhn_cropped'),
  'usps': ImageSet(),
  'synth_digits': ImageSet(),
}


def how_to_prepare(data_dir: str) -> str:
  """Returns a sentence on how to prepare published files."""
  folder = os.path.dirname(data_dir) if os.path.isfile(data_dir) else data_dir
  return (
    f'Published files become such files by `{_PREPARE}'
    f' --data_dir={shlex.quote(folder)}`.'
  )


def read(
  name: str, data_dir: str, required: Sequence[str] = _SPLITS
) -> tuple[str, dict[str, np.ndarray]]:
  """Reads and checks the file of an image set.

  Args:
    name: A key of `IMAGE_SETS`.
    data_dir: The file, its folder, or the parent of its folder `name`.
    required: Names of arrays that must be there.

  Returns:
    The file's path, and its arrays by name.
  """
  try:
    path = files.find_file(name, data_dir, (f'{name}.npz',))
    arrays = npz_file.read(path, 'data_dir', required)
  except files.FileError:
    raise
  except ValueError as error:
    if os.path.exists(data_dir):
      raise ValueError(f'{error} {how_to_prepare(data_dir)}') from None
    raise
  for suffix in ('', '_test'):
    if f'x{suffix}' in arrays and f'y{suffix}' in arrays:
      IMAGE_SETS[name].check(path, arrays[f'x{suffix}'], arrays[f'y{suffix}'])
  return path, arrays


def load(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Loads an image set.

  Args:
    name: 'mnist', 'fashion_mnist', 'cifar10', 'cifar100', 'emnist_letters',
      'emnist_byclass' or 'svhn'.
    data_dir: See `read`; None for TensorFlow Datasets.
  """
  image_set, path = IMAGE_SETS[name], name
  if data_dir is None:
    splits = downloads.from_tensorflow_datasets(
      image_set.tfds_name or name,
      ('train', 'test'),
      ('image', 'label'),
      f'pass `data_dir` with the folder of {name}.npz, which `{_PREPARE}` makes'
      ' of published files',
    )
    parts = (
      part for split in splits for part in image_set.from_published(*split)
    )
    arrays = dict(zip(_SPLITS, parts))
  else:
    path, arrays = read(name, data_dir)
  with own_files.naming(path):
    return arrays_lib.Arrays(
      name=name,
      num_classes=image_set.num_classes,
      transform=images.to_unit_interval,
      **arrays,
    )
