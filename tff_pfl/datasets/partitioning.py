"""How central examples become clients.

A `WeightedPartitioner` is a rule for a non-negative weight matrix
`[num_clients, num_classes]`. The training examples of each class are then dealt
to the clients in proportion to that class's weights, and the test examples of
the class in proportion to the training examples that each client got, so that a
client's test examples follow the distribution of its training examples, and
none is of a class it has never seen. (A class without any training example is
dealt by the weights.) No example is dealt twice. None is lost either, unless
there are more classes than the clients may own altogether (two clients with two
classes each have no place for a fifth class): those classes are left out, and a
warning names them. The two other partitioners are `ByKey`, which follows keys
that come with the examples, and `FallahDigits`, which gives fixed numbers of
examples and by design leaves the others out. (Rules for examples with domains
are in `domain_partitioning`.)

Counts are rounded by largest remainders: a client gets the floor or the ceiling
of its exact share of each class, and what rounding has cost a client so far
decides who gets the ceiling next, so that the clients' totals stay close to
their exact shares as well.

Everything is a pure function of its arguments and a seed.
"""

import abc
import dataclasses
import heapq
import math
import numbers
from typing import (
  Any,
  ClassVar,
  NamedTuple,
  Optional,
)

import numpy as np
from absl import logging

from tff_pfl import errors

# Independent random streams of one seed.
_WEIGHTS, _TRAIN, _TEST, _HOLD_OUT = range(4)
_MAX_DIRICHLET_DRAWS = 100
# Below, a class belongs to one client, and NumPy takes longer and longer to say
# to which, without ever looking at signals.
_LEAST_CONCENTRATION = 1e-6
_NUM_FALLAH_CLASSES = 10


class Partition(NamedTuple):
  """Which examples each client holds.

  Attributes:
    train_indices: Per client an int64 array of positions in the training
      arrays, in random order (`ByKey` keeps the order of the data).
    test_indices: Likewise for the test arrays.
  """

  train_indices: list[np.ndarray]
  test_indices: list[np.ndarray]


def _rng(seed: int, stream: int) -> np.random.Generator:
  return np.random.default_rng([seed, stream])


def check_seed(seed: Any) -> int:
  """Returns `seed` as an int.

  Raises:
    ValueError: It is not a non-negative integer.
  """
  errors.expect(
    isinstance(seed, numbers.Integral) and seed >= 0,
    'seed',
    'a non-negative integer',
    seed,
  )
  return int(seed)


def check_num_clients(num_clients: Any) -> int:
  """Returns `num_clients` as an int.

  Raises:
    ValueError: It is not a positive integer.
  """
  errors.expect(
    isinstance(num_clients, numbers.Integral)
    and not isinstance(num_clients, bool)
    and num_clients >= 1,
    'num_clients',
    'a positive integer',
    num_clients,
  )
  return int(num_clients)


