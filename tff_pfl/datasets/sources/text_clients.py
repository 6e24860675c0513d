"""Clients whose examples are cut out of their texts."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset


def make_text_clients(
  name: str,
  client_ids: Sequence[str],
  splits: Sequence[Callable[[str], Any]],
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
    splits: From a client to its training texts, and to its test texts.
    encode: From such texts to examples, `x` int32 `[n, sequence_length]` and
      `y` int32 `[n]`.
    sequence_length: Numbers in an example's input.
    num_overlapping: See `examples.ExampleSource`.
    in_memory: See `examples.ExampleSource`.
  """
  train, test = (
    examples_lib.ReadSource(
      lambda position, read=read: encode(read(client_ids[position])),
      num_overlapping,
      in_memory,
    )
    for read in splits
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
