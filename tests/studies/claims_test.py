import json
import math

import numpy as np
import pytest
from scipy import stats

from tff_pfl.runs import summary
from tff_pfl.studies import claims, numbers, study


def _difference(values, **bound):
  return claims.difference('A beats B', values, source='Figure 1', **bound)


def test_the_interval_and_the_p_value_are_those_of_students_t():
  values = [1.0, 2.0, 3.0, 4.0, 5.0]
  claim = _difference(values, above=0)
  # t of 4 degrees of freedom is 2.776, the mean's standard error 0.7071.
  low, high = 3 - 2.7764 * math.sqrt(0.5), 3 + 2.7764 * math.sqrt(0.5)
  actual = [claim.measured, claim.low, claim.high, claim.p_value]
  p_value = stats.ttest_1samp(values, 0).pvalue
  assert actual == pytest.approx([3, low, high, p_value], abs=1e-3, rel=1e-3)
  assert claim.p_value == pytest.approx(p_value)
  assert (claim.threshold, claim.num_seeds) == ('> 0', 5)
  assert _difference(values, above=np.float64(1)).threshold == '> 1 (ours)'
  assert _difference([2.0] * 5, above=1).p_value == 0
  assert _difference([1.0] * 5, above=1).p_value == 1


@pytest.mark.parametrize(
  'values, bound, verdict',
  [
    (range(1, 6), {'above': 1.0}, claims.HOLDS),
    (range(1, 6), {'above': 2.5}, claims.UNDECIDED),
    (range(1, 6), {'above': 5.0}, claims.FAILS),
    (range(1, 6), {'below': 5.0}, claims.HOLDS),
    (range(1, 6), {'below': 1.0}, claims.FAILS),
    # Few seeds decide nothing, and divergence fails.
    ([5.0] * (claims.MIN_SEEDS - 1), {'above': 0}, claims.UNDECIDED),
    ([math.nan] * claims.MIN_SEEDS, {'above': 0}, claims.FAILS),
  ],
)
def test_the_interval_decides(values, bound, verdict):
  assert _difference(list(values), **bound).verdict == verdict


@pytest.mark.parametrize(
  'values, bound, worst, verdict',
  [
    # The worst of a seed's runs counts.
    ([[0.9, 0.7]] * 5, {'above': 0.6}, 0.7, claims.HOLDS),
    ([[0.9, 0.7]] * 5, {'above': 0.8}, 0.7, claims.FAILS),
    ([0.3] * 5, {'below': 0.2}, 0.3, claims.FAILS),
    ([1.0] * 4 + [3.0], {'below': 2}, 3.0, claims.UNDECIDED),
    ([3.0] * 4 + [1.0], {'below': 2}, 3.0, claims.UNDECIDED),
    # Of ten seeds nine are enough: the chance of so many, if half were beyond,
    # is 11 / 1024. Of eight it is 56 / 1024.
    ([3.0] * 9 + [1.0], {'below': 2}, 3.0, claims.FAILS),
    ([3.0] * 8 + [1.0] * 2, {'below': 2}, 3.0, claims.UNDECIDED),
    ([math.nan] * 5, {'below': 2}, math.nan, claims.FAILS),
    ([1.0] * (claims.MIN_SEEDS - 1), {'below': 2}, 1.0, claims.UNDECIDED),
  ],
)
def test_a_claim_about_every_run_is_decided_by_the_share_of_seeds_beyond(
  values, bound, worst, verdict
):
  claim = claims.measured('All are', values, **bound)
  assert claim.measured == pytest.approx(worst, nan_ok=True)
  assert (claim.verdict, claim.num_seeds) == (verdict, len(values))


def test_seeds_beyond_are_told_where_a_claim_about_every_run_does_not_hold():
  held, failed = (
    claims.measured('All are', [1.0] * 4 + [last], below=2)._asdict()
    for last in (1.5, 3.0)
  )
  assert claims.number(held) == '1.5'
  assert claims.number(failed) == '3 (1 of 5 seeds beyond)'


def test_each_place_has_a_claim():
  first, second = claims.each('{} is', 'ab', [[1.0, -2.0]] * 5, above=-1)
  assert (first.statement, first.measured) == ('a is', 1)
  assert (second.statement, second.verdict) == ('b is', claims.FAILS)


