"""The data sets of `tff.simulation.datasets`, which are downloaded.

TensorFlow Federated keeps what it has downloaded in `~/.tff` (word counts in
`~/.keras`), so that the network is needed once. What it keeps of a download
that was cut short has to be deleted by hand.
"""

from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.datasets.sources import images

ClientData = tff.simulation.datasets.ClientData


def download(name: str, load: Callable[[], Any], remedy: str) -> Any:
  """Returns what a loader of `tff.simulation.datasets` returns.

  Args:
    remedy: What else the user can do, for the message.

  Raises:
    RunError: It cannot be had.
  """
  try:
    return load()
  # Whatever the downloader raises, the user's remedy is the same.
  except Exception as error:
    raise errors.RunError(
      f'{name} could not be downloaded through TensorFlow Federated'
      f' ({images.first_line(error)}); {remedy} (and delete from ~/.tff a'
      ' download that was cut short).'
    ) from error


def in_both(train: ClientData, test: ClientData) -> list[str]:
  """Returns the clients that have training and test data, sorted."""
  return sorted(set(train.client_ids) & set(test.client_ids))


def texts_of(client_data: ClientData, field: str) -> Callable[[str], list[str]]:
  """Returns what reads the strings called `field` of a client's elements."""

  def read(client_id: str) -> list[str]:
    dataset = client_data.create_tf_dataset_for_client(client_id)
    texts = dataset.map(lambda element: element[field]).as_numpy_iterator()
    return [text.decode('utf-8', 'replace') for text in texts]

  return read
