"""The datasets that can be asked for by name."""

import dataclasses
from typing import Any, Callable, Optional, Union

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import (
  cifar10,
  cifar100,
  digits,
  digits5,
  fairface,
  federated_dataset,
  femnist,
  heart_disease,
  mnist,
  partitioning,
  relabelled_digits,
  rotated_digits,
  sentiment,
  shakespeare,
  stackoverflow,
  synthetic,
  tabular,
)

# What loaders take by keyword that is not one data set's own.
COMMON_ARGUMENTS = ('data_dir', 'seed')


@dataclasses.dataclass(frozen=True)
class DatasetEntry:
  """How to load a dataset.

  Attributes:
    load: Called with `num_clients`, `partition` and `seed`, and with `data_dir`
      if `takes_data_dir`.
    description: One line for `--help`.
    load_arrays: Returns all examples, not dealt to clients, called with
      `data_dir` if `takes_data_dir`; None where there are clients only.
    takes_data_dir: Whether the dataset can be read from files.
  """

  load: Callable[..., federated_dataset.FederatedDataset]
  description: str
  load_arrays: Optional[Callable[..., arrays_lib.Arrays]] = None
  takes_data_dir: bool = False


def _load_synthetic(
  num_clients: int, partition: partitioning.Partitioner, *, seed: int
) -> federated_dataset.FederatedDataset:
  """Makes the synthetic dataset with the class distribution asked for.

  Its clients are generated, not dealt from a pool, so only the rules that fix
  the number of a client's classes have a meaning.
  """
  num_classes = 10
  if isinstance(partition, partitioning.Shards):
    classes_per_client = partition.shards_per_client
  elif isinstance(partition, partitioning.ClassesPerClient):
    classes_per_client = partition.num_classes_per_client
  else:
    errors.expect(
      isinstance(partition, partitioning.Iid),
      'partition',
      'iid, classes_per_client:<k> or shards:<k> for the synthetic dataset',
      partition.spec,
    )
    classes_per_client = num_classes
  return synthetic.make_synthetic(
    num_clients,
    num_classes=num_classes,
    classes_per_client=classes_per_client,
    seed=seed,
  )


DATASETS: dict[str, DatasetEntry] = {
  'digits': DatasetEntry(
    digits.load_digits,
    '1,797 handwritten digits of 8x8, bundled with scikit-learn',
    digits.load_digits_arrays,
  ),
  'mnist': DatasetEntry(
    mnist.load_mnist,
    '70,000 handwritten digits of 28x28, from the idx .gz files in the data'
    ' folder or else through TensorFlow Datasets',
    mnist.load_mnist_arrays,
    takes_data_dir=True,
  ),
  'fashion_mnist': DatasetEntry(
    mnist.load_fashion_mnist,
    '70,000 pictures of clothes of 28x28, obtained like mnist',
    mnist.load_fashion_mnist_arrays,
    takes_data_dir=True,
  ),
  'cifar10': DatasetEntry(
    cifar10.load_cifar10,
    '60,000 color pictures of animals and vehicles of 32x32, from the .bin or'
    ' .npz batches in the data folder or else through TensorFlow Datasets',
    cifar10.load_cifar10_arrays,
    takes_data_dir=True,
  ),
  'cifar100': DatasetEntry(
    cifar100.load_cifar100,
    '60,000 color pictures of 100 kinds of things of 32x32, from the .bin or'
    ' .npz files in the data folder or else through TensorFlow Datasets',
    cifar100.load_cifar100_arrays,
    takes_data_dir=True,
  ),
  'femnist': DatasetEntry(
    femnist.load_femnist,
    'handwritten characters of 28x28 by writer (partition natural, or any other'
    ' of a file), from *femnist*.npz in the data folder or else downloaded'
    ' through TensorFlow Federated',
    takes_data_dir=True,
  ),
  'shakespeare': DatasetEntry(
    shakespeare.load_shakespeare,
    'next characters after 80 others by speaking role (partition natural), from'
    ' *shakespeare*.txt in the data folder or else downloaded through'
    ' TensorFlow Federated',
    takes_data_dir=True,
  ),
  'sentiment': DatasetEntry(
    sentiment.load_sentiment,
    'labeled texts of up to 100 words by user or domain (partition natural or'
    ' any other), from the CSV file that is, or is in, the data folder, with'
    ' the columns text, label and client, user or domain; a column domain says'
    ' which domain each text has',
    takes_data_dir=True,
  ),
  'stackoverflow': DatasetEntry(
    stackoverflow.load_stackoverflow,
    'next words after up to 20 others by user (partition natural), downloaded'
    ' through TensorFlow Federated',
  ),
  'relabelled_digits': DatasetEntry(
    relabelled_digits.load_relabelled_digits,
    'the digits in 5 domains, each with another two labels swapped (partition'
    ' domain_mixture)',
    relabelled_digits.load_relabelled_digits_arrays,
  ),
  'rotated_digits': DatasetEntry(
    rotated_digits.load_rotated_digits,
    'the digits of scikit-learn, each turned by 0, 90, 180 or 270 degrees,'
    ' which is its domain',
    rotated_digits.load_rotated_digits_arrays,
  ),
  'digits5': DatasetEntry(
    digits5.load_digits5,
    'digits of 28x28 in color of up to five domains (MNIST, MNIST-M, SVHN,'
    ' USPS, SynthDigits), from the files of two or more of them in the data'
    ' folder',
    digits5.load_digits5_arrays,
    takes_data_dir=True,
  ),
  'fairface': DatasetEntry(
    fairface.load_fairface,
    'faces of 64x64 with their age or gender, the domains being 7 groups of'
    ' race, from the published CSV files and images in the data folder',
    fairface.load_fairface_arrays,
    takes_data_dir=True,
  ),
  'tabular': DatasetEntry(
    tabular.load_tabular,
    'any table, from the CSV file that is, or is in, the data folder, whose'
    ' columns of labels, domains and clients are named (partition natural or'
    ' any other); numbers are standardized federatedly',
    takes_data_dir=True,
  ),
  'heart_disease': DatasetEntry(
    heart_disease.load_heart_disease,
    '920 patients of four hospitals (partition natural or any other), ill or'
    ' not, the domains being sex or groups of age, from'
    ' heart_disease_4sites.csv or the four processed.*.data in the data folder',
    takes_data_dir=True,
  ),
  'synthetic': DatasetEntry(
    _load_synthetic,
    'generated 28x28 prototypes of 10 classes plus noise, for any number of'
    ' clients',
  ),
}