def test_claims_are_counted_and_listed_with_ours_apart():
  rows = [
    {'study': 'one', **_difference(values, above=0)._asdict()}
    for values in ([1.0] * 5, [-1.0] * 5, [-1.0, 1.0] * 3)
  ]
  assert claims.count_all(rows) == '1 of 3 claims hold, 1 fail, 1 undecided'
  lines = claims.table(rows).splitlines()[2:]
  assert ' '.join(lines[0].split()) == (
    'one A beats B Figure 1 1 [1, 1] > 0 5 holds'
  )
  # The study stands beside the first of its claims.
  assert lines[1].startswith(' ')
  assert [line.split()[-1] for line in lines[1:]] == ['fails', 'undecided']
  rows[0]['is_ours'] = True
  ours = 'ours: 1 of 1 claims hold'
  told = '0 of 2 claims hold, 1 fail, 1 undecided'
  assert claims.count_all(rows) == f'{told}; {ours}'
  assert claims.count_all(rows[:1]) == ours
  assert claims.count_all([]) == '0 of 0 claims hold'


def test_a_verdict_follows_from_the_numbers_by_seed():
  for claim in (
    _difference([0.2, 0.3, 0.1, 0.4, 0.2], above=0.1),
    _difference([0.2, 0.3, 0.1, 0.4, math.nan], above=0.1),
    claims.measured('All are', [[1.0, 3.0], [0.5, 2.0]], above=0.6),
    claims.measured('All are', [[1.0, 3.0], [0.7, 2.0]], above=0.6),
    _difference([0.2, 0.3, 0.1, 0.4, 0.2], below=0.1, of_paper=True),
    _difference([0.2, 0.3, 0.1, 0.4, 0.2], below=0.1),
  ):
    text = summary.json_text(claim._asdict())
    again = claims.recomputed(json.loads(text))
    assert summary.json_text(again._asdict()) == text
  assert again.threshold == '< 0.1 (ours)'


def test_comparisons_are_decided_by_holms_method():
  p_values = [0.2, 0.012, None, 0.001, 0.02, 0.03]
  # Limits: 0.05 / 5, 0.05 / 4, 0.05 / 3, ..., at the first of which that is
  # exceeded it ends: 0.02 > 0.0167.
  table = [{'p_value': p} for p in p_values]
  assert claims.decided_by_holm(table) == 2
  assert claims.decided_by_holm([{'p_value': 1e-9}] * 3) == 3
  assert claims.decided_by_holm([{'p_value': None}]) is None


_SCORES = {
  # Scores, and losses a tenth of them, by condition and method.
  'easy': {'A': (5, 6, 7, 8, 9), 'B': (1, 2, 3, 4, 5), 'C': (5, 6, 7, 8, 9)},
  'hard': {'A': (1, 2, 3, 4, 5), 'B': (5, 6, 7, 8, None)},
}


def _checked(*checks, metric='score', scores=None):
  """Claims as data, checked: their fields by statement."""
  actual = numbers.Numbers(
    (
      {'condition': condition, 'method': method, 'seed': seed}
      | {'score': value, 'personal_loss': value / 10}
      for condition, methods in (scores or _SCORES).items()
      for method, values in methods.items()
      for seed, value in enumerate(values)
      # A trial that failed has no row.
      if value is not None
    ),
    {'score': True, 'personal_loss': False},
  )
  of = study.Study(
    methods=dict.fromkeys('ABC', study.Method('fed_avg')),
    conditions={'easy': {}, 'hard': {}},
    metric=metric,
    source='Table 1',
    claims=checks,
  )
  return {c.statement: c for c in claims.check(of.claims, actual, of)}


def test_a_method_is_ahead_of_others_in_each_condition():
  actual = _checked(claims.better('A', than='B'))
  assert [*actual] == [
    'easy: A is more accurate than B',
    'hard: A is more accurate than B',
  ]
  easy, hard = actual.values()
  assert (easy.measured, easy.verdict, easy.num_seeds) == (4, claims.HOLDS, 5)
  assert (easy.source, easy.threshold) == ('Table 1', '> 0')
  # Of the seed with which one failed nothing is known.
  assert (hard.values, hard.num_seeds) == ([-4] * 4, 4)
  assert hard.verdict == claims.UNDECIDED


