"""FedDAR's studies with networks, without their training."""

import numpy as np

import tff_pfl as pfl
from binaries.papers import fed_dar
from tests.papers import untrained
from tff_pfl.studies.numbers import Numbers

_STUDIES = {study.name: study for study in fed_dar.STUDIES}
_DOMAINS, _DIGITS = _STUDIES['feddar_domains'], _STUDIES['feddar_digits']


def test_scores_are_of_the_last_ten_rounds_or_after_fine_tuning():
  context = untrained.Context(_DOMAINS.at('cpu').select(seeds=[0]))
  rows = context.measured().frame.to_dict('records')
  assert len(rows) == 4 * (14 + 3)
  for row in rows:
    is_fine_tuned = row['method'] in ('FedAvg + FT', 'FedProx + FT')
    assert row['mean'] == row['domain/1'] == (0.4 if is_fine_tuned else 0.5)
  for config in context.configs:
    assert config.method.batch_size == 32
    # Clients fine-tune for an epoch at half the rate.
    assert config.process.personalization == pfl.Personalization(
      num_epochs=1, learning_rate=0.025, momentum=0.5, batch_size=32
    )
    assert config.start.num_warmup_rounds + config.rounds.num_rounds == 60


def test_fed_bn_and_fed_avg_beside_it_have_batch_normalization():
  context = untrained.Context(_DIGITS.at('cpu').select(seeds=[0]))
  context.measured()
  normalized = [
    config.algorithm
    for config in context.configs
    if config.model.arguments.get('normalization') == 'batch'
  ]
  assert sorted(normalized) == ['fed_avg'] * 4 + ['fed_bn'] * 4


def test_the_best_of_several_is_chosen_by_the_other_seeds():
  # The other seeds' sums: (11, 3), (10, 5) and (3, 8).
  scores = np.array([[1, 5], [2, 3], [9, 0]])
  assert fed_dar.best_by_seed(scores).tolist() == [1, 2, 0]
  # One seed has to choose itself, and what diverged is not chosen.
  assert fed_dar.best_by_seed(scores[:1]).tolist() == [5]
  diverged = np.array([[1, np.nan], [2, 3], [9, 7]])
  assert fed_dar.best_by_seed(diverged).tolist() == [1, 2, 9]


def test_each_label_has_claims_of_its_own_on_the_methods_that_there_are():
  leads = {'alpha=1': 0.1, 'alpha=100': 0.3, 'gender: alpha=1': -0.2}
  numbers = Numbers(
    {'condition': condition, 'method': method, 'seed': seed}
    | dict.fromkeys(('min', 'mean', 'client_mean'), score)
    for condition, lead in leads.items()
    for method, score in (('FedAvg', 0.5), ('FedDAR-SA', 0.5 + lead))
    for seed in range(5)
  )
  measured = {
    claim.statement: round(claim.measured, 3)
    for claim in fed_dar.domains_claims(numbers, _DOMAINS)
  }
  better = 'FedDAR-SA serves the domains better on average than FedAvg'
  assert measured[better] == 0.2
  assert measured[f'gender: {better}'] == -0.2
  (worst,) = (s for s in measured if s.startswith('With alpha=100 FedDAR-SA'))
  assert measured[worst] == 0.3
  # With one alpha there is nothing to compare.
  assert not any('gender: With' in statement for statement in measured)
  assert len(measured) == 3 + 2 + 1 + 3
