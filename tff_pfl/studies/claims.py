"""Claims of a study, checked with its numbers.

    claims=[
      better('FedRep', than='FedAvg', source='FedRep, table 1'),
      better('FedRep', than=ALL_OTHERS),
      at_least(0.9, 'FedRep'),
      close('FedAvg', 'FedProx', tolerance=0.01),
    ]

Each is checked in every condition. A claim of another form is a function of the
study's numbers, which yields `Claim`s of `measured` and `difference`.

A claim holds, fails, or is undecided. Where methods are compared, the 95%
interval of their mean difference over seeds decides: a seed has its own
clients, initial weights and cohorts, which the methods share, so differences
are taken seed by seed. The claim holds if the interval lies on the right side
of the bound, fails if it lies on the wrong side, and is undecided if it has the
bound within, or if there are fewer than `MIN_SEEDS` seeds.

A claim about every run holds if no run is on the wrong side of the bound. A
seed is on the wrong side if one of its runs is. If some seeds are, the 95%
bound of their share among all seeds decides (Clopper and Pearson): the claim
fails if most are, and is undecided if that cannot be told.

Each interval is for itself: of many true claims on one table some fail by
chance. `decided_by_holm` counts the comparisons that stay decided when the
table's error is held at 5%.
"""

from __future__ import annotations

