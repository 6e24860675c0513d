"""What privacy and attacks cost, without training."""

from binaries.papers import privacy
from tests.papers import untrained
from tff_pfl.comparisons import claims, tables
from tff_pfl.runs import privacy as runs_privacy

_PRIVATE, _ATTACKED = privacy.EXPERIMENTS


def _measured(entry):
  (sizes,) = entry.full.values()
  context = untrained.Context(
    sizes, lambda wanted: untrained.finished(0.5, 0.4)
  )
  table = tables.Table.from_rows(entry.measure(context))
  return context.trials, table


def test_noise_is_found_for_every_epsilon_and_nothing_is_spent_alone():
  trials, table = _measured(_PRIVATE)
  assert {t.config.aggregator for t in trials} == {
    *(runs_privacy.PrivateMean(epsilon=epsilon) for epsilon in (1, 2, 4, 8)),
    'mean',
  }
  # FedAvg, FedRep and FedFac five times, and local training once, by seed.
  assert len(trials) == 5 * (3 * 5 + 1)
  assert table.distinct('privacy', method='Local') == ['nothing sent']
  assert set(
    table.values('accuracy', method='FedAvg + FT', privacy='ε = 1')
  ) == {0.4}


def test_attacked_are_none_of_those_who_are_compared_with():
  trials, _ = _measured(_ATTACKED)
  assert {
    (t.config.attack, t.config.attacked_fraction, t.config.aggregator)
    for t in trials
  } == {
    (attack, fraction, aggregator)
    for attack, fraction in (('none', 0), ('scale:-5', 0.1), ('scale:-5', 0.2))
    for aggregator in ('mean', 'geometric_median')
  }


def test_who_loses_more_to_noise_is_told_from_who_is_better():
  sizes = privacy.PrivacySizes(epsilons=(2,))
  accuracies = {
    ('ε = 2', 'FedAvg'): 0.25,
    ('ε = 2', 'FedAvg + FT'): 0.5,
    ('ε = 2', 'FedRep'): 0.75,
    ('ε = 2', 'FedFac'): 0.375,
    ('no noise', 'FedAvg'): 1.0,
    ('no noise', 'FedAvg + FT'): 1.0,
    ('no noise', 'FedRep'): 0.875,
    ('no noise', 'FedFac'): 0.875,
    ('nothing sent', 'Local'): 0.8125,
  }
  table = untrained.table(('privacy', 'method'), accuracies)
  found = list(privacy.privacy_claims(table, sizes))
  assert [claim.measured for claim in found] == [
    0.25, -0.125, -0.0625, 0.75 - 0.125, 0.75 - 0.5, -0.125, -0.125, 0.0625
  ]  # fmt: skip
  assert [claim.verdict == claims.HOLDS for claim in found] == [
    True, False, False, True, True, False, False, True
  ]  # fmt: skip


def test_robust_means_and_personal_models_are_claimed_to_lose_less():
  sizes = privacy.AttackSizes(attacked_fractions=(0.0, 0.2))
  # Without attack, attacked with the mean, attacked with the median.
  accuracies = {
    'FedAvg': (1.0, 0.25, 0.75),
    'FedAvg + FT': (1.0, 0.5, 0.75),
    'FedRep': (0.5, 0.25, 0.125),
    'Ditto': (1.0, 0.125, 0.5),
  }
  settings = (
    '0% attacked, mean',
    '20% attacked, mean',
    '20% attacked, geometric median',
  )
  table = untrained.table(
    ('method', 'setting'),
    {
      method: dict(zip(settings, values))
      for method, values in accuracies.items()
    },
  )
  found = list(privacy.attack_claims(table, sizes))
  assert [claim.measured for claim in found] == [
    0.25, 0.5, -0.125, 0.5, -0.125, 0.375
  ]  # fmt: skip
