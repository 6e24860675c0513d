import math

import pytest

from tff_pfl.comparisons import claims


def _difference(values, **bound):
  return claims.difference('A beats B', 'Figure 1', values, **bound)


def test_the_interval_is_that_of_students_t():
  claim = _difference([1.0, 2.0, 3.0, 4.0, 5.0], above=0)
  # t of 4 degrees of freedom is 2.776, the mean's standard error 0.7071.
  assert claim.measured == 3
  assert claim.low == pytest.approx(3 - 2.7764 * math.sqrt(0.5), abs=1e-3)
  assert claim.high == pytest.approx(3 + 2.7764 * math.sqrt(0.5), abs=1e-3)
  assert (claim.threshold, claim.num_seeds) == ('> 0', 5)


@pytest.mark.parametrize(
  'bound,verdict',
  [
    ({'above': 1.0}, claims.HOLDS),
    ({'above': 2.5}, claims.UNDECIDED),
    ({'above': 5.0}, claims.FAILS),
    ({'below': 5.0}, claims.HOLDS),
    ({'below': 3.5}, claims.UNDECIDED),
    ({'below': 1.0}, claims.FAILS),
  ],
)
def test_the_interval_decides(bound, verdict):
  assert _difference([1.0, 2.0, 3.0, 4.0, 5.0], **bound).verdict == verdict


def test_few_seeds_decide_nothing_and_divergence_fails():
  few = _difference([5.0] * (claims.MIN_SEEDS - 1), above=0)
  assert few.verdict == claims.UNDECIDED
  assert few.low is None
  nan = _difference([math.nan] * claims.MIN_SEEDS, above=0)
  assert (nan.verdict, nan.low) == (claims.FAILS, None)


@pytest.mark.parametrize(
  'values,bound,worst,verdict',
  [
    ([0.9, 0.7], {'above': 0.6}, 0.7, claims.HOLDS),
    ([0.9, 0.7], {'above': 0.8}, 0.7, claims.FAILS),
    ([[0.1], [0.3]], {'below': 0.4}, 0.3, claims.HOLDS),
    ([0.1, 0.3], {'below': 0.2}, 0.3, claims.FAILS),
  ],
)
def test_the_worst_run_decides(values, bound, worst, verdict):
  claim = claims.measured('All are', 'Figure 1', values, **bound)
  assert (claim.measured, claim.verdict) == (worst, verdict)
  assert claim.num_seeds == 2


def test_what_is_not_a_number_holds_nothing():
  for bound in ({'above': 0}, {'below': 0}):
    claim = claims.measured('All are', 'Figure 1', [1.0, math.nan], **bound)
    assert claim.verdict == claims.FAILS


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
  text = claims.table(
    [{'experiment': 'one', **claim._asdict()} for claim in found]
  )
  lines = text.splitlines()
  assert lines[2].split() == (
    'one A beats B Figure 1 1 [1, 1] > 0 5 holds'.split()
  )
  assert lines[3].startswith(' ')
  assert [line.split()[-1] for line in lines[2:]] == [
    'holds',
    'fails',
    'undecided',
  ]
