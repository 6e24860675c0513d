"""Draws the clients that take part in a round.

The cohort of a round depends on nothing but the seed, the round's number and
the sampler's attributes: a resumed run continues with the cohorts of an
uninterrupted one, and nothing of the sampler needs to be stored.
"""

import contextlib
import dataclasses
import functools
import math
import numbers
from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np

from tff_pfl import datasets, errors

# Settings have a number, or text where it changes.
CohortSize = Union[int, str, Mapping[int, int]]

# The forms of settings that change from round to round.
FORMS = {
  'cohort_size': 'a number, or 5,10:20,50:40 (5; 20 from round 10 on; …)',
  'join_rounds': '50:0.2,100:0.3 (a fifth of the clients in round 50; …)',
}
_KINDS = {'cohort_size': int, 'join_rounds': float}

# Keep these draws apart from others that start from the same seed.
_STREAM = 0x636F686F
_JOINING_STREAM = 0x6A6F696E


@dataclasses.dataclass(frozen=True)
class CohortSampler:
  """Draws cohorts uniformly, without replacement.

  Attributes:
    num_clients: The number of clients in the population, at least 1.
    cohort_size: The number of clients in a cohort, 1 to `num_clients`. Where it
      changes, the numbers by the round from which on they hold, `{1: 5, 10: 20,
      50: 40}`, or as text, '5,10:20,50:40'; the attribute is a number or text.
    seed: The seed, a nonnegative integer.
    dropout_rate: The probability, in [0, 1), with which each client of a cohort
      fails to report, whatever the others do.
    join_rounds: For each client the first round for which it may be drawn, some
      of them 1; empty where all are 1.
  """

  num_clients: int
  cohort_size: CohortSize
  seed: int
  dropout_rate: float = 0.0
  join_rounds: tuple[int, ...] = ()

  def __post_init__(self):
    """Raises `ValueError` if a number is out of its range."""
    errors.expect_int('num_clients', self.num_clients, 1)
    sizes = self._sizes
    for size in sizes.values():
      errors.expect(
        1 <= size <= self.num_clients,
        'cohort_size',
        f'1 to num_clients={self.num_clients}',
        size,
      )
    size = sizes[1] if len(sizes) == 1 else as_text(sizes)
    object.__setattr__(self, 'cohort_size', size)
    errors.expect_int('seed', self.seed, 0)
    errors.expect_share('dropout_rate', self.dropout_rate, '[0, 1)')
    errors.expect(
      min(self.join_rounds, default=1) == 1,
      'join_rounds',
      'such that a client is there from round 1 on',
      f'round {min(self.join_rounds, default=1)} for the first',
    )

  @functools.cached_property
  def _sizes(self) -> dict[int, int]:
    """The sizes by the rounds that they begin with."""
    sizes = numbers_by_round('cohort_size', self.cohort_size)
    errors.expect(
      1 in sizes,
      'cohort_size',
      f'known from round 1 on: {FORMS["cohort_size"]}',
      self.cohort_size,
    )
    return sizes

  @property
  def max_cohort_size(self) -> int:
    """The largest number of clients in a cohort."""
    return max(self._sizes.values())

  @property
  def is_plain(self) -> bool:
    """True if all cohorts have one size, and all clients are alike in them."""
    return (
      len(self._sizes) == 1 and not self.dropout_rate and not self.join_rounds
    )

  def size(self, round_number: int) -> int:
    """Returns the size of a round's cohort, if so many clients have joined."""
    return [
      size
      for start, size in self._sizes.items()
      if start <= max(round_number, 1)
    ][-1]

  def sample(self, round_number: int) -> np.ndarray:
    """Returns the clients of a round's cohort that report.

    These are all, unless there is a `dropout_rate`. If all failed by their
    draws, the one that was nearest to reporting reports. Of fewer clients that
    have joined than the size of a cohort, all are drawn.

    Where the population is large, time and memory grow with the cohort alone,
    unless clients join later.

    Returns:
      int64 array of shape [cohort_size], or smaller: client indices, ascending,
      each once.
    """
    sequence = np.random.SeedSequence(
      self.seed, spawn_key=(_STREAM, round_number)
    )
    rng = np.random.default_rng(sequence)
    size, joined = self.size(round_number), self.num_clients
    if self.join_rounds:
      joined = np.flatnonzero(self._join_rounds <= round_number)
      size = min(size, len(joined))
    cohort = rng.choice(joined, size, replace=False, shuffle=False)
    cohort = np.sort(cohort.astype(np.int64))
    if self.dropout_rate:
      draws = rng.random(size)
      cohort = cohort[draws >= min(self.dropout_rate, draws.max())]
    return cohort

  @functools.cached_property
  def _join_rounds(self):
    return np.array(self.join_rounds)


