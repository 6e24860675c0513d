"""One client per key of the examples: a writer, a hospital, a user."""

from typing import Any

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing


def by_key(
  pool: base.Pool, keys: Any, keys_test: Any = None
) -> tuple[base.Partition, list[str]]:
  """Gives every example to the client of its key; nothing is random.

  Args:
    keys: Integers or strings, one per training example.
    keys_test: Keys of the test examples, of the same kind; None without any.

  Returns:
    The partition, where each client keeps the order of the data, and the
    clients' ids, the distinct keys in their order.
  """
  train, test = (np.asarray([] if k is None else k) for k in (keys, keys_test))
  for name, part, y in (
    ('keys', train, pool.y),
    ('keys_test', test, pool.y_test),
  ):
    count = 0 if y is None else len(y)
    errors.expect(
      part.shape == (count,) and (part.dtype.kind in 'iuUS' or not count),
      name,
      f'{count} integers or strings, one per example',
      f'{part.dtype} of shape {part.shape}',
    )
  if len(test):
    errors.expect(
      (train.dtype.kind in 'iu') == (test.dtype.kind in 'iu'),
      'keys_test',
      f'of the kind of `keys` ({train.dtype})',
      test.dtype,
    )
    train = np.concatenate([train, test])
  distinct, owners = np.unique(train, return_inverse=True)
  num_train = len(pool.y)
  parts = base.Partition(
    dealing.group(np.arange(num_train), owners[:num_train], len(distinct)),
    dealing.group(np.arange(len(test)), owners[num_train:], len(distinct)),
  )
  ids = [
    key.decode() if isinstance(key, bytes) else str(key)
    for key in distinct.tolist()
  ]
  return parts, ids
