"""The datasets that can be asked for by name."""

import dataclasses
from typing import Callable, Dict, Optional, Union

from tff_pfl import errors
from tff_pfl.datasets import (
  digits,
  federated_dataset,
  mnist,
  partitioning,
  synthetic,
)


@dataclasses.dataclass(frozen=True)
class DatasetEntry:
  """How to load a dataset.

  Attributes:
    load: Called with `num_clients`, `partition` and `seed`, and with `data_dir`
      if `takes_data_dir`.
    description: One line for `--help`.
    takes_data_dir: Whether the dataset can be read from a folder.
  """

  load: Callable[..., federated_dataset.FederatedDataset]
  description: str
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


DATASETS: Dict[str, DatasetEntry] = {
  'digits': DatasetEntry(
    digits.load_digits,
    '1,797 handwritten digits of 8x8, bundled with scikit-learn',
  ),
  'mnist': DatasetEntry(
    mnist.load_mnist,
    '70,000 handwritten digits of 28x28, from the idx .gz files in the data'
    ' folder or else through TensorFlow Datasets',
    takes_data_dir=True,
  ),
  'fashion_mnist': DatasetEntry(
    mnist.load_fashion_mnist,
    '70,000 pictures of clothes of 28x28, obtained like mnist',
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
) -> federated_dataset.FederatedDataset:
  """Loads a dataset by name and deals it to clients.

  Args:
    name: A key of `DATASETS`.
    num_clients: At least 1.
    partition: A partitioner or its specification such as `'shards:2'`.
    data_dir: Folder to read from, only for datasets that take one; None for
      what the dataset does by itself.
    seed: Of the partition, non-negative.

  Raises:
    ValueError: The name is unknown, an argument is out of range, or files are
      missing or damaged.
    RunError: The data cannot be obtained.
  """
  errors.expect(
    name in DATASETS, 'dataset', f'one of {", ".join(DATASETS)}', name
  )
  entry = DATASETS[name]
  partitioning.check_num_clients(num_clients)
  if isinstance(partition, str):
    partition = partitioning.make_partitioner(partition)
  arguments = {}
  if entry.takes_data_dir:
    arguments['data_dir'] = data_dir
  else:
    errors.expect(
      data_dir is None,
      'data_dir',
      f'unset for the dataset {name!r}, which reads no files',
      data_dir,
    )
  return entry.load(num_clients, partition, seed=seed, **arguments)


def describe_datasets() -> str:
  """Returns one paragraph on all datasets, for `--help`."""
  return '; '.join(
    f'{name}: {entry.description}' for name, entry in DATASETS.items()
  )
