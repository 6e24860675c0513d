"""Differential privacy of runs with noisy means, and its accounting by epsilon.

The guarantee is for clients (user level): with probability 1 - delta, all
models of the run together are at most exp(epsilon) times as likely with a
client's data as if that client sent zeros instead. The noise multiplier holds
for one round, in units of the clipping norm.

Cohorts have a fixed size and are drawn without replacement. Most published
numbers are for Poisson sampling, about which more is known. Two bounds follow
from Renyi differential privacy (`dp_accounting`), and the smaller epsilon is
used:

* If cohorts are secret: amplification by sampling without replacement (Wang,
  Balle, Kasiviswanathan: Subsampled Renyi Differential Privacy and Analytical
  Moments Accountant, AISTATS 2019, Theorem 27). The proof replaces one client
  with another, which changes the sum by twice the clipping norm.
* If cohorts are known: the Gaussian mechanism, once for each round of the
  client that takes part most often. The cohorts come from the run's seed, so
  this number is exact, not a bound.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, Optional

import dp_accounting
import numpy as np
import tree

from tff_pfl import errors, fields
from tff_pfl.core import client_sampling, private_mean

# Only a few, because any order gives a bound, and large ones take long.
_ORDERS = (
  *(1 + x / 10 for x in range(1, 20)),
  *(x / 2 for x in range(6, 20)),
  *range(10, 33),
  *(40, 48, 64, 96, 128),
)
# A larger epsilon hardly guarantees anything.
LARGEST_USEFUL_EPSILON = 10.0


@fields.dataclass
class Accounting:
  """The privacy accounting of a run.

  Attributes:
    noise_multiplier: Standard deviation of the noise of a round's sums in units
      of the clipping norm, positive. Infinite if clients send nothing.
    sampler: Sampler of cohorts from all clients, in which every client reports.
    delta: Delta of the guarantee, in (0, 1).
    num_rounds: Number of rounds for which the noise was computed from epsilon.
      None if the noise was given.
    is_distributed: True if clients add discrete noise. Cohorts then count as
      known, because the bound for secret cohorts assumes Gaussian noise.
  """

  noise_multiplier: fields.number(float, gt=0)
  sampler: client_sampling.CohortSampler
  delta: fields.InnerShare
  is_distributed: bool = False
  num_rounds: Optional[int] = None

  def __post_init__(self):
    _expect_whole_cohorts(self.sampler)

  def epsilons(self, num_rounds: int) -> list[float]:
    """Epsilon after each of the rounds 1 to `num_rounds`."""
    if math.isinf(self.noise_multiplier):
      return [0.0] * num_rounds
    most = most_participations(self.sampler, num_rounds)
    by_bound = [(most, _renyi(self.noise_multiplier))]
    if not self.is_distributed:
      secret = _renyi(self.noise_multiplier, self.sampler)
      by_bound.append((range(1, num_rounds + 1), secret))
    return [
      _epsilon(self.delta, *(times[r] * each for times, each in by_bound))
      for r in range(num_rounds)
    ]

  def for_states(self, aggregator_states: Any) -> Accounting:
    """The accounting of the noise that a process adds.

    Args:
      aggregator_states: `ServerState.aggregator`, such as the initial one.
    """
    noise_multiplier = self.noise_multiplier
    if not tree.flatten(aggregator_states):
      noise_multiplier = math.inf
    elif self.is_distributed:
      noise_multiplier = private_mean.noise_multiplier_of(
        aggregator_states, self.sampler.cohort_size
      )
    return dataclasses.replace(self, noise_multiplier=noise_multiplier)

  def description(self) -> dict[str, Any]:
    """The guarantee except for epsilon, as JSON types."""
    return {
      'unit': 'client',
      'noise_multiplier': self.noise_multiplier,
      'delta': self.delta,
    }


def announcement(accounting: Accounting, epsilons: Sequence[float]) -> str:
  """A line on the privacy of a run, with a warning if there is hardly any.

  Args:
    accounting: Accounting of the run.
    epsilons: Epsilon after each round.
  """
  sampler, last = accounting.sampler, epsilons[-1]
  noise = f'noise multiplier {accounting.noise_multiplier:.4g}'
  if math.isinf(accounting.noise_multiplier):
    noise = 'whose weights stay with them'
  text = (
    f'{len(epsilons)} rounds, {sampler.cohort_size} of {sampler.num_clients} '
    f'clients, {noise}: ε = {last:.4g} at δ = {accounting.delta:.2g}.'
  )
  if last > LARGEST_USEFUL_EPSILON:
    text += (
      f' Warning: an epsilon above {LARGEST_USEFUL_EPSILON:.0f} protects '
      'hardly anyone. Use fewer rounds or more noise, which larger cohorts of '
      'more clients tolerate.'
    )
  return text


def default_delta(num_clients: int) -> float:
  """The default delta: number of clients ** -1.1, at most 0.1."""
  return min(0.1, num_clients**-1.1)


def most_participations(
  sampler: client_sampling.CohortSampler, num_rounds: int
) -> list[int]:
  """The most rounds that any client took part in, after each round."""
  counts = np.zeros(sampler.num_clients, np.int64)
  most = []
  for round_number in range(1, num_rounds + 1):
    counts[sampler.sample(round_number)] += 1
    most.append(int(counts.max()))
  return most


@functools.lru_cache
def find_noise_multiplier(
  epsilon: float,
  delta: float,
  sampler: client_sampling.CohortSampler,
  num_rounds: int,
) -> float:
  """The noise multiplier that gives a run this epsilon at its end.

  It is at most 0.1% larger than necessary.

  Args:
    epsilon: Epsilon of the whole run, positive.
    delta: Delta of the guarantee, in (0, 1).
    sampler: Sampler of cohorts from all clients, in which every client reports.
    num_rounds: Number of rounds, at least 1.

  Raises:
    ValueError: If epsilon is so small that it needs a multiplier above 10^6.
  """
  most = most_participations(sampler, num_rounds)[-1]

  def epsilon_of(noise_multiplier):
    return _epsilon(
      delta,
      most * _renyi(noise_multiplier),
      num_rounds * _renyi(noise_multiplier, sampler),
    )

  most_noise = private_mean.NOISES[1]
  # With a margin for rounding in the message.
  least = 1.001 * epsilon_of(most_noise)
  errors.expect(
    epsilon >= least,
    'epsilon',
    f'at least {least:.4g} with num_rounds={num_rounds} and delta={delta:.2g}, '
    f'as less needs a noise multiplier above {most_noise:.0f}',
    epsilon,
  )
  high = 1.0
  while epsilon_of(high) > epsilon:
    high *= 2
  low = high / 2
  while epsilon_of(low) <= epsilon:
    low, high = low / 2, low
  while high > 1.001 * low:
    middle = (low * high) ** 0.5
    low, high = (
      (low, middle) if epsilon_of(middle) <= epsilon else (middle, high)
    )
  return high


@fields.dataclass(kw_only=True)
class PrivateMean:
  """A mean of clipped updates, to whose sum the server adds noise.

  Attributes:
    epsilon: Epsilon of the whole run, positive, from which the noise is
      computed. Give either this or the noise multiplier.
    noise_multiplier: Noise of a round in clipping norms, at least 0. It
      replaces epsilon.
    delta: Delta of the guarantee, in (0, 1). None uses
      min(0.1, number of clients ** -1.1).
    clip: Norm to which the vector that a client sends is clipped: fixed:<norm>
      or adaptive:<quantile> of the norms.
    kind: Always dp.
  """

  kind: Literal['dp'] = 'dp'
  epsilon: Optional[fields.Positive] = None
  noise_multiplier: Optional[fields.NonNegative] = None
  delta: Optional[fields.InnerShare] = None
  clip: str = 'adaptive:0.5'

  def __post_init__(self):
    errors.expect(
      (self.epsilon is None) != (self.noise_multiplier is None),
      'epsilon',
      'given, or else `noise_multiplier`, and not both',
      self.epsilon,
    )
    noise = 1.0 if self.noise_multiplier is None else self.noise_multiplier
    private_mean.PrivateMeanFactory(noise, 1, self.clip)

  def accounting(
    self, sampler: client_sampling.CohortSampler, num_rounds: int
  ) -> Optional[Accounting]:
    """The privacy of a run of `num_rounds` rounds, or None without noise."""
    if self.noise_multiplier == 0:
      # This mean is also a sum divided by the size of a whole cohort.
      _expect_whole_cohorts(sampler)
      return None
    delta = self.delta or default_delta(sampler.num_clients)
    noise_multiplier = self.noise_multiplier or find_noise_multiplier(
      self.epsilon, delta, sampler, num_rounds
    )
    has_epsilon = self.epsilon is not None
    return Accounting(
      noise_multiplier,
      sampler,
      delta,
      num_rounds=num_rounds if has_epsilon else None,
    )

  def factory(
    self,
    sampler: client_sampling.CohortSampler,
    accounting: Optional[Accounting],
  ) -> private_mean.PrivateMeanFactory:
    """The aggregation of such a run, whose noise has the sampler's seed."""
    return private_mean.PrivateMeanFactory(
      accounting.noise_multiplier if accounting else 0.0,
      sampler.cohort_size,
      self.clip,
      sampler.seed,
    )


