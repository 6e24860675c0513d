"""The datasets that can be asked for by name."""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import federated_dataset, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import (
  digits,
  digits5,
  fairface,
  femnist,
  heart_disease,
  image_folder,
  image_sets,
  leaf,
  npz_file,
  pfllib,
  sentiment,
  shakespeare,
  stackoverflow,
  synthetic,
  tabular,
  tff_hdf5,
)

# What loaders take by keyword that is not one data set's own.
COMMON_ARGUMENTS = ('data_dir', 'seed')


@dataclasses.dataclass(frozen=True)
class DatasetEntry:
  """A dataset that can be loaded by name.

  Attributes:
    description: One line for `--help`.
    loader: Returns all examples, as `Arrays`, which any rule can divide among
      clients; natural those that say whose they are. Of data that come by
      client it is called with `num_clients` and `partition`, and `seed`, and
      returns the clients. It takes `data_dir` if it reads files; other keyword
      arguments are the data set's own.
  """

  description: str
  loader: Callable[..., Any]

  @property
  def comes_by_client(self) -> bool:
    """True if the loader returns clients."""
    return 'num_clients' in inspect.signature(self.loader).parameters

  @property
  def takes_data_dir(self) -> bool:
    """True if the dataset can be read from files."""
    return 'data_dir' in inspect.signature(self.loader).parameters


DATASETS: dict[str, DatasetEntry] = {
  'digits': DatasetEntry(
    '1,797 handwritten digits of 8x8, bundled with scikit-learn',
    digits.load_digits,
  ),
  'mnist': DatasetEntry(
    '70,000 handwritten digits of 28x28, from mnist.npz (binaries.prepare makes'
    ' it of the published files) or TensorFlow Datasets',
    lambda data_dir=None: image_sets.load('mnist', data_dir),
  ),
  'fashion_mnist': DatasetEntry(
    '70,000 pictures of clothes of 28x28, obtained like mnist',
    lambda data_dir=None: image_sets.load('fashion_mnist', data_dir),
  ),
  'cifar10': DatasetEntry(
    '60,000 color pictures of animals and vehicles of 32x32, obtained like'
    ' mnist',
    lambda data_dir=None: image_sets.load('cifar10', data_dir),
  ),
  'cifar100': DatasetEntry(
    '60,000 color pictures of 100 kinds of things, obtained like mnist',
    lambda data_dir=None: image_sets.load('cifar100', data_dir),
  ),
  'femnist': DatasetEntry(
    'handwritten characters of 28x28 by writer (partition natural, or any other'
    ' of a file), from femnist.npz or downloaded',
    femnist.load_femnist,
  ),
  'shakespeare': DatasetEntry(
    'next characters after 80 others by speaking role (partition natural), from'
    ' *shakespeare*.txt or downloaded',
    shakespeare.load_shakespeare,
  ),
  'sentiment': DatasetEntry(
    'labeled texts of up to 100 words by user or domain (partition natural or'
    ' any other), from a CSV file with the columns text, label and client, user'
    ' or domain',
    sentiment.load_sentiment,
  ),
  'stackoverflow': DatasetEntry(
    'next words after up to 20 others by user (partition natural), downloaded',
    stackoverflow.load_stackoverflow,
  ),
  'relabelled_digits': DatasetEntry(
    'the digits in 5 domains, each with another two labels swapped',
    digits.load_relabelled_digits,
  ),
  'rotated_digits': DatasetEntry(
    'the digits, each turned by 0, 90, 180 or 270 degrees, which is its domain',
    digits.load_rotated_digits,
  ),
  'digits5': DatasetEntry(
    'digits of 28x28 in color of two to five domains (MNIST, MNIST-M, SVHN,'
    ' USPS, SynthDigits), from mnist.npz, mnist_m.npz and so on',
    digits5.load_digits5,
  ),
  'fairface': DatasetEntry(
    'faces of 64x64 with their age or gender, the domains being 7 groups of'
    ' race, from the published CSV files and images',
    fairface.load_fairface,
  ),
  'tabular': DatasetEntry(
    'any table, from a CSV or parquet file or a folder of such, whose columns'
    ' of labels, domains and clients are named (partition natural or any'
    ' other)',
    tabular.load_tabular,
  ),
  'heart_disease': DatasetEntry(
    '920 patients of four hospitals (partition natural or any other), the'
    ' domains being sex or groups of age, from heart_disease_4sites.csv or the'
    ' four processed.*.data',
    heart_disease.load_heart_disease,
  ),
  'npz': DatasetEntry(
    'any .npz file of arrays x and y and, where there are such, client (then'
    ' partition natural or any other), domain, and the same of test examples,'
    ' x_test and so on',
    npz_file.load_npz,
  ),
  'leaf': DatasetEntry(
    "LEAF's .json files of users (partition natural or any other), of numbers"
    ' or of texts like those of shakespeare',
    leaf.load_leaf,
  ),
  'pfllib': DatasetEntry(
    "PFLlib's folder of train/0.npz, test/0.npz and so on, one per client"
    ' (partition natural or any other)',
    pfllib.load_pfllib,
  ),
  'tff_hdf5': DatasetEntry(
    "TensorFlow Federated's .h5 files of numbers by client, such as those of"
    ' fed_emnist (partition natural or any other)',
    tff_hdf5.load_tff_hdf5,
  ),
  'image_folder': DatasetEntry(
    'any images in folders CLIENT/CLASS, these themselves or in train/ and'
    ' test/ (partition natural or any other)',
    image_folder.load_image_folder,
  ),
  'synthetic': DatasetEntry(
    'generated 28x28 prototypes of 10 classes plus noise, for any number of'
    ' clients',
    synthetic.load_synthetic,
  ),
}