def apportion(
  class_counts: np.ndarray, weights: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Deals every class to the clients in proportion to their weights.

  Each entry of the result is the floor or the ceiling of its exact share.
  Among the clients with a fractional share, those get the ceiling for whom
  the fraction plus what rounding has cost them in the classes before is
  largest; ties are broken at random.

  Args:
    class_counts: Examples of each class, `[num_classes]`, int.
    weights: Non-negative, `[num_clients, num_classes]`; only the proportions
      within a column count.
    rng: Breaks ties.

  Returns:
    int64 array `[num_clients, num_classes]` whose columns sum to
    `class_counts`, or to 0 where a column has no positive weight.
  """
  num_clients, num_classes = weights.shape
  counts = np.zeros((num_clients, num_classes), np.int64)
  owed = np.zeros(num_clients)
  for label in range(num_classes):
    total = weights[:, label].sum()
    if total <= 0:
      continue
    exact = class_counts[label] * (weights[:, label] / total)
    # The small number makes a share that is whole but for the last bit whole.
    counts[:, label] = np.floor(exact + 1e-9)
    fraction = np.maximum(exact - counts[:, label], 0)
    num_extras = int(class_counts[label] - counts[:, label].sum())
    if num_extras > 0:
      # Rounded, so that equal claims stay equal whatever the order of sums.
      claim = np.round(fraction + owed, 9)
      claim[fraction <= 1e-9] = -np.inf
      order = np.lexsort((rng.random(num_clients), -claim))
      counts[order[:num_extras], label] += 1
    owed += exact - counts[:, label]
  return counts


def _group(
  indices: np.ndarray, owners: np.ndarray, num_clients: int
) -> list[np.ndarray]:
  """Splits `indices` by owner, keeping their order within each owner."""
  order = np.argsort(owners, kind='stable')
  sizes = np.bincount(owners, minlength=num_clients)
  return np.split(indices[order], np.cumsum(sizes)[:-1])


def deal(
  labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
  """Deals examples at random, `counts[client, class]` to each client.

  What a class has beyond the sum of its column is left out.

  Args:
    labels: Each example's class (or domain), int `[n]`.
    counts: How many examples of a class each client gets,
      `[num_clients, num_classes]`, int; there are as many.
    rng: Says which ones.

  Returns:
    Per client its examples' positions in `labels`, in random order.
  """
  num_clients, num_classes = counts.shape
  class_counts = np.bincount(labels, minlength=num_classes)
  shuffled = rng.permutation(len(labels))
  by_class = shuffled[np.argsort(labels[shuffled], kind='stable')]
  first_of_class = np.cumsum(class_counts) - class_counts
  rank = np.arange(len(labels)) - np.repeat(first_of_class, class_counts)
  dealt = rank < np.repeat(counts.sum(axis=0), class_counts)
  clients = np.tile(np.arange(num_clients), num_classes)
  owners = np.repeat(clients, counts.T.ravel())
  # A client's examples in random order: otherwise the first n of them, or an
  # unshuffled batch, would be of one class.
  order = rng.permutation(len(owners))
  return _group(by_class[dealt][order], owners[order], num_clients)


def _text(value: Any) -> str:
  """Returns a parameter as it is written in a specification."""
  if value is None:
    return 'all'
  if isinstance(value, tuple):
    return '/'.join(map(repr, value))
  return value if isinstance(value, str) else repr(value)


@dataclasses.dataclass(frozen=True)
class Partitioner(abc.ABC):
  """A rule that makes clients from central examples.

  The dataclass's fields are its parameters in a specification. One whose type
  cannot be made from text has in its metadata how (`parse`) and what it then
  looks like (`form`).

  Attributes:
    name: Its name in a specification such as `shards:2`.
    summary: One sentence for `--help`.
    needs_classes: Whether the examples must have integer class labels.
  """

  name: ClassVar[str]
  summary: ClassVar[str]
  needs_classes: ClassVar[bool] = True

  @property
  def spec(self) -> str:
    """The specification that `make_partitioner` turns into this rule."""
    fields = dataclasses.fields(self)
    values = [getattr(self, field.name) for field in fields]
    # Trailing defaults go without saying, but for the first parameter.
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

  @abc.abstractmethod
  def partition(
    self,
    y_train: np.ndarray,
    y_test: Optional[np.ndarray] = None,
    *,
    num_clients: int,
    num_classes: Optional[int] = None,
    seed: int = 0,
    domain: Optional[np.ndarray] = None,
    domain_test: Optional[np.ndarray] = None,
    num_domains: Optional[int] = None,
  ) -> Partition:
    """Deals training and test examples to the clients.

    Args:
      y_train: Labels, int `[n]`; anything else counts as one class, which the
        rules that do not speak of classes accept.
      y_test: Likewise; None for no test examples.
      num_clients: Number of clients, at least 1.
      num_classes: Number of classes; None for the largest label plus 1.
      seed: Non-negative.
      domain: Domain ids of the training examples, int `[n]`, for the rules
        that go by domains; None for examples without domains.
      domain_test: Likewise of the test examples.
      num_domains: Number of domains; None for the largest id plus 1.

    Returns:
      The clients' examples.

    Raises:
      ValueError: An argument is out of range, or the rule cannot be met.
    """

  def _class_labels(
    self,
    y_train: np.ndarray,
    y_test: Optional[np.ndarray],
    num_classes: Optional[int],
  ) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns checked labels and their number; all of one class without any.

    Raises:
      ValueError: There is no example, a label is out of range, or the rule
        needs labels where the examples have none.
    """
    y_train = np.asarray(y_train)
    y_test = y_train[:0] if y_test is None else np.asarray(y_test)
    labeled = all(
      y.ndim == 1 and np.issubdtype(y.dtype, np.integer)
      for y in (y_train, y_test)
    )
    if not labeled:
      errors.expect(
        not self.needs_classes,
        'partition',
        'iid, lognormal or by key for examples without one class label each',
        self.spec,
      )
      y_train = np.zeros(len(y_train), np.int64)
      y_test = np.zeros(len(y_test), np.int64)
      num_classes = 1
    labels = np.concatenate([y_train, y_test])
    errors.expect(len(labels), 'y_train', 'at least one example', 'none')
    if num_classes is None:
      num_classes = int(labels.max()) + 1
    errors.expect(
      labels.min() >= 0 and labels.max() < num_classes,
      'y_train and y_test',
      f'labels in [0, {num_classes})',
      (int(labels.min()), int(labels.max())),
    )
    return y_train, y_test, num_classes


class WeightedPartitioner(Partitioner):
  """A rule that is a claim of each client on each class."""

  @abc.abstractmethod
  def class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Returns each client's claim on each class.

    Args:
      num_clients: At least 1.
      class_counts: Training examples of each class, `[num_classes]`, int.
      seed: Non-negative.

    Returns:
      Non-negative float64 array `[num_clients, num_classes]`.

    Raises:
      ValueError: The rule cannot be met with these clients and classes.
    """

  def partition(
    self,
    y_train: np.ndarray,
    y_test: Optional[np.ndarray] = None,
    *,
    num_clients: int,
    num_classes: Optional[int] = None,
    seed: int = 0,
    domain: Optional[np.ndarray] = None,
    domain_test: Optional[np.ndarray] = None,
    num_domains: Optional[int] = None,
  ) -> Partition:
    """Deals every class in proportion to the weights; see the base class."""
    del domain, domain_test, num_domains
    num_clients = check_num_clients(num_clients)
    seed = check_seed(seed)
    y_train, y_test, num_classes = self._class_labels(
      y_train, y_test, num_classes
    )
    errors.expect(
      num_clients <= len(y_train),
      'num_clients',
      f'at most {len(y_train)}, the number of training examples',
      num_clients,
    )
    class_counts = np.bincount(y_train, minlength=num_classes)
    weights = self.class_weights(num_clients, class_counts, seed)
    all_counts = class_counts + np.bincount(y_test, minlength=num_classes)
    left_out = (all_counts > 0) & (weights.sum(axis=0) <= 0)
    if left_out.any():
      logging.warning(
        'Partition %s of %d clients has no place for the classes %s: their'
        ' %d examples are left out.',
        self.spec,
        num_clients,
        np.flatnonzero(left_out).tolist(),
        all_counts[left_out].sum(),
      )
    train_rng, test_rng = _rng(seed, _TRAIN), _rng(seed, _TEST)
    train_counts = apportion(class_counts, weights, train_rng)
    test_counts = apportion(
      np.bincount(y_test, minlength=num_classes),
      np.where(class_counts > 0, train_counts, weights),
      test_rng,
    )
    return Partition(
      deal(y_train, train_counts, train_rng),
      deal(y_test, test_counts, test_rng),
    )


def _expect_positive_int(value: Any, name: str) -> None:
  errors.expect(
    isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    name,
    'a positive integer',
    value,
  )


def _is_number(value: Any) -> bool:
  return (
    isinstance(value, numbers.Real)
    and not isinstance(value, bool)
    and math.isfinite(value)
  )


def _classes_present(
  class_counts: np.ndarray, wanted: int, name: str
) -> np.ndarray:
  """Returns the classes that have examples, of which `wanted` must exist."""
  present = np.flatnonzero(class_counts)
  errors.expect(
    wanted <= len(present),
    name,
    f'at most {len(present)}, the number of classes with training examples',
    wanted,
  )
  return present


@dataclasses.dataclass(frozen=True)
class Shards(WeightedPartitioner):
  """Single-class shards of equal size, the same number for every client.

  Each class is cut into equal shards, and each client gets shards of
  `shards_per_client` distinct classes: the pathological partition of McMahan et
  al., in FedRep's variant where no shard straddles two classes. The classes get
  as many shards as makes shard sizes most nearly equal (the method of equal
  proportions): the same number for classes of the same size, where
  `num_clients * shards_per_client` is a multiple of their number.

  Attributes:
    shards_per_client: Shards, and distinct classes, of each client; from 1 to
      the number of classes.

  References:
    McMahan et al., Communication-Efficient Learning of Deep Networks from
      Decentralized Data, AISTATS 2017, section 3.
    Collins et al., Exploiting Shared Representations for Personalized Federated
      Learning, ICML 2021, section 5.
    Huntington, The Mathematical Theory of the Apportionment of Representatives,
      PNAS 7(4), 1921.
  """

  shards_per_client: int = 2

  name: ClassVar[str] = 'shards'
  summary: ClassVar[str] = (
    'equal shards of one class each, as many distinct classes per client as'
    ' it has shards (McMahan et al. 2017, FedRep)'
  )

  def __post_init__(self):
    _expect_positive_int(self.shards_per_client, 'shards_per_client')

  def class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Gives each client 1 for its classes, 0 for the others."""
    rng = _rng(seed, _WEIGHTS)
    per_client = self.shards_per_client
    present = _classes_present(class_counts, per_client, 'shards_per_client')
    remaining = _shards_by_class(
      class_counts[present], num_clients * per_client, num_clients, rng
    )
    weights = np.zeros((num_clients, len(class_counts)))
    for client in range(num_clients):
      with np.errstate(divide='ignore'):
        # Gumbel noise on log counts draws without replacement in proportion
        # to the shards that remain.
        priority = np.log(remaining) + rng.gumbel(size=len(present))
      # A class with a shard for every client still to come cannot wait.
      priority[remaining == num_clients - client] = np.inf
      chosen = np.argpartition(-priority, per_client - 1)[:per_client]
      remaining[chosen] -= 1
      weights[client, present[chosen]] = 1
    return weights[rng.permutation(num_clients)]


def _shards_by_class(
  class_counts: np.ndarray,
  num_shards: int,
  max_shards: int,
  rng: np.random.Generator,
) -> np.ndarray:
  """Returns shards per class, sizes as equal as possible, `[num_classes]`.

  The next shard goes to the class whose shards are largest, measured by the
  geometric mean of their size without and with it; every class gets its first
  shard before any gets a second.

  Args:
    class_counts: Positive, `[num_classes]`.
    num_shards: At most `max_shards * num_classes`.
    max_shards: Most shards of one class.
    rng: Decides between classes of equal size.
  """
  shards = np.zeros(len(class_counts), np.int64)
  rank = rng.permutation(len(class_counts))

  def entry(label: int) -> tuple[bool, float, int, int]:
    owned = int(shards[label])
    size = class_counts[label] / max(owned * (owned + 1), 1) ** 0.5
    return owned > 0, -size, int(rank[label]), label

  queue = [entry(label) for label in range(len(class_counts))]
  heapq.heapify(queue)
  for _ in range(num_shards):
    label = queue[0][-1]
    shards[label] += 1
    if shards[label] < max_shards:
      heapq.heapreplace(queue, entry(label))
    else:
      heapq.heappop(queue)
  return shards


@dataclasses.dataclass(frozen=True)
class ClassesPerClient(WeightedPartitioner):
  """Distinct classes drawn at random, each shared evenly by its owners.

  Unlike with `Shards` a class may have many owners or few, so that sizes vary.
  Every class has an owner if the clients can own that many classes.

  Attributes:
    num_classes_per_client: From 1 to the number of classes.
  """

  num_classes_per_client: int

  name: ClassVar[str] = 'classes_per_client'
  summary: ClassVar[str] = (
    'so many distinct classes drawn at random for each client, each class'
    ' divided evenly among its owners; sizes vary'
  )

  def __post_init__(self):
    _expect_positive_int(self.num_classes_per_client, 'num_classes_per_client')

  def class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Gives each client 1 for its classes, 0 for the others."""
    rng = _rng(seed, _WEIGHTS)
    per_client = self.num_classes_per_client
    present = _classes_present(
      class_counts, per_client, 'num_classes_per_client'
    )
    order = rng.random((num_clients, len(present)))
    # First one owner for each class, in turn; the rest is drawn freely.
    covered = rng.permutation(len(present))[: num_clients * per_client]
    owners = rng.permutation(num_clients)
    order[owners[np.arange(len(covered)) % num_clients], covered] = -1
    chosen = np.argpartition(order, per_client - 1, axis=1)[:, :per_client]
    weights = np.zeros((num_clients, len(class_counts)))
    weights[np.arange(num_clients)[:, np.newaxis], present[chosen]] = 1
    return weights


@dataclasses.dataclass(frozen=True)
class Dirichlet(WeightedPartitioner):
  """Each class divided over the clients by a symmetric Dirichlet draw.

  Attributes:
    concentration: Of the Dirichlet distribution, at least 1e-6. Near 0 a class
      belongs to few clients; a large value approaches `Iid`.
    min_examples: Least number of training examples of every client; the draw is
      repeated until it is met. 0 switches this off.

  References:
    Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural
      Networks, ICML 2019, section 4.
    Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for
      Federated Visual Classification, 2019 (whose Dirichlet is over the classes
      of a client, with clients of equal size).
  """

  concentration: float
  min_examples: int = 1

  name: ClassVar[str] = 'dirichlet'
  summary: ClassVar[str] = (
    'each class divided over the clients by a Dirichlet draw (Yurochkin et'
    ' al. 2019), repeated until every client has min_examples (default 1)'
  )

  def __post_init__(self):
    errors.expect(
      _is_number(self.concentration)
      and self.concentration >= _LEAST_CONCENTRATION,
      'concentration',
      f'a positive number, at least {_LEAST_CONCENTRATION:g}',
      self.concentration,
    )
    errors.expect(
      isinstance(self.min_examples, int)
      and not isinstance(self.min_examples, bool)
      and self.min_examples >= 0,
      'min_examples',
      'a non-negative integer',
      self.min_examples,
    )

  def class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Draws each column until every client has `min_examples`."""
    rng = _rng(seed, _WEIGHTS)
    num_examples = int(class_counts.sum())
    errors.expect(
      num_clients * self.min_examples <= num_examples,
      'min_examples',
      f'at most {num_examples // num_clients}, as {num_clients} clients share'
      f' {num_examples} training examples',
      self.min_examples,
    )
    for _ in range(_MAX_DIRICHLET_DRAWS):
      weights = rng.dirichlet(
        np.full(num_clients, self.concentration), len(class_counts)
      ).T
      # The very counts that dealing the training examples will give.
      counts = apportion(class_counts, weights, _rng(seed, _TRAIN))
      if counts.sum(axis=1).min() >= self.min_examples:
        return weights
    raise ValueError(
      f'Expected `partition` to give each of {num_clients} clients at least'
      f' {self.min_examples} of {num_examples} training examples, found'
      f' {self.spec!r} fail {_MAX_DIRICHLET_DRAWS} times; raise'
      ' `concentration`, or lower `min_examples` or `num_clients`.'
    )


@dataclasses.dataclass(frozen=True)
class LognormalSizes(WeightedPartitioner):
  """The same classes everywhere, sizes in proportion to lognormal draws.

  Attributes:
    sigma: Standard deviation of the logarithm of the sizes, at least 0; 0 gives
      `Iid`.
  """

  sigma: float

  name: ClassVar[str] = 'lognormal'
  summary: ClassVar[str] = (
    'the same class distribution everywhere, sizes in proportion to draws'
    ' from lognormal(0, sigma)'
  )
  needs_classes: ClassVar[bool] = False

  def __post_init__(self):
    errors.expect(
      _is_number(self.sigma) and self.sigma >= 0,
      'sigma',
      'a non-negative number',
      self.sigma,
    )

  def class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Gives every class the same weights, the drawn sizes."""
    rng = _rng(seed, _WEIGHTS)
    log_sizes = rng.normal(0, self.sigma, num_clients)
    # Relative to the largest, lest a large sigma overflow.
    sizes = np.exp(log_sizes - log_sizes.max())
    return np.tile(sizes[:, np.newaxis], (1, len(class_counts)))


@dataclasses.dataclass(frozen=True)
class Iid(WeightedPartitioner):
  """The same class distribution and size everywhere."""

  name: ClassVar[str] = 'iid'
  summary: ClassVar[str] = 'the same class distribution and size everywhere'
  needs_classes: ClassVar[bool] = False

  def class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Gives all the same weight."""
    del seed  # Nothing is drawn: only dealing the examples is random.
    return np.ones((num_clients, len(class_counts)))


@dataclasses.dataclass(frozen=True)
class FallahDigits(Partitioner):
  """The partition of Per-FedAvg's experiment: two kinds of clients, 10 classes.

  The first half of the clients hold a images of each of the classes 0 to 4.
  Each of the others holds a/2 images of one class of 0 to 4 and 2a images of
  one class of 5 to 9. Which two, goes in turn through all 25 pairs in an order
  drawn from the seed, so that every class of 0 to 4, every one of 5 to 9 and
  every pair has the same number of such clients, up to one.

  The test images follow the same table with a smaller a: a times the number of
  test images over that of training images, or the most that every class of the
  test images can supply where that is less. It need not be whole: a client gets
  the floor or the ceiling of each of its counts.

  Every image has one client at most. The images beyond the table belong to
  nobody: this is the experiment, no error. (With MNIST, 50 clients and a = 196,
  a class of 0 to 4 gives 5,390 of its at least 5,842 training images, and one
  of 5 to 9 gives 1,960.)

  Where each client's test set is held out of its own examples, as
  `FederatedDataset.from_arrays` does without test arrays, the counts above are
  those of a client's training and test images together.

  Attributes:
    images_per_digit: The paper's a; even, at least 2.

  References:
    Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical
      Guarantees: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020,
      section 5.
  """

  images_per_digit: int

  name: ClassVar[str] = 'fallah_digits'
  summary: ClassVar[str] = (
    'so many images of each of the classes 0-4 for half of the clients, half as'
    ' many of one of these and twice as many of one of the classes 5-9 for each'
    ' of the others (Fallah et al. 2020, Per-FedAvg, with 196 for 50 clients on'
    ' MNIST); for 10 classes and an even number of clients, and the remaining'
    ' images are left out'
  )

  def __post_init__(self):
    _expect_positive_int(self.images_per_digit, 'images_per_digit')
    errors.expect(
      self.images_per_digit % 2 == 0,
      'images_per_digit',
      'an even number, as some clients hold half as many',
      self.images_per_digit,
    )

  def partition(
    self,
    y_train: np.ndarray,
    y_test: Optional[np.ndarray] = None,
    *,
    num_clients: int,
    num_classes: Optional[int] = None,
    seed: int = 0,
    domain: Optional[np.ndarray] = None,
    domain_test: Optional[np.ndarray] = None,
    num_domains: Optional[int] = None,
  ) -> Partition:
    """Deals the counts of the class's docstring; see the base class."""
    del domain, domain_test, num_domains
    num_clients = check_num_clients(num_clients)
    seed = check_seed(seed)
    errors.expect(
      num_clients % 2 == 0 and num_clients >= _NUM_FALLAH_CLASSES,
      'num_clients',
      f'an even number, at least {_NUM_FALLAH_CLASSES}, for the partition'
      f' {self.spec}',
      num_clients,
    )
    y_train, y_test, num_classes = self._class_labels(
      y_train, y_test, num_classes
    )
    class_counts, test_class_counts = (
      np.bincount(y, minlength=num_classes) for y in (y_train, y_test)
    )
    for name, counts in (
      ('y_train', class_counts),
      ('y_test', test_class_counts),
    ):
      errors.expect(
        num_classes == _NUM_FALLAH_CLASSES
        and (counts.all() or (name == 'y_test' and not len(y_test))),
        name,
        f'of exactly {_NUM_FALLAH_CLASSES} classes, each with examples, for the'
        f' partition {self.spec}',
        f'{np.count_nonzero(counts)} of {num_classes} classes with examples',
      )
    train_counts = self._train_counts(num_clients, class_counts, seed)
    train_rng, test_rng = _rng(seed, _TRAIN), _rng(seed, _TEST)
    test_counts = apportion(
      _scaled_class_counts(train_counts, class_counts, test_class_counts),
      train_counts,
      test_rng,
    )
    return Partition(
      deal(y_train, train_counts, train_rng),
      deal(y_test, test_counts, test_rng),
    )

  def _train_counts(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Returns the images of each client and class, `[num_clients, 10]`.

    Raises:
      ValueError: A class has too few images.
    """
    # In halves of a, so that everything is whole: 2, 1 and 4.
    half, digits = num_clients // 2, _NUM_FALLAH_CLASSES // 2
    halves = np.zeros((num_clients, _NUM_FALLAH_CLASSES), np.int64)
    halves[:half, :digits] = 2
    rng = _rng(seed, _WEIGHTS)
    low, high = rng.permutation(digits), rng.permutation(digits)
    turn = np.arange(half)
    halves[half + turn, low[turn % digits]] = 1
    # One further with each turn through the low classes: 25 distinct pairs.
    shift = turn // digits
    halves[half + turn, digits + high[(turn + shift) % digits]] = 4
    largest = 2 * int((class_counts // halves.sum(axis=0)).min())
    errors.expect(
      largest >= 2,
      'num_clients',
      f'smaller for the partition {self.spec}, as even 2 images per digit are'
      ' more than the data can supply',
      num_clients,
    )
    errors.expect(
      self.images_per_digit <= largest,
      'images_per_digit',
      f'at most {largest}, the most that the data can supply to {num_clients}'
      ' clients',
      self.images_per_digit,
    )
    return halves * (self.images_per_digit // 2)


def _scaled_class_counts(
  train_counts: np.ndarray,
  class_counts: np.ndarray,
  test_class_counts: np.ndarray,
) -> np.ndarray:
  """Returns the test images to deal of each class.

  They are in proportion to the training images dealt, with the test set's share
  as the factor, or the largest factor that every class can supply.

  Args:
    train_counts: Training images dealt, `[num_clients, num_classes]`, positive
      for every class.
    class_counts: Training images there are of each class.
    test_class_counts: Likewise test images.
  """
  dealt = train_counts.sum(axis=0)
  factor = min(
    test_class_counts.sum() / class_counts.sum(),
    (test_class_counts / dealt).min(),
  )
  return np.round(dealt * factor).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class ByKey(Partitioner):
  """One client per distinct key of the examples: a writer, a hospital, a user.

  The clients are in the sorted order of their keys, and each keeps the order of
  the data. It has no specification to write on a command line, as it needs a
  key for every example.

  Attributes:
    keys: Integers or strings, one per training example.
    test_keys: Likewise for the test examples; None without those.
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
      k.dtype.kind in 'iu' for k in (self.keys, self.test_keys)
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

  @property
  def client_ids(self) -> list[str]:
    """The distinct keys as strings, in the order of the clients."""
    return [
      key.decode() if isinstance(key, bytes) else str(key)
      for key in self._clients()[0].tolist()
    ]

  def _clients(self) -> tuple[np.ndarray, np.ndarray]:
    keys = self.keys
    if len(self.test_keys):
      keys = np.concatenate([keys, self.test_keys])
    return np.unique(keys, return_inverse=True)

  def partition(
    self,
    y_train: np.ndarray,
    y_test: Optional[np.ndarray] = None,
    *,
    num_clients: Optional[int] = None,
    num_classes: Optional[int] = None,
    seed: int = 0,
    domain: Optional[np.ndarray] = None,
    domain_test: Optional[np.ndarray] = None,
    num_domains: Optional[int] = None,
  ) -> Partition:
    """Gives every example to the client of its key.

    Args:
      y_train: Training labels; only their number counts.
      y_test: Test labels; only their number counts.
      num_clients: None, or the number of distinct keys.
      num_classes: Unused.
      seed: Unused: nothing is random.
      domain: Unused, like `domain_test` and `num_domains`.
      domain_test: Unused.
      num_domains: Unused.

    Returns:
      The clients' examples.

    Raises:
      ValueError: There is not one key per example, or `num_clients` is not the
        number of distinct keys.
    """
    del num_classes, seed, domain, domain_test, num_domains
    num_test = 0 if y_test is None else len(y_test)
    for name, keys, count in (
      ('keys', self.keys, len(y_train)),
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
    num_train = len(self.keys)
    return Partition(
      _group(np.arange(num_train), owners[:num_train], len(distinct)),
      _group(np.arange(num_test), owners[num_train:], len(distinct)),
    )


def hold_out(
  indices: list[np.ndarray],
  y: np.ndarray,
  fraction: float,
  seed: int,
  domain: Optional[np.ndarray] = None,
) -> Partition:
  """Divides each client's examples into train and test, stratified by class.

  A client with n examples gives round(fraction * n) of them to its test set,
  but at least 1 if it has two or more, and keeps at least 1 for training; with
  a fraction of 0 it gives none. Each class is represented in the test set in
  proportion, up to one example. With domains, each domain is, and the classes
  within it approximately.

  Args:
    indices: Per client its examples' positions in `y`.
    y: Labels; stratified if they are int `[n]`.
    fraction: In [0, 1).
    seed: Non-negative.
    domain: Domain ids, int `[n]`; None without.

  Returns:
    Train and test, disjoint, together `indices`, and in the order of `indices`.
  """
  rng = _rng(seed, _HOLD_OUT)
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
  # Each client's examples side by side, sorted by domain and class and at
  # random within these; equidistant ones then are a stratified sample.
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
    _group(flat[~is_test], owners[~is_test], len(indices)),
    _group(flat[is_test], owners[is_test], len(indices)),
  )


@dataclasses.dataclass(frozen=True)
class Natural(Partitioner):
  """The clients that the data name themselves: writers, speaking roles, users.

  It is a rule for the data sets that come with such clients, which follow it
  themselves (see `natural_clients`); it cannot deal pooled examples.
  """

  name: ClassVar[str] = 'natural'
  summary: ClassVar[str] = (
    'the clients that the data name themselves, such as writers, speaking roles'
    ' or users; only for data sets that have them'
  )
  needs_classes: ClassVar[bool] = False

  def partition(
    self,
    y_train: np.ndarray,
    y_test: Optional[np.ndarray] = None,
    *,
    num_clients: Optional[int] = None,
    num_classes: Optional[int] = None,
    seed: int = 0,
    domain: Optional[np.ndarray] = None,
    domain_test: Optional[np.ndarray] = None,
    num_domains: Optional[int] = None,
  ) -> Partition:
    """Raises `ValueError`: pooled examples do not say whose they are."""
    raise ValueError(
      'Expected `partition` to be a rule that deals pooled examples, such as'
      f' shards:2 or iid, found {self.spec!r}; pass one key per example as'
      ' `keys` to `FederatedDataset.from_arrays` for clients of your own.'
    )


PARTITIONERS: dict[str, type[Partitioner]] = {
  partitioner.name: partitioner
  for partitioner in (
    Shards,
    ClassesPerClient,
    Dirichlet,
    LognormalSizes,
    Iid,
    FallahDigits,
    Natural,
  )
}


def register(partitioner: type[Partitioner]) -> type[Partitioner]:
  """Makes a rule known to `make_partitioner` by its name; a decorator.

  Raises:
    ValueError: There is such a rule already.
  """
  errors.expect(
    partitioner.name not in PARTITIONERS,
    'name',
    f'none of {", ".join(PARTITIONERS)}',
    partitioner.name,
  )
  PARTITIONERS[partitioner.name] = partitioner
  return partitioner


def make_partitioner(spec: str) -> Partitioner:
  """Returns the partitioner that a flag value such as `shards:2` names.

  Args:
    spec: `name` or `name:parameter[:parameter]`, where further parameters may
      also follow a comma; see `describe_partitioners`.

  Returns:
    The partitioner; its own `spec` leads back to it.

  Raises:
    TypeError: `spec` is not a string.
    ValueError: Its name is unknown, or a parameter is missing, superfluous, of
      the wrong type or out of range.
  """
  errors.expect_type(spec, str, 'partition', 'a string such as shards:2')
  name, *values = spec.replace(',', ':').split(':')
  if name == ByKey.name:
    raise ValueError(
      'Expected `partition` to be a rule without data, found'
      f' {spec!r}; pass one key per example as `keys` to'
      ' `FederatedDataset.from_arrays`.'
    )
  errors.expect(
    name in PARTITIONERS,
    'partition',
    'one of ' + ', '.join(cls.usage() for cls in PARTITIONERS.values()),
    spec,
  )
  partitioner = PARTITIONERS[name]
  fields = dataclasses.fields(partitioner)
  missing = [
    field.name
    for field in fields[len(values) :]
    if field.default is dataclasses.MISSING
  ]
  errors.expect(
    not missing,
    'partition',
    f'{partitioner.usage()} with a value for {" and ".join(missing)}',
    spec,
  )
  errors.expect(
    len(values) <= len(fields),
    'partition',
    f'{partitioner.usage()} without {":".join(values[len(fields) :])!r}',
    spec,
  )
  arguments = {}
  for field, value in zip(fields, values):
    try:
      arguments[field.name] = field.metadata.get('parse', field.type)(value)
    except ValueError:
      form = 'an integer' if field.type is int else 'a number'
      form = field.metadata.get('form', form)
      raise ValueError(
        f'Expected `{field.name}` in `partition` {spec!r} to be {form}, found'
        f' {value!r}.'
      ) from None
  return partitioner(**arguments)


def describe_partitioners() -> str:
  """Returns one paragraph on all rules, for `--help`."""
  rules = '; '.join(
    f'{cls.usage()}: {cls.summary}' for cls in PARTITIONERS.values()
  )
  return (
    f'How examples become clients. {rules}. Every client has test examples'
    ' of the distribution of its training examples.'
  )