@fields.dataclass(kw_only=True)
class DistributedPrivateMean:
  """A mean of clipped updates to which clients add discrete noise.

  Attributes:
    noise_multiplier: Noise of a round in clipping norms, positive.
    delta: Delta of the guarantee, in (0, 1). None uses
      min(0.1, number of clients ** -1.1).
    clip: Norm to which the vector that a client sends is clipped, fixed:<norm>.
    bits: Bits of a number of the sum, 1 to 22.
    kind: Always ddp.
  """

  kind: Literal['ddp'] = 'ddp'
  noise_multiplier: fields.Positive
  delta: Optional[fields.InnerShare] = None
  clip: str = 'fixed:1.0'
  bits: fields.Count = 20

  def __post_init__(self):
    self._factory(1)

  def accounting(
    self, sampler: client_sampling.CohortSampler, num_rounds: int
  ) -> Accounting:
    """The privacy of a run, whatever its number of rounds."""
    del num_rounds
    return Accounting(
      self.noise_multiplier,
      sampler,
      self.delta or default_delta(sampler.num_clients),
      is_distributed=True,
    )

  def factory(
    self, sampler: client_sampling.CohortSampler, accounting: Accounting
  ) -> private_mean.DistributedPrivateMeanFactory:
    """The aggregation of such a run."""
    del accounting
    return self._factory(sampler.cohort_size)

  def _factory(self, clients_per_round):
    return private_mean.DistributedPrivateMeanFactory(
      self.noise_multiplier, clients_per_round, self.clip, self.bits
    )


