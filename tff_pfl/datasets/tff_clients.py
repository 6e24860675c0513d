"""The data sets of `tff.simulation.datasets`, which are downloaded.

TensorFlow Federated keeps what it has downloaded in `~/.tff` (word counts in
`~/.keras`), so that the network is needed once. What it keeps of a download
that was cut short has to be deleted by hand.
"""

import functools
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.datasets import arrays
from tff_pfl.datasets import examples as examples_lib


def download(name: str, load: Callable[[], Any], remedy: str) -> Any:
  """Returns what a loader of `tff.simulation.datasets` returns.

  Args:
    name: The data set's, for the message.
    load: The loader.
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
      f' ({arrays.first_line(error)}); {remedy} (and delete from ~/.tff a'
      ' download that was cut short).'
    ) from error


def in_both(
  train: tff.simulation.datasets.ClientData,
  test: tff.simulation.datasets.ClientData,
) -> list[str]:
  """Returns the clients that have training and test data, sorted."""
  return sorted(set(train.client_ids) & set(test.client_ids))


def read_texts(
  client_data: tff.simulation.datasets.ClientData, client_id: str, field: str
) -> list[str]:
  """Returns a string field of each of a client's elements.

  Args:
    client_data: Its elements are dictionaries.
    client_id: One of its clients.
    field: A key of the elements.
  """
  dataset = client_data.create_tf_dataset_for_client(client_id)
  texts = dataset.map(lambda element: element[field]).as_numpy_iterator()
  return [text.decode('utf-8', 'replace') for text in texts]


class TextSource(examples_lib.ExampleSource):
  """Reads and encodes a client's texts each time; keeps only the counts."""

  def __init__(
    self,
    client_data: tff.simulation.datasets.ClientData,
    client_ids: Sequence[str],
    field: str,
    encode: Callable[[list[str]], examples_lib.Examples],
    num_overlapping: int = 0,
  ):
    """Makes a source; nothing is read yet.

    Args:
      client_data: Where the texts are.
      client_ids: The clients by position.
      field: The key of the texts in an element.
      encode: From a client's texts to its examples.
      num_overlapping: See `examples.ExampleSource`.
    """
    self.num_overlapping = num_overlapping
    self._read = functools.partial(read_texts, client_data, field=field)
    self._client_ids = client_ids
    self._encode = encode
    self._counts: dict[int, int] = {}

  def examples(self, position: int) -> examples_lib.Examples:
    """Reads and encodes the client's texts."""
    result = self._encode(self._read(self._client_ids[position]))
    self._counts[position] = examples_lib.num_examples(result)
    return result

  def labels(self, position: int) -> np.ndarray:
    """Reads and encodes the client's texts for their labels."""
    return self.examples(position).y

  def num_examples(self, position: int) -> int:
    """Returns the number, reading the texts once to count them."""
    if position not in self._counts:
      self.examples(position)
    return self._counts[position]
