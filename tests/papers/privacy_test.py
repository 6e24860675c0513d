"""The experiments on privacy and attacks, without training."""

import tff_pfl as pfl
from binaries.papers import privacy
from tests.papers import untrained

_PRIVATE, _ATTACKED = privacy.EXPERIMENTS


def test_noise_is_found_for_every_epsilon_and_nothing_is_spent_alone():
  context = untrained.Context(_PRIVATE.full['mnist'])
  table = context.measured(_PRIVATE.measure)
  assert {config.process.aggregator for config in context.configs} == {
    *(pfl.PrivateMean(epsilon=epsilon) for epsilon in (1, 2, 4, 8)),
    'mean',
  }
  # FedAvg, FedRep and FedFac five times, and local training once, by seed.
  assert len(context.trials) == 5 * (3 * 5 + 1)
  assert table.distinct('privacy', method='Local') == ['nothing sent']
  assert set(
    table.values('accuracy', method='FedAvg + FT', privacy='ε = 1')
  ) == {0.4}


def test_attacked_are_none_of_those_who_are_compared_with():
  context = untrained.Context(_ATTACKED.full['mnist'])
  context.measured(_ATTACKED.measure)
  assert {
    (options.attack, options.attacked_fraction, options.aggregator)
    for options in (config.process for config in context.configs)
  } == {
    (attack, fraction, aggregator)
    for attack, fraction in (('none', 0), ('scale:-5', 0.1), ('scale:-5', 0.2))
    for aggregator in ('mean', 'geometric_median')
  }