# The keys are names in flags and stored settings.
AGGREGATORS = {'dp': PrivateMean, 'ddp': DistributedPrivateMean}


def _expect_whole_cohorts(sampler):
  errors.expect(
    not sampler.dropout_rate,
    'dropout_rate',
    '0 with a private mean, for which all clients of a cohort report',
    sampler.dropout_rate,
  )
  errors.expect(
    not sampler.join_rounds,
    'sampler',
    'one that draws cohorts from all clients, in which every client reports',
    sampler,
  )


def _epsilon(delta, *divergences):
  """The smallest epsilon of several Renyi divergences by order."""
  return min(
    float(dp_accounting.rdp.compute_epsilon(_ORDERS, each, delta)[0])
    for each in divergences
  )


def _renyi(noise_multiplier, sampler=None):
  """A round's Renyi divergences, for a known cohort or a secret draw."""
  accountant = dp_accounting.rdp.RdpAccountant(
    _ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE
  )
  event = dp_accounting.GaussianDpEvent(noise_multiplier)
  if sampler is not None:
    event = dp_accounting.SampledWithoutReplacementDpEvent(
      sampler.num_clients,
      sampler.cohort_size,
      dp_accounting.GaussianDpEvent(noise_multiplier / 2),
    )
  return accountant.compose(event).rdp