def load_dataset(
  name: str,
  *,
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'shards:2',
  data_dir: Optional[str] = None,
  seed: int = 0,
  classes: Optional[Sequence[int]] = None,
  test_fraction: Optional[float] = None,
  normalize: bool = False,
  **arguments: Any,
) -> federated_dataset.FederatedDataset:
  """Loads a dataset by name and deals it to clients.

  Args:
    name: A key of `DATASETS`.
    partition: A partitioner or its specification; `'natural'` for datasets
      that say whose the examples are, of which clients `num_clients` are
      drawn at random.
    data_dir: Folder to read from, only for datasets that take one (or the file,
      for datasets of one file); None for what the dataset does by itself.
    seed: Decides the partition or the choice of clients, non-negative.
    classes: The classes to keep, of data sets whose examples do not come by
      client; None for all. Labels stay as they are.
    test_fraction: Fraction of a client's examples in its test set, in [0, 1),
      stratified by domain and class, after the training and test examples that
      the data set comes with have been pooled and divided among the clients.
      None to keep these two apart, or for 0.2 where there is no test set. Of
      data sets whose examples come by client, only those that come without test
      examples take it, with a default of their own.
    normalize: Whether images have mean 0 and deviation 1 in each channel over
      the training examples that the data set comes with, of all classes, and
      other inputs in each column; of data sets whose examples do not come by
      client, with any partition but natural.
    **arguments: The data set's own, see its loader.

  Raises:
    ValueError: The name is unknown, an argument is out of range, or files are
      missing or damaged.
    RunError: The data cannot be obtained.
  """
  load_again = functools.partial(
    load_dataset,
    name,
    num_clients=num_clients,
    partition=partition,
    data_dir=data_dir and os.path.abspath(data_dir),
    seed=seed,
    classes=classes,
    test_fraction=test_fraction,
    normalize=normalize,
    **arguments,
  )
  errors.expect_one_of('dataset', name, DATASETS)
  entry = DATASETS[name]
  if entry.comes_by_client and test_fraction is not None:
    arguments['test_fraction'] = test_fraction
  errors.expect_int('num_clients', num_clients, 1)
  if isinstance(partition, str):
    partition = partitioning.make_partitioner(partition)
  errors.expect_own_arguments(
    entry.loader,
    arguments,
    'dataset_arguments',
    f'dataset {name!r}',
    COMMON_ARGUMENTS,
  )
  arguments.update(_data_dir_argument(name, data_dir))
  if entry.comes_by_client:
    for argument, value in (('classes', classes), ('normalize', normalize)):
      errors.expect(
        value is None or value is False,
        argument,
        f'unset for {name!r}, whose examples come by client',
        value,
      )
    data = entry.loader(num_clients, partition, seed=seed, **arguments)
  else:
    arrays = entry.loader(**arguments)
    if normalize:
      errors.expect(
        not isinstance(partition, natural.Natural),
        'normalize',
        'false with the partition natural, as nobody has all examples',
        normalize,
      )
      arrays = arrays.normalized()
    if classes is not None:
      arrays = arrays.of_classes(classes)
    data = arrays.to_clients(
      num_clients, partition, seed=seed, test_fraction=test_fraction
    )
  data.load_again = load_again
  return data


def load_arrays(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Loads all examples of a dataset by name, for clients of one's own making.

  Args:
    name: A key of `DATASETS`, but not one whose examples come by client.

  Raises:
    ValueError: The name is unknown, or files are missing or damaged.
    RunError: The data cannot be obtained.
  """
  with_arrays = [
    key for key, entry in DATASETS.items() if not entry.comes_by_client
  ]
  errors.expect_one_of('dataset', name, with_arrays)
  return DATASETS[name].loader(**_data_dir_argument(name, data_dir))


def _data_dir_argument(name: str, data_dir: Optional[str]) -> dict[str, Any]:
  """Returns `data_dir` as the argument of a loader, none if it takes none."""
  if DATASETS[name].takes_data_dir:
    return dict(data_dir=data_dir)
  errors.expect(
    data_dir is None,
    'data_dir',
    f'unset for the dataset {name!r}, which reads no files',
    data_dir,
  )
  return {}


def describe_datasets() -> str:
  """Returns one paragraph on all datasets, for `--help`."""
  return '; '.join(
    f'{name}: {entry.description}' for name, entry in DATASETS.items()
  )