import collections
import itertools
import textwrap
from collections.abc import (
  Callable,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from scipy import stats

from tff_pfl import errors, fields
from tff_pfl.runs import summary as summary_lib
from tff_pfl.studies.numbers import Numbers

HOLDS, FAILS, UNDECIDED = 'holds', 'fails', 'undecided'
# With fewer, an interval says little about other seeds.
MIN_SEEDS = 5
_CONFIDENCE = 0.95


class Claim(NamedTuple):
  """A statement of a paper, reduced to a number.

  Attributes:
    statement: The paper's statement, and the number that it was reduced to.
    source: Its place in the paper, such as 'FedRep, figure 3'.
    measured: The number; of a comparison the mean over seeds.
    low: Lower end of its 95% interval; None where there is none.
    high: Upper end of the interval.
    threshold: Bound that it was compared with, such as '> 0.98', or '> -0.01
      (ours)' where the paper has no number for it.
    num_seeds: Seeds that it was measured with.
    verdict: `HOLDS`, `FAILS` or `UNDECIDED`.
    decided_by: The 'mean' over seeds, or the 'worst' of all runs.
    values: The number of each seed, the worst of its runs.
    p_value: Two-sided p-value of the t-test of the mean against the bound; None
      where there is no interval.
    is_ours: True for a form of ours of what the paper has, or a question of
      ours, which is not counted among the paper's claims.
  """

  statement: str
  source: str
  measured: float
  low: Optional[float]
  high: Optional[float]
  threshold: str
  num_seeds: int
  verdict: str
  decided_by: str
  values: Sequence[float]
  p_value: Optional[float] = None
  is_ours: bool = False


def measured(
  statement: str,
  source: str,
  values: Any,
  *,
  above: Optional[float] = None,
  below: Optional[float] = None,
  of_paper: bool = False,
  is_ours: bool = False,
) -> Claim:
  """A claim about every run, decided by the seeds that have a run beyond.

  Args:
    values: A number for each seed, `[num_seeds, ...]`; one that is NaN is
      beyond.
    above: Lower bound of all values; None if `below` is given.
    below: Upper bound of all values; None if `above` is given.
    of_paper: True if the paper has that bound, and not only words such as
      "close to 1".
    is_ours: See `Claim`.
  """
  values = np.asarray(values, float)
  worst_of = np.min if below is None else np.max
  by_seed = worst_of(values.reshape(len(values), -1), axis=1)
  is_beyond = _is_beyond(by_seed, *_bound(above, below))
  verdict = UNDECIDED
  if len(by_seed) >= MIN_SEEDS:
    beyond = stats.binomtest(int(is_beyond.sum()), len(by_seed), 0.5, 'greater')
    if not is_beyond.any():
      verdict = HOLDS
    elif beyond.pvalue <= 1 - _CONFIDENCE:
      verdict = FAILS
  return Claim(
    statement,
    source,
    measured=float(worst_of(by_seed)),
    low=None,
    high=None,
    threshold=_threshold(above, below, of_paper),
    num_seeds=len(values),
    verdict=verdict,
    decided_by='worst',
    values=by_seed.tolist(),
    is_ours=is_ours,
  )


def difference(
  statement: str,
  source: str,
  values: Any,
  *,
  above: float = 0,
  below: Optional[float] = None,
  of_paper: bool = False,
  is_ours: bool = False,
) -> Claim:
  """A claim about the mean over seeds, decided by its interval.

  Args:
    values: `[num_seeds]`, such as one method's accuracies less another's. A
      claim with one that is not finite fails.
    above: Lower bound of the mean.
    below: Upper bound of the mean; if given, `above` is ignored.
    of_paper: True if the paper has that bound, and not only words such as "no
      difference". 0 needs none.
    is_ours: See `Claim`.
  """
  values = np.asarray(values, float)
  mean, low, high, p_value = float(values.mean()), None, None, None
  verdict = UNDECIDED
  if not np.isfinite(values).all():
    # A method that diverged with a seed does not bear out anything.
    verdict = FAILS
  elif len(values) >= MIN_SEEDS:
    bound = above if below is None else below
    error, freedom = stats.sem(values), len(values) - 1
    half = stats.t.ppf((1 + _CONFIDENCE) / 2, freedom) * error
    low, high = mean - half, mean + half
    # With the same value for all seeds there is no error.
    distance = abs(mean - bound)
    p_value = 2 * stats.t.sf(distance / error, freedom) if error else 0.0
    if distance == 0:
      p_value = 1.0
    if not low <= bound <= high:
      verdict = HOLDS if (low > bound) == (below is None) else FAILS
  return Claim(
    statement,
    source,
    measured=mean,
    low=low,
    high=high,
    threshold=_threshold(above, below, of_paper),
    num_seeds=len(values),
    verdict=verdict,
    decided_by='mean',
    values=values.tolist(),
    p_value=None if p_value is None else float(p_value),
    is_ours=is_ours,
  )


def recomputed(claim: Mapping[str, Any]) -> Claim:
  """A claim decided anew, from the numbers by seed that it was decided by.

  Args:
    claim: Fields of a `Claim`, as JSON types, with None for NaN.
  """
  side, bound, *ours = claim['threshold'].split()
  decide = difference if claim['decided_by'] == 'mean' else measured
  return decide(
    claim['statement'],
    claim['source'],
    np.array(claim['values'], float),
    **{'above' if side == '>' else 'below': float(bound)},
    of_paper=not ours,
    is_ours=claim.get('is_ours', False),
  )


def decided_by_holm(claims: Iterable[Mapping[str, Any]]) -> Optional[int]:
  """The number of comparisons that stay decided by Holm's method.

  Args:
    claims: The fields of all claims of a table. Those without a p-value are not
      comparisons.

  Returns:
    How many of the smallest p-values are, each, at most 5% divided by the
    number of those that are not smaller; None if there is no comparison.
  """
  p_values = sorted(
    claim['p_value'] for claim in claims if claim.get('p_value') is not None
  )
  if not p_values:
    return None
  limits = (1 - _CONFIDENCE) / np.arange(len(p_values), 0, -1)
  return int(np.argmin([*(p_values <= limits), False]))


def each(
  statement: str,
  source: str,
  places: Iterable[Any],
  values: np.ndarray,
  **bound: float,
) -> Iterator[Claim]:
  """A claim of `difference` for each place, such as each number of clients.

  Args:
    statement: Format of the statement, which takes the place.
    values: `[num_seeds, num_places]`.
    **bound: `above` or `below`.
  """
  for place, of_place in zip(places, np.transpose(values)):
    yield difference(statement.format(place), source, of_place, **bound)


# Check of a study's numbers: `(numbers, study) -> Claim`s.
Check = Callable[[Numbers, Any], Iterable[Claim]]
# As `than`: every other method of the study.
ALL_OTHERS = '*'


@fields.dataclass
class MethodCheck:
  """A claim on methods in each condition, as data; see `better`."""

  kind: str
  methods: Any
  others: Any
  bound: fields.Float
  metric: Optional[str] = None
  conditions: Any = None
  source: Optional[str] = None
  is_ours: bool = False

  @property
  def named_methods(self) -> list[str]:
    """The methods that it names."""
    both = (*_listed(self.methods), *_listed(self.others))
    return [name for name in both if name != ALL_OTHERS]

  @property
  def named_conditions(self) -> list[str]:
    """The conditions that it names, none where it holds for all."""
    return list(_listed(self.conditions or ()))

  def __call__(self, numbers: Numbers, study: Any) -> Iterator[Claim]:
    """The claims, decided by the study's numbers."""
    metric = self.metric or study.metric
    source = study.source if self.source is None else self.source
    for name in ('condition', 'method', 'seed', metric):
      errors.expect_one_of('metric', name, list(numbers.frame))
    scored = 'the score' if metric == 'score' else metric.replace('_', ' ')
    for condition in numbers.distinct('condition'):
      if self.conditions is not None and condition not in self.named_conditions:
        continue
      here = numbers.where(condition=condition)
      for name, other in self._pairs(here.distinct('method')):
        if other is None:
          words = f'{scored} of {name} is at least {self.bound:g}'
          values, bound = here.values(metric, method=name), 'above'
        elif self.kind == 'close':
          words = f'{name} and {other} are alike: the absolute difference of '
          words += scored
          values, bound = abs(here.lead(metric, name, other)), 'below'
        else:
          words = f'{name} is more accurate than {other}'
          if metric != 'score':
            words = f'{name} is ahead of {other}: {scored}'
          sign = 1 if here.higher_is_better.get(metric, True) else -1
          values, bound = sign * here.lead(metric, name, other), 'above'
        if len(values):
          yield difference(
            words if condition == '' else f'{condition}: {words}',
            source,
            values,
            **{bound: self.bound},
            of_paper=True,
            is_ours=self.is_ours,
          )

  def _pairs(self, known):
    """The methods that are compared; others were not selected, or failed."""
    ours, others = (
      [name for name in known if names == ALL_OTHERS or name in names]
      for names in (_listed(self.methods), _listed(self.others))
    )
    if self.kind == 'at_least':
      return [(name, None) for name in ours]
    others = [name for name in others if name not in ours]
    return itertools.product(ours, others)


def _listed(names):
  is_one = isinstance(names, str) and names != ALL_OTHERS
  return (names,) if is_one else names


def better(
  method: Union[str, Sequence[str]],
  than: Union[str, Sequence[str]],
  *,
  by: float = 0,
  **options: Any,
) -> Check:
  """The claim that a method is ahead of others, in each condition.

  Args:
    method: The method, or several.
    than: The other method, or several, or `ALL_OTHERS`.
    by: The lead that is claimed, in the unit of the metric.
    **options: `metric`, the column of the numbers (None for the study's);
      `conditions` in which it is claimed (None for all); `source`, the place of
      the claim, such as 'FedRep, table 1' (None for the study's); and
      `is_ours`, True for a question of ours, which is counted apart.
  """
  return MethodCheck('better', method, than, by, **options)


def at_least(
  value: float,
  method: Union[str, Sequence[str]] = ALL_OTHERS,
  **options: Any,
) -> Check:
  """The claim that a mean over seeds is above a value, in each condition.

  Args:
    value: The bound.
    method: The method, or several.
    **options: As for `better`.
  """
  return MethodCheck('at_least', method, (), value, **options)


def close(
  method: Union[str, Sequence[str]],
  other: Union[str, Sequence[str]],
  *,
  tolerance: float,
  **options: Any,
) -> Check:
  """The claim that methods differ by less than a tolerance, seed by seed.

  Args:
    method: The method, or several.
    other: The other method, or several, or `ALL_OTHERS`.
    tolerance: Bound of the mean absolute difference.
    **options: As for `better`.
  """
  return MethodCheck('close', method, other, tolerance, **options)


def check(checks: Iterable[Check], numbers: Numbers, study: Any) -> list[Claim]:
  """The claims of a study, decided by its numbers.

  A claim on what the numbers do not have, such as a method that was not
  selected, is left out.
  """
  return [claim for one in checks for claim in one(numbers, study)]


def _bound(above, below):
  return ('>', above) if below is None else ('<', below)


def _threshold(above, below, of_paper):
  side, bound = _bound(above, below)
  return f'{side} {bound:g}' + ' (ours)' * (bound != 0 and not of_paper)


def count(verdicts: Iterable[str]) -> str:
  """A count of verdicts: '3 of 5 claims hold, 1 fail, 1 undecided'."""
  counts = collections.Counter(verdicts)
  text = f'{counts[HOLDS]} of {sum(counts.values())} claims hold'
  if counts[FAILS]:
    text += f', {counts[FAILS]} fail'
  if counts[UNDECIDED]:
    text += f', {counts[UNDECIDED]} undecided'
  return text


def number(claim: Mapping[str, Any]) -> str:
  """The measured number of a claim and its interval, as text.

  Args:
    claim: Fields of a `Claim`, as JSON types.
  """
  if claim['measured'] is None:
    return 'nan'
  text = f'{claim["measured"]:.3g}'
  if claim['low'] is not None:
    text += f' [{claim["low"]:.3g}, {claim["high"]:.3g}]'
  if claim.get('decided_by') == 'worst':
    side, bound = claim['threshold'].split()[:2]
    is_beyond = _is_beyond(np.array(claim['values'], float), side, float(bound))
    if is_beyond.any():
      text += f' ({is_beyond.sum()} of {claim["num_seeds"]} seeds beyond)'
  return text


def _is_beyond(values, side, bound):
  """True for values on the wrong side of a bound; NaN is on neither."""
  return ~(values > bound if side == '>' else values < bound)


def count_all(claims: Iterable[Mapping[str, Any]]) -> str:
  """The `count` of claims, those of ours apart.

  Args:
    claims: Fields of `Claim`s, as JSON types.
  """
  ours, theirs = (
    [one['verdict'] for one in claims if one.get('is_ours', False) == is_ours]
    for is_ours in (True, False)
  )
  texts = [count(theirs)] if theirs or not ours else []
  if ours:
    texts.append(f'ours: {count(ours)}')
  return '; '.join(texts)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
  """Claims as a table for the screen.

  Args:
    rows: The fields of claims, each with its `study`.
  """
  cells = [
    [
      # Once for all of a study's claims.
      '' if before and before['study'] == row['study'] else row['study'],
      textwrap.fill(row['statement'], 44),
      textwrap.fill(row['source'], 16),
      number(row),
      row['threshold'],
      row['num_seeds'],
      row['verdict'],
    ]
    for before, row in zip([None, *rows], rows)
  ]
  return summary_lib.format_table(
    cells,
    ['study', 'claim', 'source', 'measured', 'wanted', 'seeds', 'verdict'],
  )
