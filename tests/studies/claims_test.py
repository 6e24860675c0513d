import json
import math

import pytest
from scipy import stats

from binaries.papers.engine import claims
from tff_pfl.runs import summary


def _difference(values, **bound):
  return claims.difference('A beats B', 'Figure 1', values, **bound)


def test_the_interval_is_that_of_students_t():
  claim = _difference([1.0, 2.0, 3.0, 4.0, 5.0], above=0)
  # t of 4 degrees of freedom is 2.776, the mean's standard error 0.7071.
  half = 2.7764 * math.sqrt(0.5)
  assert claim.measured == 3
  assert (claim.low, claim.high) == pytest.approx(
    (3 - half, 3 + half), abs=1e-3
  )
  assert (claim.threshold, claim.num_seeds) == ('> 0', 5)


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
    ([[0.9], [0.7]], {'above': 0.6}, 0.7, claims.HOLDS),
    ([0.9, 0.7], {'above': 0.8}, 0.7, claims.FAILS),
    ([0.1, 0.3], {'below': 0.2}, 0.3, claims.FAILS),
    ([1.0, math.nan], {'below': 2}, math.nan, claims.FAILS),
  ],
)
def test_the_worst_run_decides(values, bound, worst, verdict):
  claim = claims.measured('All are', 'Figure 1', values, **bound)
  assert claim.measured == pytest.approx(worst, nan_ok=True)
  assert (claim.verdict, claim.num_seeds) == (verdict, 2)


def test_each_place_has_a_claim():
  first, second = claims.each('{} is', 'F', 'ab', [[1.0, -2.0]] * 5, above=-1)
  assert (first.statement, first.measured) == ('a is', 1)
  assert (second.statement, second.verdict) == ('b is', claims.FAILS)


def test_claims_are_counted_and_listed():
  found = [
    _difference([1.0] * 5, above=0),
    _difference([-1.0] * 5, above=0),
    _difference([-1.0, 1.0] * 3, above=0),
  ]
  assert (
    claims.count(claim.verdict for claim in found)
    == '1 of 3 claims hold, 1 fail, 1 undecided'
  )
  _, _, *lines = claims.table(
    [{'experiment': 'one', **claim._asdict()} for claim in found]
  ).splitlines()
  first = 'one A beats B Figure 1 1 [1, 1] > 0 5 holds'
  assert lines[0].split() == first.split()
  assert lines[1].startswith(' ')
  assert [line.split()[-1] for line in lines[1:]] == ['fails', 'undecided']


def test_a_verdict_follows_from_the_numbers_by_seed():
  for claim in (
    _difference([0.2, 0.3, 0.1, 0.4, 0.2], above=0.1),
    _difference([0.2, 0.3, 0.1, 0.4, math.nan], above=0.1),
    claims.measured('All are', 'F', [[1.0, 3.0], [0.5, 2.0]], above=0.6),
    claims.measured('All are', 'F', [[1.0, 3.0], [0.7, 2.0]], above=0.6),
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


def test_p_values_are_those_of_the_t_test():
  values = [0.2, 0.3, 0.1, 0.4, 0.2]
  expected = stats.ttest_1samp(values, 0.1).pvalue
  assert _difference(values, above=0.1).p_value == pytest.approx(expected)
  assert _difference([2.0] * 5, above=1).p_value == 0
  assert _difference([1.0] * 5, above=1).p_value == 1
