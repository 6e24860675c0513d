"""Clients that the data name themselves: writers, speaking roles, users.

The data sets that have such clients follow the rule themselves, with the
functions here.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing


@dataclasses.dataclass(frozen=True)
class Natural(base.Partitioner):
  """The data's own clients; as a rule, it cannot deal pooled examples."""

  name: ClassVar[str] = 'natural'
  summary: ClassVar[str] = (
    'the clients that the data name themselves, such as writers, speaking roles'
    ' or users; only for data sets that have them'
  )
  needs_classes: ClassVar[bool] = False

  def partition(
    self, pool: base.Pool, num_clients: int, seed: int = 0
  ) -> base.Partition:
    """Raises `ValueError`: pooled examples do not say whose they are."""
    raise ValueError(
      'Expected `partition` to be a rule that deals pooled examples, such as'
      f' shards:2 or iid, found {self.spec!r}; pass one key per example as'
      ' `keys` to `FederatedDataset.from_arrays` for clients of your own.'
    )


def expect_natural(partition: base.Partitioner, name: str, kind: str) -> None:
  """Raises `ValueError` unless clients are those of the data, a `kind`."""
  errors.expect(
    isinstance(partition, Natural),
    'partition',
    f'{Natural.name} for the dataset {name!r}, whose clients are its {kind}',
    partition.spec,
  )


def choose_clients(
  client_ids: Sequence[Any], num_clients: int, kind: str, seed: int
) -> list[Any]:
  """Returns `num_clients` of the clients, drawn at random, in their order.

  Args:
    kind: What the clients are, in the plural, for the message.
  """
  errors.expect_int('num_clients', num_clients, 1)
  errors.expect_int('seed', seed, 0)
  errors.expect(
    num_clients <= len(client_ids),
    'num_clients',
    f'at most {len(client_ids)}, the number of {kind} in the data',
    num_clients,
  )
  rng = dealing.make_rng(seed, dealing.CHOICE)
  chosen = rng.permutation(len(client_ids))[:num_clients]
  return [client_ids[position] for position in np.sort(chosen)]
