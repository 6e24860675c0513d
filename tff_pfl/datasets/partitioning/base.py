"""Pools of examples, partitions of them, and the base of all rules."""

import abc
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np

from tff_pfl import errors, fields
from tff_pfl.datasets.partitioning import dealing

# The ids of more clients would fill the memory.
NumClients = fields.integer(1, 10**8)


class Partition(NamedTuple):
  """The examples of each client.

  Attributes:
    train_indices: For each client, an int64 array of positions in the training
      arrays, in random order (`by_key` keeps the order of the data).
    test_indices: For each client, positions in the test arrays.
  """

  train_indices: list[np.ndarray]
  test_indices: list[np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
  """Examples that are not yet divided among clients.

  Attributes:
    y: Labels of the training examples, int `[n]`. Other labels or targets count
      as one class, for rules that need no classes.
    y_test: Labels of the test examples, `[m]`. None without test examples.
    num_classes: Number of classes. None uses the largest label plus 1.
    class_names: Names of the classes. None if labels have no names.
    domain: Domain ids of the training examples, int `[n]`, for rules that use
      domains. None without domains.
    domain_test: Domain ids of the test examples, `[m]`.
    domain_names: Names of the domains, given with `domain`.
    x: Inputs of the training examples, `[n, ...]`, which no rule reads.
    x_test: Inputs of the test examples, `[m, ...]`.
    client: Clients of the training examples, integers or strings `[n]`, for the
      partition natural. None if the examples do not name them.
    client_test: Clients of the test examples, `[m]`.
    weight: Factors of the training examples' losses, `[n]`. None without
      weights.
    weight_test: Factors of test examples that are pooled with the training
      examples, `[m]`. None means 1.
  """

  y: np.ndarray
  y_test: Optional[np.ndarray] = None
  num_classes: Optional[int] = None
  class_names: Optional[Sequence[str]] = None
  domain: Optional[np.ndarray] = None
  domain_test: Optional[np.ndarray] = None
  domain_names: Optional[Sequence[str]] = None
  x: Optional[np.ndarray] = None
  x_test: Optional[np.ndarray] = None
  client: Optional[np.ndarray] = None
  client_test: Optional[np.ndarray] = None
  weight: Optional[np.ndarray] = None
  weight_test: Optional[np.ndarray] = None


@dataclasses.dataclass(frozen=True)
class Partitioner(abc.ABC):
  """A rule that makes clients from central examples.

  The dataclass's fields are its parameters in a specification. The docstring's
  first line and its texts on the fields describe a rule in `--help`.

  Attributes:
    name: Name of the rule in a specification such as `shards:2`.
    needs_classes: True if the examples must have integer class labels.
  """

  name: ClassVar[str]
  needs_classes: ClassVar[bool] = True

  @property
  def spec(self) -> str:
    """The specification that `make_partitioner` turns into this rule."""
    fields = dataclasses.fields(self)
    values = [getattr(self, field.name) for field in fields]
    # Trailing defaults are left out, except for the first parameter.
    while len(values) > 1 and values[-1] == fields[len(values) - 1].default:
      values.pop()
    return ':'.join([self.name, *map(_text, values)])

  @classmethod
  def usage(cls) -> str:
    """Returns the form of a specification, `name:<required>[:<optional>]`."""
    form = cls.name
    for field in dataclasses.fields(cls):
      optional = field.default is not dataclasses.MISSING
      form += f'[:<{field.name}>]' if optional else f':<{field.name}>'
    return form

  @classmethod
  def naming(cls) -> contextlib.AbstractContextManager[None]:
    """Makes errors name the parameters as parts of the specification."""
    names = [field.name for field in dataclasses.fields(cls)]
    return errors.naming({name: f'`{name}` in `partition`' for name in names})

  @abc.abstractmethod
  def partition(self, pool: Pool, num_clients: int, seed: int = 0) -> Partition:
    """Deals training and test examples to the clients.

    Args:
      pool: The examples.
      num_clients: Number of clients, at least 1.
      seed: Non-negative.
    """


class CountingPartitioner(Partitioner):
  """A rule that gives each client a number of examples of each group.

  Groups are the classes, unless a subclass overrides `_groups`.
  """

  def partition(self, pool: Pool, num_clients: int, seed: int = 0) -> Partition:
    """Counts and deals examples; see the base class."""
    *ids, num_groups = self._groups(pool)
    errors.expect(
      num_clients <= len(ids[0]),
      'num_clients',
      f'at most {len(ids[0])}, the number of training examples',
      num_clients,
    )
    pools = [np.bincount(part, minlength=num_groups) for part in ids]
    rngs = [dealing.make_rng(seed, s) for s in (dealing.TRAIN, dealing.TEST)]
    counts = self._counts(num_clients, *pools, seed, *rngs)
    return Partition(*map(dealing.deal, ids, counts, rngs))

  @abc.abstractmethod
  def _counts(
    self,
    num_clients: int,
    pool: np.ndarray,
    test_pool: np.ndarray,
    seed: int,
    train_rng: np.random.Generator,
    test_rng: np.random.Generator,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Counts each client's training and test examples of each group.

    Args:
      num_clients: Number of clients.
      pool: Number of training examples of each group, int `[num_groups]`.
      test_pool: Number of test examples of each group.
      seed: Seed for further draws.
      train_rng: Breaks ties for training examples, and later deals them.
      test_rng: Breaks ties for test examples, and later deals them.

    Returns:
      Two int arrays `[num_clients, num_groups]`.
    """

  def _groups(self, pool: Pool) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns labels and the number of classes, which is 1 without labels."""
    y = np.asarray(pool.y)
    y_test = y[:0] if pool.y_test is None else np.asarray(pool.y_test)
    num_classes = pool.num_classes
    if not all(
      part.ndim == 1 and np.issubdtype(part.dtype, np.integer)
      for part in (y, y_test)
    ):
      errors.expect(
        not self.needs_classes,
        'partition',
        'iid, lognormal, natural or by key for examples without one class label'
        ' each',
        self.spec,
      )
      y, y_test = np.zeros(len(y), np.int64), np.zeros(len(y_test), np.int64)
      num_classes = 1
    if num_classes is None:
      num_classes = int(max(y.max(), y_test.max(initial=0))) + 1
    return y, y_test, num_classes


def numbered_client_ids(num_clients: int) -> list[str]:
  """Returns ids `client_0` …, zero-padded so that they sort by number."""
  width = len(str(num_clients - 1))
  return [f'client_{i:0{width}d}' for i in range(num_clients)]


def _text(value: Any) -> str:
  if value is None:
    return 'all'
  if isinstance(value, tuple):
    return '/'.join(map(repr, value))
  return value if isinstance(value, str) else repr(value)


def hold_out(
  indices: list[np.ndarray],
  y: np.ndarray,
  fraction: float,
  seed: int,
  domain: Optional[np.ndarray] = None,
) -> Partition:
  """Divides each client's examples into train and test, stratified by class.

  A client with n examples gives round(fraction * n) of them to its test set. It
  keeps at least 1 for training, and gives at least 1 if it has two or more. If
  the fraction is 0, it gives none. The test set has each class in proportion,
  up to one example. If there are domains, it has each domain in proportion, and
  the classes within a domain approximately.

  Args:
    indices: For each client, its examples' positions in `y`.
    y: Labels. The division is stratified by class if they are int `[n]`.
    fraction: In [0, 1).
    seed: Non-negative.
    domain: Domain ids, int `[n]`. None without domains.

  Returns:
    Disjoint train and test positions, together `indices`, in their order.
  """
  rng = dealing.make_rng(seed, dealing.HOLD_OUT)
  sizes = np.array([len(i) for i in indices], np.int64)
  flat = np.concatenate(indices)
  owners = np.repeat(np.arange(len(indices)), sizes)
  num_test = np.zeros_like(sizes)
  if fraction > 0:
    num_test = np.round(fraction * sizes).astype(np.int64)
    num_test = np.clip(num_test, np.minimum(sizes - 1, 1), sizes - 1).clip(0)
  strata = np.zeros(len(flat), np.int64)
  if y.ndim == 1 and np.issubdtype(y.dtype, np.integer):
    strata = y[flat]
  domains = np.zeros(len(flat), np.int64) if domain is None else domain[flat]
  # Sorted by client, domain and class, in random order within each: equidistant
  # examples of a client are a stratified sample.
  order = np.lexsort((rng.random(len(flat)), strata, domains, owners))
  test_owners = np.repeat(np.arange(len(indices)), num_test)
  first_test = np.cumsum(num_test) - num_test
  rank = np.arange(len(test_owners)) - first_test[test_owners]
  offset = rng.random(len(indices))[test_owners]
  step = sizes[test_owners] / num_test[test_owners]
  first = (np.cumsum(sizes) - sizes)[test_owners]
  place = np.floor((rank + offset) * step).astype(np.int64)
  is_test = np.zeros(len(flat), bool)
  is_test[order[first + np.minimum(place, sizes[test_owners] - 1)]] = True
  return Partition(
    dealing.group(flat[~is_test], owners[~is_test], len(indices)),
    dealing.group(flat[is_test], owners[is_test], len(indices)),
  )
