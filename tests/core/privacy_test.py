import dataclasses
import math

import numpy as np
import pytest
from scipy import optimize, stats

from tff_pfl.core import client_sampling, privacy, process_options

_DELTA = 1e-5


def _everybody(num_clients=20):
  return client_sampling.CohortSampler(num_clients, num_clients, 0)


def _gaussian_epsilon(noise_multiplier, delta):
  """The exact epsilon of the Gaussian mechanism (Balle and Wang, 2018)."""

  def excess(epsilon):
    first = 0.5 / noise_multiplier - epsilon * noise_multiplier
    second = -0.5 / noise_multiplier - epsilon * noise_multiplier
    cdf = stats.norm.cdf
    return cdf(first) - np.exp(epsilon) * cdf(second) - delta

  return optimize.brentq(excess, 0, 100)


@pytest.mark.parametrize('noise_multiplier', [0.8, 3.0, 10.0])
def test_if_all_take_part_it_is_the_gaussian_mechanism(noise_multiplier):
  accounting = privacy.Accounting(noise_multiplier, _everybody(), _DELTA)
  actual = accounting.epsilons(9)
  for num_rounds in (1, 9):
    # Rounds add up as one round with less noise does.
    exact = _gaussian_epsilon(noise_multiplier / num_rounds**0.5, _DELTA)
    assert exact <= actual[num_rounds - 1] < 1.12 * exact
  assert actual == sorted(actual)


def test_renyi_divergences_by_hand():
  sampler = client_sampling.CohortSampler(1000, 10, 0)
  # Of order 2: alpha / (2 z^2).
  order = privacy._ORDERS.index(2.0)
  assert privacy._renyi(2.0)[order] == pytest.approx(2 / (2 * 2.0**2))
  # Theorem 27 for sampling without replacement, with the sensitivity doubled:
  # log(1 + q^2 min(4 (exp(e) - 1), 2 exp(e))), e = 2 / (2 (z / 2)^2).
  for noise_multiplier in (1.0, 2.0, 8.0):
    e = 4 / noise_multiplier**2
    smaller = min(4 * np.expm1(e), 2 * np.exp(e))
    actual = privacy._renyi(noise_multiplier, sampler)[order]
    assert actual == pytest.approx(np.log1p(1e-4 * smaller), rel=1e-9)


def test_secret_cohorts_count_where_they_are_a_small_part():
  sampler = client_sampling.CohortSampler(10_000, 50, 0)
  (actual,) = privacy.Accounting(4.0, sampler, _DELTA).epsilons(1)
  known = _gaussian_epsilon(4.0, _DELTA)
  assert actual < 0.5 * known
  # In small ones the busiest client's rounds are the better bound.
  sampler = client_sampling.CohortSampler(4, 2, 0)
  rounds = np.array([sampler.sample(r) for r in range(1, 7)])
  counts = [int(np.bincount(rounds[:n].ravel()).max()) for n in range(1, 7)]
  assert privacy.most_participations(sampler, 6) == counts
  actual = privacy.Accounting(1.0, sampler, _DELTA).epsilons(6)
  exact = _gaussian_epsilon(counts[-1] ** -0.5, _DELTA)
  assert exact <= actual[-1] < 1.12 * exact


@pytest.mark.parametrize(('epsilon', 'cohort_size'), [(0.5, 5), (20, 100)])
def test_noise_that_is_found_gives_its_epsilon(epsilon, cohort_size):
  sampler = client_sampling.CohortSampler(100, cohort_size, 0)
  actual = privacy.find_noise_multiplier(epsilon, _DELTA, sampler, 7)
  last = privacy.Accounting(actual, sampler, _DELTA).epsilons(7)[-1]
  assert 0.995 * epsilon < last <= epsilon


def test_an_epsilon_that_needs_huge_noise_is_refused():
  delta, everybody = 2.5e-7, _everybody()
  least = privacy.Accounting(1e6, everybody, delta).epsilons(1)[-1]
  words = f'^Expected `epsilon` to be at least {1.001 * least:.4g} .* 0.001.$'
  with pytest.raises(ValueError, match=words):
    privacy.find_noise_multiplier(1e-3, delta, everybody, 1)
  noise = privacy.find_noise_multiplier(1.01 * least, delta, everybody, 1)
  assert noise < 1e6


