"""MNIST and Fashion-MNIST, 28x28, which come in the same four files.

MNIST: handwritten digits. Source: Y. LeCun, C. Cortes, C. Burges, from NIST
Special Databases 1 and 3. License: commonly given as CC BY-SA 3.0.
Fashion-MNIST: pictures of clothes in 10 categories. Source: H. Xiao, K. Rasul,
R. Vollgraf, Zalando Research, 2017. License: MIT.
Sizes of each: 60,000 training and 10,000 test images of 10 classes; MNIST has
5,421 to 6,742 training images of a class, Fashion-MNIST 6,000.

Without a data folder they come through TensorFlow Datasets, which stores them
in another order, so that the same seed deals other images to a client than from
the idx files.
"""

import math
import os
from typing import Optional

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import files
from tff_pfl.datasets.sources import downloads, images

NUM_CLASSES = 10
IMAGE_SHAPE = (28, 28)
_UINT8_CODE = 0x08
_FILES = {
  'x': 'train-images-idx3-ubyte.gz',
  'y': 'train-labels-idx1-ubyte.gz',
  'x_test': 't10k-images-idx3-ubyte.gz',
  'y_test': 't10k-labels-idx1-ubyte.gz',
}
FILES = tuple(_FILES.values())
# The folders that name one of the two data sets.
_FOLDERS = {
  'mnist': ('mnist_idx', 'mnist'),
  'fashion_mnist': ('fashion_mnist_idx', 'fashion_mnist'),
}


def read_idx(path: str, element_shape: tuple[int, ...]) -> np.ndarray:
  """Reads an idx file of unsigned bytes.

  Returns:
    uint8 array `[n, *element_shape]`, n at least 1.
  """
  content = files.read_bytes(path)
  num_dims = 1 + len(element_shape)
  header_size = 4 + 4 * num_dims
  magic = bytes([0, 0, _UINT8_CODE, num_dims])
  if content[:4] != magic or len(content) < header_size:
    raise files.file_error(
      path,
      f'an idx file of {num_dims} dimensions of bytes (magic {magic.hex()}, and'
      f' {header_size} bytes of header)',
      f'{len(content)} bytes, magic {content[:4].hex()}',
    )
  shape = tuple(
    int(size) for size in np.frombuffer(content, '>u4', num_dims, offset=4)
  )
  size = header_size + math.prod(shape)
  if shape[1:] != element_shape or shape[0] < 1 or len(content) != size:
    raise files.file_error(
      path,
      f'an idx file of shape (n, *{element_shape}) with n >= 1, and as long as'
      ' that says',
      f'shape {shape} and {len(content)} bytes, not {size}',
    )
  return np.frombuffer(content, np.uint8, offset=header_size).reshape(shape)


def _find_folder(name: str, data_dir: str) -> str:
  """Returns the folder of a data set's files; the other's have the same names.

  A folder named after the other one is refused.
  """
  folder = files.find_folder(
    name, data_dir, _FOLDERS[name], FILES, ', '.join(FILES)
  )
  own_name = os.path.basename(os.path.realpath(folder))
  for other, folders in _FOLDERS.items():
    if other != name and own_name in folders:
      raise ValueError(
        f'Expected `data_dir` to hold {name}, found a folder of {other} by'
        f' its name, {folder!r}.'
      )
  return folder


def read_arrays(name: str, data_dir: str) -> dict[str, np.ndarray]:
  """Reads and checks a data set's four idx files.

  Returns:
    uint8 arrays `x`, `y`, `x_test`, `y_test`, the images `[n, 28, 28, 1]`.
  """
  folder = _find_folder(name, data_dir)
  arrays: dict[str, np.ndarray] = {}
  for suffix in ('', '_test'):
    images_file, labels_file = _FILES[f'x{suffix}'], _FILES[f'y{suffix}']
    x = read_idx(os.path.join(folder, images_file), IMAGE_SHAPE)
    path = os.path.join(folder, labels_file)
    y = read_idx(path, ())
    errors.expect(
      len(y) == len(x),
      path,
      f'{len(x)} labels, one per image of {images_file}',
      len(y),
    )
    files.check_labels(y, path, 'y', x.shape[:1], NUM_CLASSES)
    arrays.update({f'x{suffix}': x[..., np.newaxis], f'y{suffix}': y})
  return arrays


def load(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Returns `mnist` or `fashion_mnist`, `x` uint8 `[n, 28, 28, 1]`.

  Args:
    data_dir: Folder of the four idx .gz files, or its parent if it is called
      `mnist_idx` or `mnist` (`fashion_mnist_idx` or `fashion_mnist`); None for
      TensorFlow Datasets.
  """
  if data_dir is None:
    arrays = downloads.from_tensorflow_datasets(name, 'its four idx .gz files')
  else:
    arrays = read_arrays(name, data_dir)
  return arrays_lib.Arrays(
    name=name,
    num_classes=NUM_CLASSES,
    transform=images.to_unit_interval,
    **arrays,
  )
