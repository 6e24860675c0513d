"""The studies on privacy and attacks, without training."""

import pytest

import tff_pfl as pfl
from binaries.papers import privacy
from tests.papers import untrained
from tff_pfl.studies import claims
from tff_pfl.studies.numbers import Numbers

_PRIVATE, _ATTACKED = (study.at('cpu') for study in privacy.STUDIES)


def test_noise_is_found_for_every_epsilon_and_nothing_is_spent_alone():
  context = untrained.Context(_PRIVATE)
  numbers = context.measured()
  assert {config.process.aggregator for config in context.configs} == {
    *(pfl.PrivateMean(epsilon=epsilon) for epsilon in (1, 2, 4, 8)),
    'mean',
  }
  # FedAvg, FedRep, FedFac and local training five times by seed.
  assert len(context.trials) == 5 * 4 * 5
  for config in context.configs:
    if config.algorithm == 'local_only':
      assert config.process.aggregator == 'mean'
  fine_tuned = numbers.values('score', method='FedAvg + FT', condition='ε = 1')
  assert {*fine_tuned} == {0.4}


def test_attacked_are_none_of_those_who_are_compared_with():
  context = untrained.Context(_ATTACKED)
  context.run()
  attacks = ('none', 0), ('scale:-5', 0.1), ('scale:-5', 0.2)
  means = 'mean', 'geometric_median'
  assert {
    (options.attack, options.attacked_fraction, options.aggregator)
    for options in (config.process for config in context.configs)
  } == {(*attack, mean) for attack in attacks for mean in means}


def _checked(study, scores):
  """The claims of numbers with the same score for each seed."""
  numbers = Numbers(
    {'condition': condition, 'method': method, 'seed': seed, 'score': score}
    for (condition, method), score in scores.items()
    for seed in study.seeds
  )
  return claims.check(study.claims, numbers, study)


def test_losses_are_compared_with_the_loss_of_fed_avg():
  scores = {('no noise', 'FedAvg'): 0.9, ('no noise', 'FedRep'): 0.8}
  scores |= {('ε = 2', 'FedAvg'): 0.5, ('ε = 2', 'FedRep'): 0.7}
  (claim,) = _checked(_PRIVATE, scores)
  assert claim.statement == 'ε = 2: the noise costs FedAvg more than FedRep'
  assert claim.measured == pytest.approx(0.4 - 0.1)
  assert claim.is_ours
  del scores['no noise', 'FedRep']
  assert not _checked(_PRIVATE, scores)


def test_means_are_compared_where_clients_are_attacked():
  scores = {'0% attacked, mean': 0.9, '10% attacked, mean': 0.3}
  scores['10% attacked, geometric median'] = 0.8
  scores = {(condition, 'FedAvg'): scores[condition] for condition in scores}
  (claim,) = _checked(_ATTACKED, scores)
  assert claim.measured == pytest.approx(0.5)
  assert claim.verdict == claims.HOLDS