def load_dataset(
  name: str,
  *,
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'shards:2',
  data_dir: Optional[str] = None,
  seed: int = 0,
  **arguments: Any,
) -> federated_dataset.FederatedDataset:
  """Loads a dataset by name and deals it to clients.

  Args:
    name: A key of `DATASETS`.
    num_clients: At least 1.
    partition: A partitioner or its specification such as `'shards:2'`;
      `'natural'` for datasets whose clients are given, of which `num_clients`
      are drawn at random.
    data_dir: Folder to read from, only for datasets that take one (or the file,
      for datasets of one file); None for what the dataset does by itself.
    seed: Of the partition or the choice of clients, non-negative.
    **arguments: The data set's own, see its loader.

  Raises:
    ValueError: The name is unknown, an argument is out of range, or files are
      missing or damaged.
    RunError: The data cannot be obtained.
  """
  entry = _entry(name)
  partitioning.check_num_clients(num_clients)
  if isinstance(partition, str):
    partition = partitioning.make_partitioner(partition)
  errors.expect_own_arguments(
    entry.load,
    arguments,
    'dataset_arguments',
    f'dataset {name!r}',
    COMMON_ARGUMENTS,
  )
  arguments.update(_data_dir_argument(name, data_dir))
  return entry.load(num_clients, partition, seed=seed, **arguments)


def load_arrays(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Loads all examples of a dataset by name, for clients of one's own making.

  `load_dataset` deals these very examples to its clients. See `Arrays` for what
  can be done with them: `of_classes`, `as_floats`, `to_clients`.

  Args:
    name: A key of `DATASETS`, but not one whose examples come by client.
    data_dir: As for `load_dataset`.

  Returns:
    The examples with the data set's own division into training and test
    examples; for the digits, which have none, a fixed one (see `digits`).

  Raises:
    ValueError: The name is unknown or one of clients, or files are missing or
      damaged.
    RunError: The data cannot be obtained.
  """
  entry = _entry(name)
  with_arrays = [key for key in DATASETS if DATASETS[key].load_arrays]
  errors.expect(
    entry.load_arrays is not None,
    'dataset',
    f'one of {", ".join(with_arrays)}, whose examples do not come by client',
    name,
  )
  return entry.load_arrays(**_data_dir_argument(name, data_dir))


def _entry(name: str) -> DatasetEntry:
  errors.expect(
    name in DATASETS, 'dataset', f'one of {", ".join(DATASETS)}', name
  )
  return DATASETS[name]


def _data_dir_argument(name: str, data_dir: Optional[str]) -> dict[str, Any]:
  """Returns `data_dir` as the argument of a loader, or none if it takes none.

  Raises:
    ValueError: It is given for a dataset that reads no files.
  """
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
