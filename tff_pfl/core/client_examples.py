"""The examples of a dataset's clients as padded tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl.core import example_tensors
from tff_pfl.datasets import examples as examples_lib

# The memory of a client besides its numbers.
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
  """The clients' examples, `padded` on demand; those used last are kept."""

  def __init__(
    self, load: Callable[[str], examples_lib.Examples], max_bytes: int = 2**30
  ):
    """Loads nothing yet.

    Args:
      load: Maps a client id to its examples, such as `FederatedDataset.train`.
      max_bytes: Limit of the memory for kept examples; those not used for
        longest are dropped.
    """
    self._load = load
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._kept = {}

  def __reduce__(self) -> Any:
    # The kept examples do not travel.
    return ClientExamples, (self._load, self._max_bytes)

  def __getitem__(self, client_id: str) -> example_tensors.ExampleTensors:
    """The client's examples."""
    tensors = self._kept.pop(client_id, None)
    if tensors is None:
      tensors = padded(self._load(client_id))
      self._num_bytes += _num_bytes(tensors)
    # The examples used last are the last in the dictionary.
    self._kept[client_id] = tensors
    while self._kept and self._num_bytes > self._max_bytes:
      self._num_bytes -= _num_bytes(self._kept.pop(next(iter(self._kept))))
    return tensors


def _num_bytes(tensors):
  return _BYTES_PER_CLIENT + sum(
    tensor.shape.num_elements() * tensor.dtype.size
    for tensor in tf.nest.flatten(tensors)
  )
