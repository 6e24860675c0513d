"""The data sets of `tff.simulation.datasets`, which are downloaded.

TensorFlow Federated keeps what it has downloaded in `~/.tff` (word counts in
`~/.keras`), so that the network is needed once. What it keeps of a download
that was cut short has to be deleted by hand.
"""

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset
from tff_pfl.datasets.sources import images

ClientData = tff.simulation.datasets.ClientData


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
      f' ({images.first_line(error)}); {remedy} (and delete from ~/.tff a'
      ' download that was cut short).'
    ) from error


def in_both(train: ClientData, test: ClientData) -> list[str]:
  """Returns the clients that have training and test data, sorted."""
  return sorted(set(train.client_ids) & set(test.client_ids))


def read_texts(
  client_data: ClientData, client_id: str, field: str
) -> list[str]:
  """Returns the string called `field` of each of a client's elements."""
  dataset = client_data.create_tf_dataset_for_client(client_id)
  texts = dataset.map(lambda element: element[field]).as_numpy_iterator()
  return [text.decode('utf-8', 'replace') for text in texts]


class _TextSource(examples_lib.ExampleSource):
  """Reads and encodes a client's texts each time; keeps only the counts."""

  def __init__(
    self,
    client_data: ClientData,
    client_ids: Sequence[str],
    field: str,
    encode: Callable[[list[str]], examples_lib.Examples],
    num_overlapping: int,
  ):
    self.num_overlapping = num_overlapping
    self._client_data = client_data
    self._client_ids = client_ids
    self._field = field
    self._encode = encode
    self._counts: dict[int, int] = {}

  def examples(self, position: int) -> examples_lib.Examples:
    texts = read_texts(
      self._client_data, self._client_ids[position], self._field
    )
    result = self._encode(texts)
    self._counts[position] = examples_lib.num_examples(result)
    return result

  def labels(self, position: int) -> np.ndarray:
    return self.examples(position).y

  def num_examples(self, position: int) -> int:
    if position not in self._counts:
      self.examples(position)
    return self._counts[position]


def text_clients(
  name: str,
  splits: Sequence[ClientData],
  client_ids: Sequence[str],
  *,
  field: str,
  encode: Callable[[list[str]], examples_lib.Examples],
  sequence_length: int,
  num_classes: int,
  num_overlapping: int,
) -> federated_dataset.FederatedDataset:
  """Returns clients whose texts are read when they are asked for.

  Args:
    name: The data set's.
    splits: Where the training and the test texts are.
    client_ids: Clients that have both.
    field: The key of the texts in an element.
    encode: From a client's texts to its examples, `x` int32
      `[n, sequence_length]`.
    sequence_length: Numbers in an example's input.
    num_classes: Number of classes.
    num_overlapping: See `examples.ExampleSource`.
  """
  train, test = (
    _TextSource(split, client_ids, field, encode, num_overlapping)
    for split in splits
  )
  return federated_dataset.FederatedDataset(
    name=name,
    client_ids=client_ids,
    element_spec=examples_lib.element_spec(
      tf.TensorSpec((sequence_length,), tf.int32)
    ),
    num_classes=num_classes,
    train=train,
    test=test,
  )
