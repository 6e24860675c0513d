"""Draws the clients that take part in a round.

A round's cohort depends only on the seed, the round number and the sampler's
attributes. A resumed run therefore draws the cohorts of an uninterrupted run,
and the sampler has no state to store.
"""

import numpy as np

from tff_pfl import datasets, errors, fields

# Separates these draws from others that start from the same seed.
_STREAM = 0x636F686F


@fields.dataclass
class CohortSampler:
  """Draws cohorts uniformly, without replacement.

  Attributes:
    num_clients: The number of clients in the population, at least 1.
    cohort_size: The number of clients in a cohort, 1 to `num_clients`.
    seed: The seed, a nonnegative integer.
    dropout_rate: The probability, in [0, 1), that a client of a cohort fails to
      report, independently of the others.
    join_rounds: The first round in which each client can be drawn, 1 for at
      least one client. Empty means 1 for all.
  """

  num_clients: fields.integer(1, 2**63 - 1)
  cohort_size: fields.Count
  seed: fields.Seed
  dropout_rate: fields.ShareBelowOne = 0.0
  join_rounds: fields.Integers = ()

  def __post_init__(self):
    errors.expect(
      self.cohort_size <= self.num_clients,
      'cohort_size',
      f'1 to num_clients={self.num_clients}',
      self.cohort_size,
    )
    errors.expect(
      min(self.join_rounds, default=1) == 1,
      'join_rounds',
      'such that at least one client joins in round 1',
      f'round {min(self.join_rounds, default=1)} for the first',
    )

  def sample(self, round_number: int) -> np.ndarray:
    """Returns the clients of a round's cohort that report.

    All of them report unless there is a `dropout_rate`. If every client would
    fail, the one with the largest draw still reports. If fewer clients have
    joined than `cohort_size`, all of them are drawn.

    In large populations, time and memory grow with the cohort alone, unless
    clients join later.

    Returns:
      int64 array of shape [cohort_size] or smaller: distinct client indices, in
      ascending order.
    """
    sequence = np.random.SeedSequence(
      self.seed, spawn_key=(_STREAM, round_number)
    )
    rng = np.random.default_rng(sequence)
    size, joined = self.cohort_size, self.num_clients
    if self.join_rounds:
      joined = np.flatnonzero(np.array(self.join_rounds) <= round_number)
      size = min(size, len(joined))
    cohort = rng.choice(joined, size, replace=False, shuffle=False)
    cohort = np.sort(cohort.astype(np.int64))
    if self.dropout_rate:
      draws = rng.random(size)
      cohort = cohort[draws >= min(self.dropout_rate, draws.max())]
    return cohort


def join_rounds_of(data: datasets.FederatedDataset) -> tuple[int, ...]:
  """The `join_rounds` of a dataset's clients."""
  if not data.join_round:
    return ()
  return tuple(data.join_round.get(name, 1) for name in data.client_ids)
