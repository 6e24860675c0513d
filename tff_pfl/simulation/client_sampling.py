"""Draws the clients that take part in a round.

The cohort of a round depends on nothing but the seed and the round's number:
a resumed run continues with the cohorts of an uninterrupted one, and nothing of
the sampler needs to be stored.
"""

import dataclasses
import math

import numpy as np

from tff_pfl import errors

# Keeps these draws apart from others that start from the same seed.
_STREAM = 0x636F686F


@dataclasses.dataclass(frozen=True)
class CohortSampler:
  """Draws cohorts uniformly, without replacement.

  Attributes:
    num_clients: The number of clients in the population, at least 1.
    cohort_size: The number of clients in a cohort, 1 to `num_clients`.
    seed: The seed, a nonnegative integer.
  """

  num_clients: int
  cohort_size: int
  seed: int

  def __post_init__(self):
    """Raises `ValueError` if a number is out of its range."""
    errors.expect(
      self.num_clients >= 1, 'num_clients', 'at least 1', self.num_clients
    )
    errors.expect(
      1 <= self.cohort_size <= self.num_clients,
      'cohort_size',
      f'1 to num_clients={self.num_clients}',
      self.cohort_size,
    )
    errors.expect(self.seed >= 0, 'seed', 'nonnegative', self.seed)

  def sample(self, round_number: int) -> np.ndarray:
    """Returns the cohort of a round.

    Where the population is large, time and memory grow with the cohort alone.

    Returns:
      int64 array of shape [cohort_size]: client indices, ascending, each once.
    """
    sequence = np.random.SeedSequence(
      self.seed, spawn_key=(_STREAM, round_number)
    )
    cohort = np.random.default_rng(sequence).choice(
      self.num_clients, self.cohort_size, replace=False, shuffle=False
    )
    return np.sort(cohort.astype(np.int64))


def cohort_size_from_participation(
  num_clients: int, participation: float
) -> int:
  """Returns the size of a cohort that is a fraction of the population.

  It is the nearest whole number, halves rounded up, but at least 1.

  Raises:
    ValueError: If `participation` is not in (0, 1].
  """
  errors.expect_share('participation', participation, '(0, 1]')
  return max(1, math.floor(num_clients * participation + 0.5))
