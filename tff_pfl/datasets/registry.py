"""Datasets by name."""

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

from tff_pfl import errors, fields
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
  made_domains,
  npz_file,
  pfllib,
  sentiment,
  shakespeare,
  stackoverflow,
  synthetic,
  table,
)
from tff_pfl.system import folders

# Keyword arguments that loaders have in common.
COMMON_ARGUMENTS = ('data_dir', 'seed')


@dataclasses.dataclass(frozen=True)
class DatasetEntry:
  """A dataset that can be loaded by name.

  Attributes:
    loader: Function that returns all examples as `Arrays`, which any rule can
      divide among clients. If examples come by client, a function of
      `num_clients`, `partition` (either may be None) and `seed` that returns a
      `FederatedDataset`. It takes `data_dir` if it reads files. Other keyword
      arguments are specific to the dataset. Its docstring begins with a
      description for `--help`.
  """

  loader: Callable[..., Any]

  @property
  def description(self) -> str:
    """The loader's docstring before its arguments, without a last dot."""
    text = inspect.getdoc(getattr(self.loader, 'func', self.loader)) or ''
    text = re.split(r'\n(?:Args|Returns):\n', text)[0]
    return ' '.join(text.split()).removesuffix('.')

  @property
  def comes_by_client(self) -> bool:
    """True if the loader returns a `FederatedDataset`."""
    return 'num_clients' in inspect.signature(self.loader).parameters

  @property
  def takes_data_dir(self) -> bool:
    """True if the dataset can be read from files."""
    return 'data_dir' in inspect.signature(self.loader).parameters


DATASETS: dict[str, DatasetEntry] = {
  name: DatasetEntry(loader)
  for name, loader in {
    'digits': digits.load_digits,
    **{
      name: functools.partial(image_sets.load, name)
      for name in (
        *('mnist', 'fashion_mnist', 'cifar10', 'cifar100'),
        *('emnist_letters', 'emnist_byclass', 'svhn'),
      )
    },
    'femnist': femnist.load_femnist,
    'shakespeare': shakespeare.load_shakespeare,
    'sentiment': sentiment.load_sentiment,
    'stackoverflow': stackoverflow.load_stackoverflow,
    'relabelled_digits': digits.load_relabelled_digits,
    'relabelled_cifar10': made_domains.load_relabelled_cifar10,
    'rotated_digits': digits.load_rotated_digits,
    'digits5': digits5.load_digits5,
    'fairface': fairface.load_fairface,
    'table': table.load_table,
    'heart_disease': heart_disease.load_heart_disease,
    'npz': npz_file.load_npz,
    'leaf': leaf.load_leaf,
    'pfllib': pfllib.load_pfllib,
    'image_folder': image_folder.load_image_folder,
    'synthetic': synthetic.load_synthetic,
  }.items()
}
# Any machine can load these by name.
_OF_LIBRARY = frozenset(DATASETS)


def dataset(function: Callable[..., Any]) -> Callable[..., Any]:
  """Registers a function that loads a dataset, under the function's name.

  `load_dataset`, settings, studies and flags then have this dataset. Its own
  arguments are settings such as `dataset_year`. The docstring has the help of
  their flags.

  Args:
    function: `DatasetEntry.loader`, with a type for each of its own
      keyword-only arguments.
  """
  of_clients = DatasetEntry(function).comes_by_client
  loader = fields.registered(
    'dataset',
    function,
    _OF_LIBRARY,
    *(('num_clients', 'partition') if of_clients else ()),
    common=COMMON_ARGUMENTS,
  )
  errors.expect(
    of_clients == ('seed' in errors.own_arguments(function)),
    'dataset',
    'a function with `seed` if it has `num_clients`, and without both if it '
    'returns all examples',
    function.__name__,
  )
  DATASETS[function.__name__] = DatasetEntry(loader)
  return loader