def test_announcement_warns_of_what_hardly_protects():
  accounting = privacy.Accounting(
    1.5, client_sampling.CohortSampler(100, 10, 0), 0.01
  )
  assert privacy.announcement(accounting, [1.0, 2.0]) == (
    '2 rounds, 10 of 100 clients, noise multiplier 1.5: ε = 2 at δ = 0.01.'
  )
  assert 'Warning' in privacy.announcement(accounting, [11.0])
  local = privacy.Accounting(math.inf, accounting.sampler, 0.01)
  assert 'weights stay with them: ε = 0' in privacy.announcement(local, [0.0])


@pytest.mark.parametrize(
  ('name', 'mean', 'settings'),
  [
    ('epsilon', 'dp', {'epsilon': 1.0, 'noise_multiplier': 1.0}),
    ('epsilon', 'dp', {}),
    ('epsilon', 'dp', {'epsilon': -1.0}),
    ('epsilon', 'dp', {'epsilon': math.nan}),
    ('epsilon', 'dp', {'epsilon': math.inf}),
    ('noise_multiplier', 'dp', {'noise_multiplier': -1.0}),
    ('noise_multiplier', 'ddp', {}),
    ('clip', 'dp', {'epsilon': 1.0, 'clip': 'median'}),
    ('bits', 'ddp', {'noise_multiplier': 1.0, 'bits': 23}),
    ('delta', 'dp', {'epsilon': 1.0, 'delta': 1.0}),
  ],
)
def test_wrong_settings_of_the_noise_are_refused(name, mean, settings):
  with pytest.raises((ValueError, TypeError), match=f'^Expected `{name}`'):
    privacy.AGGREGATORS[mean](**settings)


@pytest.mark.parametrize(
  'name, changes',
  [
    ('dropout_rate', {'dropout_rate': 0.1}),
    ('sampler', {'join_rounds': (1, 1, 1, 2, 2, 2)}),
  ],
)
def test_bounds_are_for_cohorts_among_all_that_report(name, changes):
  sampler = client_sampling.CohortSampler(6, 3, 0, **changes)
  with pytest.raises(ValueError, match=f'^Expected `{name}` to be '):
    privacy.Accounting(1.0, sampler, _DELTA)


def test_accounting_is_of_the_noise_that_is_added():
  sampler = client_sampling.CohortSampler(6, 3, 3)
  options, accounting = process_options.ProcessOptions(
    aggregator=privacy.PrivateMean(epsilon=5.0)
  ).resolved(sampler, num_rounds=3)
  factory = options.aggregator
  assert 4.97 < accounting.epsilons(3)[-1] <= 5.0
  assert factory.noise_multiplier == accounting.noise_multiplier
  assert factory.clients_per_round == 3 and factory.seed == 3
  # Where nothing is sent, nothing is told.
  assert accounting.for_states(((),)).epsilons(3) == [0.0] * 3
  # Only noise is accounted for.
  without = privacy.PrivateMean(noise_multiplier=0.0, clip='fixed:inf')
  assert without.accounting(sampler, 3) is None
  # Its sum is also divided by the size of a cohort of which all report.
  some = dataclasses.replace(sampler, dropout_rate=0.5)
  with pytest.raises(ValueError, match='`dropout_rate` to be 0 with a private'):
    without.accounting(some, 3)
  late = client_sampling.CohortSampler(5, 3, 3, join_rounds=(1, 1, 1, 1, 2))
  with pytest.raises(ValueError, match='draws cohorts from all clients'):
    without.accounting(late, 3)
  distributed = privacy.DistributedPrivateMean(noise_multiplier=1.0, delta=0.01)
  accounting = distributed.accounting(sampler, 3)
  assert accounting.delta == 0.01 and accounting.is_distributed
