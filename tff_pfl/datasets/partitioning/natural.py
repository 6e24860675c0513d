"""Clients that come with the data: writers, speaking roles, users.

`own_clients` and `by_key` divide pooled examples with named clients. The other
functions serve datasets that are read client by client.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Optional

import numpy as np
import pandas as pd

from tff_pfl import errors, fields
from tff_pfl.datasets.partitioning import base, dealing


@fields.dataclass
class Natural(base.Partitioner):
  """The data's own clients, such as writers or users, if examples name them."""

  name: ClassVar[str] = 'natural'
  needs_classes: ClassVar[bool] = False

  def partition(
    self, pool: base.Pool, num_clients: int, seed: int = 0
  ) -> base.Partition:
    """Gives examples to their own clients; see `own_clients`."""
    return own_clients(pool, num_clients, seed)[0]


def expect_natural(
  partition: Optional[base.Partitioner], name: str, kind: str
) -> None:
  """Raises `ValueError` unless the data's own clients are requested.

  Args:
    partition: The requested partition. None means the data's own clients.
    name: Name of the dataset.
    kind: Plural name of its clients, such as 'users'.
  """
  errors.expect(
    partition is None or isinstance(partition, Natural),
    'partition',
    f'natural for the dataset {name!r}, whose clients are its {kind}',
    partition and partition.spec,
  )


def choose_clients(
  client_ids: Sequence[Any], num_clients: Optional[int], kind: str, seed: int
) -> list[Any]:
  """Draws some of the clients at random and keeps their order.

  Args:
    client_ids: Ids of all clients.
    num_clients: Number of clients to draw, at least 1. None means all.
    kind: Plural name of the clients, such as 'users', for messages.
    seed: Non-negative.
  """
  if num_clients is None:
    num_clients = max(len(client_ids), 1)
  errors.expect(
    num_clients <= len(client_ids),
    'num_clients',
    f'at most {len(client_ids)}, the number of {kind} in the data',
    num_clients,
  )
  rng = dealing.make_rng(seed, dealing.CHOICE)
  chosen = rng.permutation(len(client_ids))[:num_clients]
  return [client_ids[position] for position in np.sort(chosen)]


def own_clients(
  pool: base.Pool, num_clients: Optional[int], seed: int
) -> tuple[base.Partition, list[str]]:
  """Draws some of the clients that examples name: their examples and ids."""
  errors.expect(
    pool.client is not None,
    'partition',
    'a rule that deals pooled examples, as they name no clients',
    Natural.name,
  )
  parts, ids = by_key(pool, pool.client, pool.client_test, 'client')
  chosen = choose_clients(range(len(ids)), num_clients, 'clients', seed)
  parts = base.Partition(*([part[i] for i in chosen] for part in parts))
  return parts, [ids[i] for i in chosen]


def by_key(
  pool: base.Pool, keys: Any, keys_test: Any = None, name: str = 'keys'
) -> tuple[base.Partition, list[str]]:
  """Gives every example to the client of its key, without randomness.

  Args:
    pool: The examples.
    keys: Integers or strings, one per training example.
    keys_test: Keys of the test examples, of the same type. None without test
      examples.
    name: Name of the keys in messages.

  Returns:
    The partition, in which each client keeps the order of the data, and the
    clients' ids, which are the sorted distinct keys.
  """
  columns, kinds = [], []
  for key, values, y in (
    (name, keys, pool.y),
    (f'{name}_test', keys_test, pool.y_test),
  ):
    count = 0 if y is None else len(y)
    # As objects, because NumPy turns 1 and '1' into strings, and signed and
    # unsigned integers into floats.
    if isinstance(values, np.ma.MaskedArray):
      values = values.astype(object).filled(None)
    column = np.asarray([] if values is None else values, object)
    kind = pd.api.types.infer_dtype(column.ravel(), skipna=False)
    errors.expect(
      column.shape == (count,)
      and kind in ('integer', 'string', 'bytes', 'empty'),
      key,
      f'{count} integers or strings, all of one type, one per example',
      f'{kind} of shape {column.shape}',
    )
    columns.append(column)
    kinds += [kind] * bool(count)
  errors.expect(
    len({*kinds}) < 2, f'{name}_test', f'of the kind of `{name}`', kinds[-1:]
  )
  owners, distinct = pd.factorize(np.concatenate(columns), sort=True)
  parts = base.Partition(
    *(
      dealing.group(np.arange(len(part)), part, len(distinct))
      for part in np.split(owners, [len(pool.y)])
    )
  )
  ids = [
    key.decode(errors='backslashreplace')
    if isinstance(key, bytes)
    else str(key)
    for key in distinct
  ]
  return parts, ids
