"""The partition of Per-FedAvg's experiment."""

import dataclasses
from typing import ClassVar

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing

_NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class FallahDigits(base.CountingPartitioner):
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
    errors.expect_int('images_per_digit', self.images_per_digit, 1)
    errors.expect(
      self.images_per_digit % 2 == 0,
      'images_per_digit',
      'an even number, as some clients hold half as many',
      self.images_per_digit,
    )

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
    # The test set's share, or the most that every class can supply.
    factor = min(test_pool.sum() / pool.sum(), (test_pool / dealt).min())
    dealt_for_tests = np.round(dealt * factor).astype(np.int64)
    return counts, dealing.apportion(dealt_for_tests, counts, test_rng)

  def _train_counts(
    self, num_clients: int, class_counts: np.ndarray, seed: int
  ) -> np.ndarray:
    """Returns the images of each client and class, `[num_clients, 10]`."""
    # In halves of a, so that everything is whole: 2, 1 and 4.
    half, digits = num_clients // 2, _NUM_CLASSES // 2
    halves = np.zeros((num_clients, _NUM_CLASSES), np.int64)
    halves[:half, :digits] = 2
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
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
