"""Data sets whose clients are given: writers, speaking roles, users, domains.

They are loaded with `partition='natural'`, and `num_clients` says how many of
their clients take part: a random choice, drawn from the seed.
"""

from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import partitioning

# A random stream of its own; `partitioning` has those before it.
_CHOICE = 4


def is_natural(partition: Union[str, partitioning.Partitioner]) -> bool:
  """Returns whether a partitioner or specification is the natural one.

  Raises:
    ValueError: A specification is not understood.
  """
  if isinstance(partition, str):
    partition = partitioning.make_partitioner(partition)
  return isinstance(partition, partitioning.Natural)


def check_partition(
  partition: Union[str, partitioning.Partitioner], name: str, kind: str
) -> None:
  """Raises `ValueError` unless the partition is the natural one.

  Args:
    partition: A partitioner or its specification.
    name: The data set's.
    kind: What its clients are, in the plural, for the message.
  """
  errors.expect(
    is_natural(partition),
    'partition',
    f'{partitioning.Natural.name} for the dataset {name!r}, whose clients are'
    f' its {kind}',
    partition if isinstance(partition, str) else partition.spec,
  )


def choose_clients(
  client_ids: Sequence[Any], num_clients: int, kind: str, seed: int
) -> list[Any]:
  """Returns some of the clients, drawn at random, in the order given.

  Args:
    client_ids: All clients.
    num_clients: How many to draw, at least 1; all without a draw if it is their
      number.
    kind: What the clients are, in the plural, for the message.
    seed: Of the draw, non-negative.

  Raises:
    ValueError: An argument is out of range, or there are fewer clients.
  """
  num_clients = partitioning.check_num_clients(num_clients)
  seed = partitioning.check_seed(seed)
  errors.expect(
    num_clients <= len(client_ids),
    'num_clients',
    f'at most {len(client_ids)}, the number of {kind} in the data',
    num_clients,
  )
  rng = np.random.default_rng([seed, _CHOICE])
  chosen = rng.permutation(len(client_ids))[:num_clients]
  return [client_ids[position] for position in np.sort(chosen)]
