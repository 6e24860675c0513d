"""Image sets, each in one .npz file that `prepare` makes from published files.

NAME.npz has `x` and `x_test`, uint8 `[n, height, width, channels]`, and `y` and
`y_test`, in the published order. TensorFlow Datasets, used without a data
folder, has another order, so the same seed deals other images to a client.

MNIST: handwritten digits. Source: Y. LeCun, C. Cortes, C. Burges, from NIST
Special Databases 1 and 3. License: commonly given as CC BY-SA 3.0.
Fashion-MNIST: clothes. Source: H. Xiao et al., Zalando, 2017. License: MIT.
Sizes of each: 60,000 training and 10,000 test images, gray, 28x28, 10 classes.

CIFAR-10 and CIFAR-100: color images. Source: A. Krizhevsky, Learning Multiple
Layers of Features from Tiny Images, 2009, https://www.cs.toronto.edu/~kriz.
License: none is stated. Free for research, cite the report. Sizes of each:
50,000 training and 10,000 test images, 32x32, 10 or 100 (the "fine") classes.

EMNIST: handwritten characters, gray, 28x28, white on black. Source: G. Cohen et
al., EMNIST: Extending MNIST to Handwritten Letters, IJCNN 2017, from NIST
Special Database 19 (US government). `emnist_letters` has 26 classes, capital
and small letters together, and 124,800 + 20,800 images (88,800 + 14,800 in
TensorFlow Datasets). `emnist_byclass` has 62 classes, 697,932 + 116,323 images.

SVHN, MNIST-M, USPS and SynthDigits: see `digits5`.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import downloads, images, npz_file, own_files

_SPLITS = ('x', 'y', 'x_test', 'y_test')
HOW_TO_PREPARE = 'The program prepare makes such files from published ones.'


class ImageSet(NamedTuple):
  """The form of an image set.

  Attributes:
    num_classes: Number of classes.
    shape: Shape of an image. None means any height and width, and 1 or 3
      channels.
    tfds_name: Name in TensorFlow Datasets. None means the same name.
  """

  num_classes: int = 10
  shape: Optional[tuple[int, int, int]] = None
  tfds_name: Optional[str] = None

  def check(self, path: str, x: np.ndarray, y: np.ndarray) -> None:
    """Raises a `ValueError` that names the file unless its arrays fit."""
    shape = self.shape or (*x.shape[1:3], 3 if x.shape[3:] == (3,) else 1)
    are_images = x.dtype == np.uint8 and x.shape == (*y.shape, *shape)
    if not are_images or not len(x) or y.dtype.kind not in 'iu':
      raise files.file_error(
        path,
        f'a file of uint8 images {self.shape or "(height, width, 1 or 3)"}, at'
        ' least one, with an integer label each',
        f'{x.dtype} {x.shape} and labels {y.dtype} {y.shape}',
      )


IMAGE_SETS = {
  'mnist': ImageSet(10, (28, 28, 1)),
  'fashion_mnist': ImageSet(10, (28, 28, 1)),
  'cifar10': ImageSet(10, (32, 32, 3)),
  'cifar100': ImageSet(100, (32, 32, 3)),
  'emnist_letters': ImageSet(26, (28, 28, 1), 'emnist/letters'),
  'emnist_byclass': ImageSet(62, (28, 28, 1), 'emnist/byclass'),
  'femnist': ImageSet(62, (28, 28, 1)),
  'mnist_m': ImageSet(),
  'svhn': ImageSet(tfds_name='svhn_cropped'),
  'usps': ImageSet(),
  'synth_digits': ImageSet(),
}


def upright(name: str, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
  """Turns EMNIST's images upright and makes its letters' labels start at 0."""
  x = x.swapaxes(1, 2) if name.startswith('emnist') else x
  return [x, y - 1 if name == 'emnist_letters' else y]


def read(
  name: str, data_dir: str, required: Sequence[str] = _SPLITS
) -> tuple[str, dict[str, np.ndarray]]:
  """Returns the path of an image set's file, and its arrays by name.

  Args:
    name: A key of `IMAGE_SETS`.
    data_dir: The file, its folder, or the parent of its folder `name`. A file
      in `data_dir` itself, where `prepare` writes it, comes first, as the
      folder `name` may hold the published one.
    required: Names of arrays that must be there.
  """
  try:
    path = os.path.join(data_dir, f'{name}.npz')
    if not os.path.isfile(path):
      path = files.find_file(name, data_dir, (f'{name}.npz',))
    arrays = npz_file.read(path, 'data_dir', required)
  except ValueError as error:
    raise ValueError(f'{error} {HOW_TO_PREPARE}') from None
  for x, y in (('x', 'y'), ('x_test', 'y_test')):
    if {x, y} <= set(arrays):
      IMAGE_SETS[name].check(path, arrays[x], arrays[y])
  return path, arrays


def load(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Images with labels, from NAME.npz or TensorFlow Datasets.

  The program prepare makes NAME.npz from the published files. mnist has 70,000
  handwritten digits and fashion_mnist 70,000 images of clothes, gray, 28x28.
  cifar10 has 60,000 color images of animals and vehicles and cifar100 60,000 of
  100 kinds of things, 32x32. emnist_letters has handwritten letters in 26
  classes and emnist_byclass digits, capital and small letters in 62 classes,
  gray, 28x28. svhn has color digits of house numbers, 32x32.

  Args:
    name: A key of `IMAGE_SETS` other than 'femnist'.
    data_dir: See `read`. None means TensorFlow Datasets.
  """
  form, path = IMAGE_SETS[name], name
  if data_dir is None:
    train, test = downloads.from_tensorflow_datasets(
      form.tfds_name or name,
      ('train', 'test'),
      ('image', 'label'),
      f'pass `data_dir` with the folder of {name}.npz. {HOW_TO_PREPARE[:-1]}',
    )
    arrays = dict(zip(_SPLITS, upright(name, *train) + upright(name, *test)))
  else:
    path, arrays = read(name, data_dir)
  with own_files.naming(path):
    return arrays_lib.Arrays(
      name=name,
      num_classes=form.num_classes,
      transform=images.to_unit_interval,
      **arrays,
    )
