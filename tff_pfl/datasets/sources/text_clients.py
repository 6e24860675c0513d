"""Clients whose examples are cut out of their texts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset


@dataclasses.dataclass(eq=False)
class _TextSource(examples_lib.ExampleSource):
  """Reads and encodes a client's texts each time; keeps only the counts."""

  read: Callable[[str], Any]
  client_ids: Sequence[str]
  encode: Callable[[Any], examples_lib.Examples]
  num_overlapping: int
  in_memory: bool
  counts: dict[int, int] = dataclasses.field(default_factory=dict)

  def examples(self, position: int) -> examples_lib.Examples:
    result = self.encode(self.read(self.client_ids[position]))
    self.counts[position] = examples_lib.num_examples(result)
    return result

  def num_examples(self, position: int) -> int:
    if position not in self.counts:
      self.examples(position)
    return self.counts[position]


def make_text_clients(
  name: str,
  client_ids: Sequence[str],
  train: Callable[[str], Any],
  test: Callable[[str], Any],
  encode: Callable[[Any], examples_lib.Examples],
  *,
  sequence_length: int,
  num_classes: int,
  num_overlapping: int,
  in_memory: bool = False,
) -> federated_dataset.FederatedDataset:
  """Returns a dataset that reads texts when a client is asked for.

  Args:
    client_ids: Clients that have training and test texts.
    train: From a client to its training texts.
    test: From a client to its test texts.
    encode: From such texts to examples, `x` int32 `[n, sequence_length]` and
      `y` int32 `[n]`.
    sequence_length: Numbers in an example's input.
    num_overlapping: See `examples.ExampleSource`.
    in_memory: See `examples.ExampleSource`.
  """
  splits = (
    _TextSource(read, client_ids, encode, num_overlapping, in_memory)
    for read in (train, test)
  )
  return federated_dataset.FederatedDataset(
    name=name,
    client_ids=client_ids,
    element_spec=examples_lib.element_spec(
      tf.TensorSpec((sequence_length,), tf.int32)
    ),
    num_classes=num_classes,
    **dict(zip(('train', 'test'), splits)),
  )