def numbers_by_round(name: str, value: Any) -> dict[int, Any]:
  """Reads a setting that changes from round to round.

  Args:
    name: A key of `FORMS`.
    value: A number, which holds from round 1 on; or numbers by round, as a
      mapping or as text; None for none.

  Returns:
    The numbers by round, in the order of the rounds, which are at least 1.

  Raises:
    ValueError: If it has another form, or a text's rounds do not ascend.
  """
  if value is None:
    return {}
  kind, items = _KINDS[name], [(1, value)]
  if isinstance(value, Mapping):
    items = sorted(value.items())
  elif isinstance(value, str):
    parts = [part.rpartition(':') for part in value.split(',')]
    with contextlib.suppress(ValueError):
      items = [(int(r) if colon else 1, kind(n)) for r, colon, n in parts]
  rounds = [start for start, _ in items]
  errors.expect(
    all(isinstance(start, numbers.Integral) for start in rounds)
    and all(isinstance(number, (numbers.Integral, kind)) for _, number in items)
    and not any(isinstance(each, bool) for item in items for each in item)
    and rounds == sorted(set(rounds))
    and rounds[:1] >= [1],
    name,
    FORMS[name],
    value,
  )
  return {int(start): kind(number) for start, number in items}


def as_text(by_round: Mapping[int, Any]) -> Optional[str]:
  """The text that `numbers_by_round` reads; None for no numbers."""
  parts = (
    f'{n}' if start == 1 else f'{start}:{n}' for start, n in by_round.items()
  )
  return ','.join(parts) or None


def draw_join_rounds(
  shares: Optional[str], num_clients: int, seed: int
) -> tuple[int, ...]:
  """Draws which clients of a run join later.

  Args:
    shares: The shares of the clients that join in rounds after the first, such
      as '50:0.2,100:0.3'; the others are there from round 1 on. None for all.
    num_clients: At least 1.
    seed: Decides who joins when, nonnegative.

  Returns:
    For each client the round that it joins in; empty without shares.

  Raises:
    ValueError: If the shares have another form.
  """
  by_round = numbers_by_round('join_rounds', shares)
  if not by_round:
    return ()
  errors.expect(1 not in by_round, 'join_rounds', FORMS['join_rounds'], shares)
  for share in by_round.values():
    errors.expect_share('join_rounds', share, '(0, 1)')
  sequence = np.random.SeedSequence(seed, spawn_key=(_JOINING_STREAM,))
  order = np.random.default_rng(sequence).permutation(num_clients)
  ends = np.floor(num_clients * np.cumsum(list(by_round.values())) + 0.5)
  join_rounds = np.ones(num_clients, np.int64)
  for round_number, joining in zip(by_round, np.split(order, ends.astype(int))):
    join_rounds[joining] = round_number
  return tuple(join_rounds.tolist())


def join_rounds_of(data: datasets.FederatedDataset) -> tuple[int, ...]:
  """The `join_rounds` of a dataset's clients."""
  if not data.join_round:
    return ()
  return tuple(data.join_round.get(name, 1) for name in data.client_ids)


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
