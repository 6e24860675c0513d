"""Data that TensorFlow Datasets and TensorFlow Federated download.

TensorFlow Federated keeps its downloads in `~/.tff` (word counts in
`~/.keras`), so the network is needed only once. Delete incomplete downloads
there.
"""

import importlib.resources.abc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_pfl import errors
from tff_pfl import tff_api as tff

ClientData = tff.simulation.datasets.ClientData


def from_tff(name: str, load: Callable[[], Any], remedy: str) -> Any:
  """Calls a loader of `tff.simulation.datasets`.

  Args:
    name: Name of the dataset, for the message.
    load: The loader.
    remedy: Advice for the message.

  Returns:
    The loader's result.

  Raises:
    RunError: If the data cannot be obtained.
  """
  try:
    return load()
  # Whatever the downloader raises, the user's remedy is the same.
  except Exception as error:
    remedy += ' (and delete incomplete downloads from ~/.tff)'
    raise _error(name, 'TensorFlow Federated', error, remedy) from error


def from_tensorflow_datasets(
  name: str, splits: Sequence[str], features: Sequence[str], remedy: str
) -> list[list[np.ndarray]]:
  """Returns features of a dataset, downloaded if needed.

  Args:
    name: Name of the dataset in TensorFlow Datasets.
    splits: Names of its splits.
    features: Names of its features.
    remedy: Advice for the message.

  Returns:
    For each split, the features as arrays `[n, ...]`. Texts are bytes.

  Raises:
    RunError: If the data cannot be obtained.
  """
  # These are slow to import and rarely needed.
  import tensorflow_datasets as tfds
  from tensorflow_datasets.core.download import downloader

  # Version 4.9.10 imports this package, which is now in the standard library.
  sys.modules.setdefault('importlib_resources', importlib.resources)
  # Without a network, ten retries with growing delays would take minutes.
  downloader.MAX_RETRIES = 4
  try:
    return [
      [
        np.concatenate(parts)
        for parts in zip(
          *([batch[f] for f in features] for batch in tfds.as_numpy(split))
        )
      ]
      for split in tfds.load(name, split=list(splits), batch_size=1000)
    ]
  # Whatever TFDS and its downloader raise, the user's remedy is the same.
  except Exception as error:
    raise _error(name, 'TensorFlow Datasets', error, remedy) from error


def _error(
  name: str, through: str, error: Exception, remedy: str
) -> errors.RunError:
  lines = str(error).strip().splitlines() or ['']
  reason = f'{type(error).__name__}: {lines[0][:200]}'.rstrip(': ')
  return errors.RunError(
    f'{name} could not be obtained through {through} ({reason}); {remedy}.'
  )


def in_both(train: ClientData, test: ClientData) -> list[str]:
  """Returns the clients that have training and test data, sorted."""
  return sorted(set(train.client_ids) & set(test.client_ids))


def texts_of(client_data: ClientData, field: str) -> Callable[[str], list[str]]:
  """Returns a function from a client id to the strings of a field."""

  def read(client_id: str) -> list[str]:
    dataset = client_data.create_tf_dataset_for_client(client_id)
    texts = dataset.map(lambda element: element[field]).as_numpy_iterator()
    return [text.decode('utf-8', 'replace') for text in texts]

  return read
