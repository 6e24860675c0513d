"""One client per key of the examples."""

import dataclasses
from typing import Any, ClassVar, Optional

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing


@dataclasses.dataclass(frozen=True, eq=False)
class ByKey(base.Partitioner):
  """One client per distinct key of the examples: a writer, a hospital, a user.

  The clients are in the sorted order of their keys, and each keeps the order of
  the data. It has no specification to write on a command line, as it needs a
  key for every example.

  Attributes:
    keys: Integers or strings, one per training example.
    test_keys: Keys of the test examples; None without those.
  """

  keys: Any
  test_keys: Any = None

  name: ClassVar[str] = 'by_key'
  summary: ClassVar[str] = 'one client per distinct key of the examples'
  needs_classes: ClassVar[bool] = False

  def __post_init__(self):
    for name in ('keys', 'test_keys'):
      value = getattr(self, name)
      value = np.asarray([] if value is None else value)
      errors.expect(
        value.ndim == 1
        and (value.dtype.kind in 'iuUS' or not len(value))
        and (len(value) or name == 'test_keys'),
        name,
        'integers or strings, one per example',
        f'{value.dtype} of shape {value.shape}',
      )
      object.__setattr__(self, name, value)
    whole, test_whole = (
      keys.dtype.kind in 'iu' for keys in (self.keys, self.test_keys)
    )
    errors.expect(
      not len(self.test_keys) or whole == test_whole,
      'test_keys',
      f'of the kind of `keys` ({self.keys.dtype})',
      self.test_keys.dtype,
    )

  @property
  def spec(self) -> str:
    """Its name: keys cannot be written into a specification."""
    return self.name

  def client_ids(self, num_clients: int) -> list[str]:
    """Returns the distinct keys as strings."""
    del num_clients
    return [
      key.decode() if isinstance(key, bytes) else str(key)
      for key in self._clients()[0].tolist()
    ]

  def _clients(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct keys, and each example's position among them."""
    keys = self.keys
    if len(self.test_keys):
      keys = np.concatenate([keys, self.test_keys])
    return np.unique(keys, return_inverse=True)

  def partition(
    self, pool: base.Pool, num_clients: Optional[int] = None, seed: int = 0
  ) -> base.Partition:
    """Gives every example to the client of its key; nothing is random.

    Raises:
      ValueError: There is not one key per example, or `num_clients` is given
        and not the number of distinct keys.
    """
    del seed
    num_train = len(pool.y)
    num_test = 0 if pool.y_test is None else len(pool.y_test)
    for name, keys, count in (
      ('keys', self.keys, num_train),
      ('test_keys', self.test_keys, num_test),
    ):
      errors.expect(
        len(keys) == count, name, f'{count} keys, one per example', len(keys)
      )
    distinct, owners = self._clients()
    errors.expect(
      num_clients is None or num_clients == len(distinct),
      'num_clients',
      f'unset or the number of distinct keys, {len(distinct)}',
      num_clients,
    )
    return base.Partition(
      dealing.group(np.arange(num_train), owners[:num_train], len(distinct)),
      dealing.group(np.arange(num_test), owners[num_train:], len(distinct)),
    )