@fields.checked_call
def load_dataset(
  name: str,
  *,
  num_clients: Optional[partitioning.NumClients] = None,
  partition: Union[str, partitioning.Partitioner, None] = None,
  data_dir: Optional[str] = None,
  seed: fields.Seed = 0,
  classes: Optional[Sequence[int]] = None,
  test_fraction: Optional[fields.ShareBelowOne] = None,
  normalize: bool = False,
  **arguments: Any,
) -> federated_dataset.FederatedDataset:
  """Loads a dataset by name and deals it to clients.

  Args:
    name: A key of `DATASETS`.
    num_clients: Number of clients, at least 1. None means all of the data's own
      clients, or 30 if another partition makes the clients.
    partition: A partitioner or its specification. `'natural'` keeps the data's
      own clients, from which `num_clients` are drawn at random. None means
      natural if the examples name their clients, and otherwise `'shards:2'`
      (`'iid'` for the dataset `table`).
    data_dir: Folder to read from, or the file for datasets of one file. Only
      for datasets that read files. None means the dataset's default.
    seed: Seed of the partition or the choice of clients, non-negative.
    classes: The classes to keep, with unchanged labels. None means all. Not for
      datasets whose examples come by client.
    test_fraction: Fraction of a client's examples in its test set, in [0, 1),
      stratified by domain and class. The dataset's own training and test
      examples are pooled before they are divided among the clients. None keeps
      these two apart, or means 0.2 if there is no test set. Datasets whose
      examples come by client accept it only if they have no test examples, and
      have their own default.
    normalize: True to scale inputs to mean 0 and standard deviation 1 over the
      dataset's own training examples of all classes, per channel for images and
      per column for others. Not for datasets whose examples come by client, nor
      with the partition natural.
    **arguments: Arguments specific to the dataset, see its loader.

  Raises:
    ValueError: If files are missing or damaged.
    RunError: If the data cannot be obtained.
  """
  data_dir = _absolute(data_dir)
  load_again = functools.partial(
    load_dataset,
    name,
    num_clients=num_clients,
    partition=partition,
    data_dir=data_dir,
    seed=seed,
    classes=classes,
    test_fraction=test_fraction,
    normalize=normalize,
    **arguments,
  )
  errors.expect_one_of('dataset', name, DATASETS)
  entry = DATASETS[name]
  own = inspect.signature(entry.loader).parameters
  for argument in arguments:
    if argument not in own:
      known = [*own, *inspect.signature(load_dataset).parameters]
      raise TypeError(fields.unknown_name(argument, known))
  if entry.comes_by_client and test_fraction is not None:
    arguments['test_fraction'] = test_fraction
  if partition is not None:
    num_clients, partition = partitioning.defaults(num_clients, partition, True)
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
    kind = federated_dataset.FederatedDataset
    errors.expect_type(data, kind, name, 'a FederatedDataset')
    errors.expect(
      num_clients in (None, data.num_clients),
      'num_clients',
      f'None or {data.num_clients} for {name!r}',
      num_clients,
    )
  else:
    arrays = entry.loader(**arguments)
    errors.expect_type(arrays, arrays_lib.Arrays, name, '`pfl.Arrays`')
    num_clients, partition = partitioning.defaults(
      num_clients, partition, arrays.client is not None
    )
    if normalize:
      errors.expect(
        not isinstance(partition, natural.Natural),
        'normalize',
        'false with the partition natural, as no client has all examples',
        normalize,
      )
      arrays = arrays.normalized()
    if classes is not None:
      arrays = arrays.class_subset(classes)
    data = arrays.to_clients(
      num_clients, partition, seed=seed, test_fraction=test_fraction
    )
  if name in _OF_LIBRARY:
    data.load_again = load_again
  return data


def load_arrays(name: str, data_dir: Optional[str] = None) -> arrays_lib.Arrays:
  """Loads all examples of a dataset by name, without making clients.

  Args:
    name: A key of `DATASETS` whose examples do not come by client.
    data_dir: See `load_dataset`.

  Raises:
    ValueError: If files are missing or damaged.
    RunError: If the data cannot be obtained.
  """
  with_arrays = [
    key for key, entry in DATASETS.items() if not entry.comes_by_client
  ]
  errors.expect_one_of('dataset', name, with_arrays)
  return DATASETS[name].loader(**_data_dir_argument(name, _absolute(data_dir)))


def _absolute(data_dir: Optional[str]) -> Optional[str]:
  return data_dir and os.path.abspath(folders.local_path(data_dir, 'data_dir'))


def _data_dir_argument(name: str, data_dir: Optional[str]) -> dict[str, Any]:
  """Returns `data_dir` as keyword arguments for a loader."""
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
  """Describes all datasets in one paragraph, for `--help`."""
  names: dict[str, list[str]] = {}
  for name, entry in DATASETS.items():
    names.setdefault(entry.description, []).append(name)
  return '; '.join(
    f'{", ".join(sharing)}: {text}' for text, sharing in names.items()
  )