def test_others_are_all_that_are_there():
  actual = _checked(claims.better(['A'], than=claims.ALL_OTHERS))
  others = [text.replace(' is more accurate than', '') for text in actual]
  assert others == ['easy: A B', 'easy: A C', 'hard: A B']
  several = claims.better(('A', 'C'), than=('B', 'A'), conditions=['easy'])
  # One of those that are ahead is not compared with itself or the others.
  assert [*_checked(several)] == [
    'easy: A is more accurate than B',
    'easy: C is more accurate than B',
  ]


def test_what_failed_with_all_seeds_of_a_condition_is_left_out():
  scores = {'easy': {'A': (1, 2)}, 'hard': {'A': (1, 2), 'C': (1, 2)}}
  checks = claims.better('C', than='A'), claims.at_least(3, 'C')
  assert [*_checked(*checks, scores=scores)] == [
    'hard: C is more accurate than A',
    'hard: the score of C is at least 3',
  ]


def test_a_figure_that_a_method_does_not_have_has_no_claim():
  rows = [
    {'condition': '', 'method': m, 'seed': 0, 'score': score, 'lead': lead}
    for m, score, lead in (
      ('A', 0.5, 0.1),
      ('B', 0.5, None),
      # Its training diverged.
      ('C', math.nan, math.nan),
    )
  ]
  of = study.Study(
    methods=dict.fromkeys('ABC', study.Method('fed_avg')),
    metric='lead',
    claims=[
      claims.better('A', than=claims.ALL_OTHERS),
      claims.at_least(0.0, 'B'),
    ],
  )
  actual = claims.check(of.claims, numbers.Numbers(rows), of)
  assert [c.statement for c in actual] == ['A is ahead of C: lead']


@pytest.mark.parametrize(
  'by, verdict', [(3.5, claims.HOLDS), (4.5, claims.FAILS)]
)
def test_a_lead_is_by_so_much(by, verdict):
  options = {'conditions': ['easy'], 'source': 'Figure 2'}
  (claim,) = _checked(claims.better('A', than='B', by=by, **options)).values()
  # The paper has the bound.
  assert (claim.threshold, claim.source) == (f'> {by}', 'Figure 2')
  assert claim.verdict == verdict


def test_of_a_loss_less_is_better():
  check = claims.better('B', than='A', conditions=['easy'])
  (statement,) = actual = _checked(check, metric='personal_loss')
  assert statement == 'easy: B is ahead of A: personal loss'
  assert actual[statement].measured == pytest.approx(0.4)
  assert actual[statement].verdict == claims.HOLDS
  named = claims.better(
    'B', than='A', conditions=['easy'], metric='personal_loss'
  )
  assert _checked(named) == actual
  with pytest.raises(ValueError, match='`metric` to be one of .*personal_loss'):
    _checked(claims.better('B', than='A', metric='personal_los'))


def test_a_metric_is_at_least_so_high():
  check = claims.at_least(2.9, conditions=['easy'])
  actual = [*_checked(check).values()]
  assert actual[1].statement == 'easy: the score of B is at least 2.9'
  assert [claim.measured for claim in actual] == [7, 3, 7]
  verdicts = [claim.verdict for claim in actual]
  assert verdicts == [claims.HOLDS, claims.UNDECIDED, claims.HOLDS]
  check = claims.at_least(9, 'B', conditions=['easy'], is_ours=True)
  (claim,) = _checked(check).values()
  assert (claim.verdict, claim.threshold) == (claims.FAILS, '> 9')
  assert claim.is_ours and not actual[0].is_ours


def test_methods_are_alike_seed_by_seed():
  scores = {'': {'A': (1, 2, 3, 4, 5), 'B': (2, 1, 4, 3, 6), 'C': (9,) * 5}}
  check = claims.close('A', ['B', 'C'], tolerance=1.5)
  near, far = _checked(check, scores=scores).values()
  assert near.statement == (
    'A and B are alike: the absolute difference of the score'
  )
  # Signs do not cancel.
  assert (near.measured, near.threshold) == (1, '< 1.5')
  assert (near.verdict, far.verdict) == (claims.HOLDS, claims.FAILS)


def test_a_claim_may_be_a_function_of_numbers_and_study():
  def spread(actual, of):
    values = actual.values('score', condition='easy', method='A')
    yield claims.measured('It is', values - values.min(), below=5)

  (claim,) = _checked(spread).values()
  assert (claim.measured, claim.source) == (4, 'Table 1')
