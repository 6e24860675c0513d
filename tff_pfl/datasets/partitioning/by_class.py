"""Rules that divide every class among the clients."""

import abc
from typing import Annotated, ClassVar

import numpy as np
import pydantic
from absl import logging

from tff_pfl import errors, fields
from tff_pfl.datasets.partitioning import base, dealing

_MAX_DRAWS = 100
_NUM_CLASSES = 10


class WeightedPartitioner(base.CountingPartitioner):
  """A rule that divides every class in proportion to the clients' weights."""

  @abc.abstractmethod
  def _class_weights(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Returns the clients' class weights, `[num_clients, num_classes]`.

    Args:
      num_clients: Number of clients.
      class_counts: Training examples per class, int `[num_classes]`.
      seed: Non-negative.
    """

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    weights = self._class_weights(num_clients, pool, seed)
    all_counts = pool + test_pool
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
    counts = dealing.apportion(pool, weights, train_rng)
    shares = np.where(pool > 0, counts, weights)
    return counts, dealing.apportion(test_pool, shares, test_rng)


def _classes_present(
  class_counts: np.ndarray, required: int, name: str
) -> np.ndarray:
  """Returns the classes with examples, which must number `required` or more."""
  present = np.flatnonzero(class_counts)
  errors.expect(
    required <= len(present),
    name,
    f'at most {len(present)}, the number of classes with training examples',
    required,
  )
  return present


@fields.dataclass
class Iid(WeightedPartitioner):
  """The same class distribution and size for every client."""

  name: ClassVar[str] = 'iid'
  needs_classes: ClassVar[bool] = False

  def _class_weights(self, num_clients, class_counts, seed):
    return np.ones((num_clients, len(class_counts)))


@fields.dataclass
class LognormalSizes(WeightedPartitioner):
  """The same classes everywhere, with sizes proportional to lognormal draws.

  Attributes:
    sigma: Standard deviation of the logarithm of the sizes, at least 0. 0 gives
      equal sizes.
  """

  sigma: fields.NonNegative

  name: ClassVar[str] = 'lognormal'
  needs_classes: ClassVar[bool] = False

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    log_sizes = rng.normal(0, self.sigma, num_clients)
    # Relative to the largest, so that a large sigma does not overflow.
    sizes = np.exp(log_sizes - log_sizes.max())
    return np.tile(sizes[:, np.newaxis], (1, len(class_counts)))


@fields.dataclass
class Shards(WeightedPartitioner):
  """Single-class shards of equal size, the same number for every client.

  Each class is cut into equal shards, and each client gets shards of
  `shards_per_client` distinct classes. This is the pathological partition of
  McMahan et al. in FedRep's variant, where no shard straddles two classes.
  Shards are apportioned to the classes so that their sizes are as equal as
  possible (the method of equal proportions). Classes of the same size get the
  same number of shards if `num_clients * shards_per_client` is a multiple of
  the number of classes.

  Attributes:
    shards_per_client: Number of shards, and of distinct classes, of each
      client, from 1 to the number of classes.

  References:
    McMahan et al., Communication-Efficient Learning of Deep Networks from
      Decentralized Data, AISTATS 2017, section 3.
    Collins et al., Exploiting Shared Representations for Personalized Federated
      Learning, ICML 2021, section 5.
    Huntington, The Mathematical Theory of the Apportionment of Representatives,
      PNAS 7(4), 1921.
  """

  shards_per_client: fields.Count = 2

  name: ClassVar[str] = 'shards'

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
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
      # A class with a shard for every remaining client must be chosen now.
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
  """Returns shards per class, of nearly equal size, `[num_classes]`.

  The next shard goes to the class with the largest shards, by the geometric
  mean of their sizes without and with it. Every class gets its first shard
  before any gets a second. No class gets more than `max_shards`.
  """
  order = np.argsort(rng.permutation(len(class_counts)))
  counts = class_counts[order]
  shards = np.zeros(len(counts), np.int64)
  shards[np.argsort(-counts, kind='stable')[:num_shards]] = 1
  for _ in range(num_shards - shards.sum()):
    sizes = counts / np.maximum(shards * (shards + 1), 1) ** 0.5
    sizes[shards == max_shards] = -1
    shards[np.argmax(sizes)] += 1
  by_class = np.zeros_like(shards)
  by_class[order] = shards
  return by_class


@fields.dataclass
class ClassesPerClient(WeightedPartitioner):
  """Distinct classes drawn at random, each shared evenly by its owners.

  Unlike with `Shards`, a class may have many or few owners, so sizes vary.
  Every class has an owner if the clients can own that many classes.

  Attributes:
    num_classes_per_client: From 1 to the number of classes.
  """

  num_classes_per_client: fields.Count

  name: ClassVar[str] = 'classes_per_client'

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    per_client = self.num_classes_per_client
    present = _classes_present(
      class_counts, per_client, 'num_classes_per_client'
    )
    order = rng.random((num_clients, len(present)))
    # Each class first gets one owner, in turn. The rest are drawn freely.
    covered = rng.permutation(len(present))[: num_clients * per_client]
    owners = rng.permutation(num_clients)
    order[owners[np.arange(len(covered)) % num_clients], covered] = -1
    chosen = np.argpartition(order, per_client - 1, axis=1)[:, :per_client]
    weights = np.zeros((num_clients, len(class_counts)))
    weights[np.arange(num_clients)[:, np.newaxis], present[chosen]] = 1
    return weights


@fields.dataclass
class LognormalClasses(ClassesPerClient):
  """Lognormal sizes, equal numbers of a client's classes, others left out.

  A client has `least_size` + lognormal(log_mean, log_std) examples in all, the
  same number of each of its classes, rounded down but at least 1. Other
  examples are left out. If a class has too few examples for its owners, all
  clients get the same fraction of their sizes, with a warning. All test
  examples of a class are dealt, in proportion to the clients' training examples
  of the class.

  If each client's test set is held out of its own examples, as with a
  `test_fraction`, sizes count training and test examples together.

  Attributes:
    log_mean: Mean of the logarithm of the sizes beyond `least_size`, at least
      0.
    log_std: Standard deviation of that logarithm, at least 0. 0 gives equal
      sizes.
    least_size: Constant part of the sizes, at least 0. FedRep has 3:4:1:50.

  References:
    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020: the
      authors' code has 5 + lognormal(4, 1) examples of 3 of 10 letters (where
      clients share examples). FedRep (see `Shards`) has 50 instead of 5 by its
      table 2, and 100 in the authors' code.
  """

  log_mean: fields.NonNegative
  log_std: fields.NonNegative
  least_size: fields.NonNegative = 0.0

  name: ClassVar[str] = 'lognormal_classes'

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    owns = self._class_weights(num_clients, pool, seed).astype(np.int64)
    rng = dealing.make_rng(seed, dealing.SIZES)
    sizes = rng.lognormal(self.log_mean, self.log_std, num_clients)
    sizes = np.minimum(sizes + self.least_size, pool.sum())
    sizes /= self.num_classes_per_client
    # Beyond the first example of each class, which every owner gets.
    more = owns * np.maximum(sizes - 1, 0)[:, np.newaxis]
    free = pool - owns.sum(axis=0)
    errors.expect(
      free.min() >= 0,
      'num_clients',
      f'smaller for the partition {self.spec}, as class {free.argmin()} has'
      ' fewer training examples than owners',
      num_clients,
    )
    # The small number is for classes of which no client needs more.
    fractions = (free + 1e-9) / (more.sum(axis=0) + 1e-9)
    fraction = min(1, fractions.min())
    if fraction < 1:
      logging.warning(
        'Partition %s: clients get %.2g of their sizes, as class %d has only %d'
        ' training examples.',
        self.spec,
        fraction,
        fractions.argmin(),
        pool[fractions.argmin()],
      )
    counts = owns + np.floor(more * fraction).astype(np.int64)
    return counts, dealing.apportion(test_pool, counts, test_rng)


@fields.dataclass
class Dirichlet(WeightedPartitioner):
  """Each class divided over the clients by a symmetric Dirichlet draw.

  Sizes differ. See `ClientDirichlet` for clients of equal size.

  Attributes:
    concentration: At least 1e-6. Near 0, a class belongs to few clients. A
      large value approaches iid.
    min_examples: Minimum number of training examples of every client. The draw
      is repeated until it is met. Test examples also count if each client's
      test set is held out of its own examples. 0 sets no minimum.

  References:
    Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural
      Networks, ICML 2019, section 4.
  """

  # Below this, a class belongs to one client, and NumPy takes longer and longer
  # for a draw, which signals cannot interrupt.
  concentration: Annotated[fields.Positive, pydantic.Field(ge=1e-6)]
  min_examples: fields.CountOrZero = 1

  name: ClassVar[str] = 'dirichlet'

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    for _ in range(_MAX_DRAWS):
      weights = rng.dirichlet(
        np.full(num_clients, self.concentration), len(class_counts)
      ).T
      # The counts with which the training examples will be dealt.
      counts = dealing.apportion(
        class_counts, weights, dealing.make_rng(seed, dealing.TRAIN)
      )
      if counts.sum(axis=1).min() >= self.min_examples:
        return weights
    raise ValueError(
      f'Expected `partition` to give each of {num_clients} clients at least'
      f' {self.min_examples} of {class_counts.sum()} training examples, found'
      f' {self.spec!r} fail {_MAX_DRAWS} times; raise'
      ' `concentration`, or lower `min_examples` or `num_clients`.'
    )


@fields.dataclass
class FallahDigits(base.CountingPartitioner):
  """The partition of Per-FedAvg's experiment: two kinds of clients, 10 classes.

  The first half of the clients hold a images of each of the classes 0 to 4.
  Each of the others holds a/2 images of one class of 0 to 4 and 2a images of
  one class of 5 to 9. They go through all 25 pairs in an order drawn from the
  seed. So every class of 0 to 4, every class of 5 to 9 and every pair has the
  same number of such clients, up to one.

  The test images follow the same table with a smaller a: a times the ratio of
  test images to training images, or less if a class has too few test images. It
  need not be whole: a client gets the floor or the ceiling of each of its
  counts.

  Every image has at most one client. Images beyond the table are left out, as
  in the experiment. (For MNIST, 50 clients and a = 196, a class of 0 to 4 gives
  5,390 of its at least 5,842 training images, and a class of 5 to 9 gives
  1,960.)

  If each client's test set is held out of its own examples, as
  `FederatedDataset.from_arrays` does without test arrays, the counts above are
  for a client's training and test images together.

  Attributes:
    images_per_digit: The paper's a (196 for 50 clients on MNIST), an even
      number of at least 2. The number of clients is also even.

  References:
    Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical
      Guarantees: A Model-Agnostic Meta-Learning Approach, NeurIPS 2020,
      section 5.
  """

  # Some clients hold half as many.
  images_per_digit: Annotated[fields.Count, pydantic.Field(multiple_of=2)]

  name: ClassVar[str] = 'fallah_digits'

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    errors.expect(
      num_clients % 2 == 0 and num_clients >= _NUM_CLASSES,
      'num_clients',
      f'an even number, at least {_NUM_CLASSES}, for the partition {self.spec}',
      num_clients,
    )
    for name, counts in (('y_train', pool), ('y_test', test_pool)):
      errors.expect(
        len(counts) == _NUM_CLASSES
        and (counts.all() or (name == 'y_test' and not counts.any())),
        name,
        f'of exactly {_NUM_CLASSES} classes, each with examples, for the'
        f' partition {self.spec}',
        f'{np.count_nonzero(counts)} of {len(counts)} classes with examples',
      )
    counts = self._train_counts(num_clients, pool, seed)
    dealt = counts.sum(axis=0)
    # The ratio of test to training images, or what every class can supply.
    factor = min(test_pool.sum() / pool.sum(), (test_pool / dealt).min())
    dealt_for_tests = np.round(dealt * factor).astype(np.int64)
    return counts, dealing.apportion(dealt_for_tests, counts, test_rng)

  def _train_counts(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Counts the images of each client and class, `[num_clients, 10]`."""
    # In halves of a, so that everything is whole: 2, 1 and 4.
    half, digits = num_clients // 2, _NUM_CLASSES // 2
    halves = np.zeros((num_clients, _NUM_CLASSES), np.int64)
    halves[:half, :digits] = 2
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    low, high = rng.permutation(digits), rng.permutation(digits)
    turn = np.arange(half)
    halves[half + turn, low[turn % digits]] = 1
    # One further with each pass through the low classes: 25 distinct pairs.
    shift = turn // digits
    halves[half + turn, digits + high[(turn + shift) % digits]] = 4
    largest = 2 * int((class_counts // halves.sum(axis=0)).min())
    errors.expect(
      self.images_per_digit <= largest,
      'images_per_digit',
      f'at most {largest}, the most that the data can supply to {num_clients}'
      ' clients',
      self.images_per_digit,
    )
    return halves * (self.images_per_digit // 2)
