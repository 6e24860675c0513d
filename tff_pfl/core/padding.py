"""Pads the examples of a dataset's clients to tensors of few sizes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import example_tensors
from tff_pfl.datasets import examples as examples_lib

# Memory of a client in addition to its tensors' numbers.
_BYTES_PER_CLIENT = 2000


@fields.checked_call
def padded(examples: examples_lib.Examples) -> example_tensors.ExampleTensors:
  """A client's examples as padded tensors."""
  return example_tensors.from_arrays(examples.as_dict())


def no_examples(
  element_spec: Mapping[str, tf.TensorSpec],
) -> example_tensors.ExampleTensors:
  """The padded tensors of a client without examples."""
  return example_tensors.from_arrays(
    tf.nest.map_structure(
      lambda spec: np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype),
      element_spec,
    )
  )


class ClientExamples:
  """The clients' examples, `padded` on demand, with a cache of recent ones."""

  def __init__(
    self, load: Callable[[str], examples_lib.Examples], max_bytes: int = 2**30
  ):
    """Loads nothing yet.

    Args:
      load: Maps a client id to its examples, such as `FederatedDataset.train`.
      max_bytes: Memory limit of the cache, which drops the least recently used
        examples first.
    """
    self._load = load
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._kept = {}

  def __reduce__(self) -> Any:
    # Pickles do not contain the cached examples.
    return ClientExamples, (self._load, self._max_bytes)

  def __getitem__(self, client_id: str) -> example_tensors.ExampleTensors:
    """The client's examples."""
    tensors = self._kept.pop(client_id, None)
    if tensors is None:
      tensors = padded(self._load(client_id))
      self._num_bytes += _num_bytes(tensors)
    # The dictionary ends with the most recently used examples.
    self._kept[client_id] = tensors
    while self._kept and self._num_bytes > self._max_bytes:
      self._num_bytes -= _num_bytes(self._kept.pop(next(iter(self._kept))))
    return tensors


def _num_bytes(tensors):
  return _BYTES_PER_CLIENT + sum(
    tensor.shape.num_elements() * tensor.dtype.size
    for tensor in tf.nest.flatten(tensors)
  )
