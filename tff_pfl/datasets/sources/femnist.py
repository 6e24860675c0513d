"""FEMNIST, handwritten characters of 28x28; the clients are writers.

Source: S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018, from
EMNIST (G. Cohen et al., 2017) and NIST Special Database 19.
License: NIST's data are a work of the US government; LEAF is BSD.
Sizes: as TensorFlow Federated provides it, 3,400 writers with 671,585 training
and 77,483 test images of 62 classes (digits, upper and lower case letters).

Without a data folder it comes through TensorFlow Federated. With one, an .npz
file has `x` uint8 `[n, 28, 28]`, black on white as LEAF has it, `y`, labels in
[0, 62), and `client_id` `[n]`; each client's images are divided into training
and test images. Either way the images are inverted, so that as in MNIST the
background is 0. A file with the digits alone has 10 classes.
"""

from typing import Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import downloads, images

NUM_CLASSES = 62
NUM_DIGITS = 10
IMAGE_SHAPE = (28, 28)
_PATTERN = '*femnist*.npz'
_KEYS = ('x', 'y', 'client_id')
_KIND = 'writers'


def _read(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns images uint8 `[n, 28, 28, 1]`, their labels and their writers."""
  x, y, writers = files.read_npz(path, _KEYS).values()
  files.check_images(path, x, y, ('x', 'y'), NUM_CLASSES, IMAGE_SHAPE)
  if writers.dtype.kind not in 'iuU' or writers.shape != y.shape:
    raise files.file_error(
      path,
      f'an .npz file with client_id integers or strings of shape {y.shape}',
      f'{writers.dtype} of shape {writers.shape}',
    )
  return x[..., np.newaxis], y, writers


def _inverted(x: np.ndarray) -> np.ndarray:
  return 1 - images.to_unit_interval(x)


def _from_file(
  path: str, num_clients: int, partition: partitioning.Partitioner, seed: int
) -> federated_dataset.FederatedDataset:
  x, y, writers = _read(path)
  arrays = arrays_lib.Arrays(
    name='femnist',
    x=x,
    y=y,
    client=writers,
    num_classes=NUM_DIGITS if y.max() < NUM_DIGITS else NUM_CLASSES,
    transform=_inverted,
  )
  return arrays.to_clients(num_clients, partition, seed=seed)


def _as_mnist(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Turns TensorFlow Federated's elements into pairs like MNIST's."""
  return dataset.map(
    lambda element: (1 - element['pixels'][..., tf.newaxis], element['label'])
  )


def _from_tff(
  num_clients: int, seed: int
) -> federated_dataset.FederatedDataset:
  splits = downloads.from_tff(
    'femnist',
    lambda: tff.simulation.datasets.emnist.load_data(only_digits=False),
    f'pass `data_dir` with a file {_PATTERN} or its folder',
  )
  chosen = natural.choose_clients(
    downloads.in_both(*splits), num_clients, _KIND, seed
  )
  train, test = (split.preprocess(_as_mnist) for split in splits)
  return federated_dataset.FederatedDataset.from_client_data(
    train, test, num_classes=NUM_CLASSES, name='femnist'
  ).subset(chosen)


def load_femnist(
  num_clients: int,
  partition: partitioning.Partitioner,
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
) -> federated_dataset.FederatedDataset:
  """Returns handwritten characters by writer.

  Args:
    partition: Natural; with `data_dir`, also any rule for pooled examples.
    data_dir: The .npz file, its folder, or the parent of its folder `femnist`;
      in a folder, its name is `*femnist*.npz`. None for TensorFlow Federated.

  Returns:
    Dataset with `x` float32 `[28, 28, 1]` in [0, 1], white on black, and `y`
    int32, 62 classes (10 of a file that has digits only).
  """
  if data_dir is not None:
    path = files.find_file('femnist', data_dir, (_PATTERN,))
    return _from_file(path, num_clients, partition, seed)
  natural.expect_natural(partition, 'femnist', _KIND)
  return _from_tff(num_clients, seed)
