"""FEMNIST, handwritten characters of 28x28 by writer.

Source: S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018, from
EMNIST (G. Cohen et al., 2017) and NIST Special Database 19.
License: NIST's data are a work of the US government. LEAF is BSD.
Sizes: as TensorFlow Federated provides it, 3,400 writers with 671,585 training
and 77,483 test images of 62 classes (digits, upper and lower case letters).

TensorFlow Federated downloads the data unless there is a data folder. In the
folder, femnist.npz is a file of `image_sets`, black on white as in LEAF, with
the writers as `client`. If it has no test images, a part of each client's
images is held out. The images are inverted, so the background is 0 as in MNIST.
A file with only digits has 10 classes.
"""

from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl import tff_api as tff
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import federated_dataset, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import downloads, image_sets, images, own_files

NUM_CLASSES = 62
NUM_DIGITS = 10
_KIND = 'writers'


def _inverted(x: np.ndarray) -> np.ndarray:
  return 1 - images.to_unit_interval(x)


def _from_file(
  data_dir: str,
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  seed: int,
) -> federated_dataset.FederatedDataset:
  path, arrays = image_sets.read('femnist', data_dir, ('x', 'y', 'client'))
  largest = max(arrays[y].max() for y in ('y', 'y_test') if y in arrays)
  with own_files.naming(path):
    pool = arrays_lib.Arrays(
      name='femnist',
      num_classes=NUM_DIGITS if largest < NUM_DIGITS else NUM_CLASSES,
      transform=_inverted,
      **arrays,
    )
  return pool.to_clients(num_clients, partition, seed=seed)


def _as_mnist(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Turns TensorFlow Federated's elements into pairs like MNIST's."""
  return dataset.map(
    lambda element: (1 - element['pixels'][..., tf.newaxis], element['label'])
  )


def _from_tff(
  num_clients: Optional[int], seed: int
) -> federated_dataset.FederatedDataset:
  splits = downloads.from_tff(
    'femnist',
    lambda: tff.simulation.datasets.emnist.load_data(only_digits=False),
    'pass `data_dir` with the folder of femnist.npz',
  )
  chosen = natural.choose_clients(
    downloads.in_both(*splits), num_clients, _KIND, seed
  )
  train, test = (split.preprocess(_as_mnist) for split in splits)
  return federated_dataset.FederatedDataset.from_client_data(
    train, test, num_classes=NUM_CLASSES, name='femnist'
  ).subset(chosen)


@fields.checked_call
def load_femnist(
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  *,
  data_dir: Optional[str] = None,
  seed: fields.Seed = 0,
) -> federated_dataset.FederatedDataset:
  """Handwritten characters of 28x28 by writer.

  They are read from femnist.npz (partition natural or any other) or downloaded
  (partition natural).

  Args:
    num_clients: Number of clients. None means all writers.
    partition: Natural (None), or with `data_dir` any rule for pooled examples.
    data_dir: See `image_sets.read`. None means TensorFlow Federated.
    seed: Non-negative.

  Returns:
    Dataset with `x` float32 `[28, 28, 1]` in [0, 1], white on black, and `y`
    int32 of 62 classes (10 for a file with only digits).
  """
  if data_dir is not None:
    return _from_file(data_dir, num_clients, partition, seed)
  natural.expect_natural(partition, 'femnist', _KIND)
  return _from_tff(num_clients, seed)
