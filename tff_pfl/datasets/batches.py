"""Examples as the datasets that the library's computations take."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tff_pfl.datasets import examples as examples_lib

# What a dataset takes besides its examples.
_BYTES_PER_DATASET = 5000


def as_batches(examples: examples_lib.Examples) -> tf.data.Dataset:
  """A client's examples as a dataset of one batch, the fastest form."""
  return tf.data.Dataset.from_tensors(examples.as_dict())


def no_examples(
  element_spec: Mapping[str, tf.TensorSpec],
) -> examples_lib.Examples:
  """No examples, of the given `OrderedDict` of one example's fields."""
  return examples_lib.Examples(
    **{
      name: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
      for name, spec in element_spec.items()
    }
  )


class ClientBatches:
  """The clients' examples `as_batches`, kept for when they are asked for again.

  Runtimes recognize a dataset object that they have read before.
  """

  def __init__(
    self,
    load: Callable[[str], examples_lib.Examples],
    max_bytes: int = 2**29,
  ):
    """Loads nothing yet.

    Args:
      load: From a client id to its examples, such as `FederatedDataset.train`.
      max_bytes: How much the datasets that are kept may hold; the least
        recently used ones are dropped.
    """
    self._load = load
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._kept = collections.OrderedDict()

  def __getitem__(self, client_id: str) -> tf.data.Dataset:
    """The client's examples as a dataset of one batch."""
    if client_id in self._kept:
      self._kept.move_to_end(client_id)
      return self._kept[client_id][0]
    examples = self._load(client_id)
    num_bytes = _BYTES_PER_DATASET + sum(
      array.nbytes for array in examples.as_dict().values()
    )
    dataset = as_batches(examples)
    self._kept[client_id] = dataset, num_bytes
    self._num_bytes += num_bytes
    while self._num_bytes > self._max_bytes:
      _, (_, dropped_bytes) = self._kept.popitem(last=False)
      self._num_bytes -= dropped_bytes
    return dataset
