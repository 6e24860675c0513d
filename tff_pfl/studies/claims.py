"""Claims of a study, checked with its numbers.

    claims=[
      better('FedRep', than='FedAvg', source='FedRep, table 1'),
      better('FedRep', than=ALL_OTHERS),
      at_least(0.9, 'FedRep'),
      close('FedAvg', 'FedProx', tolerance=0.01),
    ]

Each claim is checked in every condition. A claim of another form is a function
of the study's numbers, which yields `Claim`s of `measured` and `difference`.

A claim holds, fails, or is undecided. Comparisons of methods are decided by the
95% interval of the mean difference over seeds. Methods share the clients,
initial weights and cohorts of a seed, so differences are taken seed by seed.
The claim holds if the interval lies on the right side of the bound, and fails
if it lies on the wrong side. It is undecided if the interval contains the
bound, or if there are fewer than `MIN_SEEDS` seeds.

A claim about every run holds if no run is on the wrong side of the bound. A
seed is on the wrong side if one of its runs is. If some seeds are, the lower
95% bound of their share among all seeds decides (Clopper and Pearson, one
side). The claim fails if this bound is at least one half, and otherwise it is
undecided. It is also undecided if there are fewer than `MIN_SEEDS` seeds.

Each interval stands alone, so some of many true claims in a table fail by
chance. `decided_by_holm` counts the comparisons that stay decided when the
error of the whole table is limited to 5%.
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
# An interval of fewer seeds says little about other seeds.
MIN_SEEDS = 5
_CONFIDENCE = 0.95


class Claim(NamedTuple):
  """A statement of a paper, reduced to a number.

  Attributes:
    statement: The paper's statement, and the number that represents it.
    source: Its place in the paper, such as 'FedRep, figure 3'.
    measured: The mean over seeds, or the worst number of all runs.
    low: Lower end of the 95% interval of the mean, or None without an interval.
    high: Upper end of the interval.
    threshold: Bound for the number, such as '> 0.98', or '> -0.01 (ours)' if
      the paper has no number for it.
    num_seeds: Number of seeds that it was measured with.
    verdict: `HOLDS`, `FAILS` or `UNDECIDED`.
    decided_by: The 'mean' over seeds, or the 'worst' of all runs.
    values: The number of each seed. For 'worst', that is its worst run.
    p_value: Two-sided p-value of the t-test of the mean against the bound, or
      None without an interval.
    is_ours: True for our variant of a paper's claim or our own question, which
      is not counted among the paper's claims.
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
  values: Any,
  *,
  source: str = '',
  above: Optional[float] = None,
  below: Optional[float] = None,
  of_paper: bool = False,
  is_ours: bool = False,
) -> Claim:
  """A claim about every run, decided by the seeds with a run beyond the bound.

  Args:
    values: Numbers for each seed, `[num_seeds, ...]`. NaN is beyond the bound.
    source: See `Claim`. The default is the study's.
    above: Lower bound of all values. None if `below` is given.
    below: Upper bound of all values. None if `above` is given.
    of_paper: True if the paper has the bound, and not only words such as "close
      to 1".
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
  values: Any,
  *,
  source: str = '',
  above: float = 0,
  below: Optional[float] = None,
  of_paper: bool = False,
  is_ours: bool = False,
) -> Claim:
  """A claim about the mean over seeds, decided by its interval.

  Args:
    values: Numbers `[num_seeds]`, such as one method's accuracies minus
      another's. The claim fails if a number is not finite.
    source: See `Claim`. The default is the study's.
    above: Lower bound of the mean.
    below: Upper bound of the mean. If given, `above` is ignored.
    of_paper: True if the paper has the bound, and not only words such as "no
      difference". The bound 0 always counts as the paper's.
    is_ours: See `Claim`.
  """
  values = np.asarray(values, float)
  mean, low, high, p_value = float(values.mean()), None, None, None
  verdict = UNDECIDED
  if not np.isfinite(values).all():
    # A method that diverged with a seed does not support any claim.
    verdict = FAILS
  elif len(values) >= MIN_SEEDS:
    bound = above if below is None else below
    error, freedom = stats.sem(values), len(values) - 1
    half = stats.t.ppf((1 + _CONFIDENCE) / 2, freedom) * error
    low, high = mean - half, mean + half
    # The error is 0 if all seeds have the same value.
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
  """Decides a claim again, from its stored numbers by seed.

  Args:
    claim: Fields of a `Claim`, as JSON types, with None for NaN.
  """
  side, bound, *ours = claim['threshold'].split()
  decide = difference if claim['decided_by'] == 'mean' else measured
  return decide(
    claim['statement'],
    np.array(claim['values'], float),
    source=claim['source'],
    **{'above' if side == '>' else 'below': float(bound)},
    of_paper=not ours,
    is_ours=claim.get('is_ours', False),
  )


def decided_by_holm(claims: Iterable[Mapping[str, Any]]) -> Optional[int]:
  """The number of comparisons that stay decided with Holm's method.

  Args:
    claims: The fields of all claims of a table. Claims without a p-value are
      not comparisons.

  Returns:
    The number of p-values, in ascending order, before the first that exceeds
    5% divided by the number of p-values from it on. None if there is no
    comparison.
  """
  p_values = sorted(
    claim['p_value'] for claim in claims if claim.get('p_value') is not None
  )
  if not p_values:
    return None
  limits = (1 - _CONFIDENCE) / np.arange(len(p_values), 0, -1)
  return int(np.argmin([*(p_values <= limits), False]))


def each(
  statement: str, places: Iterable[Any], values: np.ndarray, **options: Any
) -> Iterator[Claim]:
  """A claim of `difference` for each place, such as each number of clients.

  Args:
    statement: Format of the statement, which inserts the place.
    values: `[num_seeds, num_places]`.
    **options: `above` or `below`, and `source`.
  """
  for place, of_place in zip(places, np.transpose(values)):
    yield difference(statement.format(place), of_place, **options)


# Check of a study's numbers: `(numbers, study) -> Claim`s.
Check = Callable[[Numbers, Any], Iterable[Claim]]
# Stands for every other method of the study.
ALL_OTHERS = '*'


@fields.dataclass
class MethodCheck:
  """A claim on methods in each condition, as data, see `better`."""

  kind: str
  methods: Any
  others: Any
  bound: fields.Float
  metric: Optional[str] = None
  conditions: Any = None
  source: str = ''
  is_ours: bool = False

  @property
  def named_methods(self) -> list[str]:
    """The methods that it names."""
    both = (*_listed(self.methods), *_listed(self.others))
    return [name for name in both if name != ALL_OTHERS]

  @property
  def named_conditions(self) -> list[str]:
    """The conditions that it names, empty if it is for all."""
    return [] if self.conditions is None else [*_listed(self.conditions)]

  def __call__(self, numbers: Numbers, study: Any) -> Iterator[Claim]:
    """Yields the claims, decided by the study's numbers."""
    metric = self.metric or study.metric
    for name in ('condition', 'method', 'seed', metric):
      errors.expect_one_of('metric', name, list(numbers.frame))
    scored = 'the score' if metric == 'score' else metric.replace('_', ' ')
    for condition in numbers.distinct('condition'):
      if self.conditions is not None and condition not in self.named_conditions:
        continue
      here = numbers.where(condition=condition)
      for name, other in self._pairs(here.distinct('method')):
        if any(here.lacks(metric, one) for one in {name, other} - {None}):
          continue
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
            values,
            source=self.source,
            **{bound: self.bound},
            of_paper=True,
            is_ours=self.is_ours,
          )

  def _pairs(self, known):
    """The compared methods. Others were not selected, or failed."""
    ours, others = (
      [name for name in known if names == ALL_OTHERS or name in names]
      for names in (_listed(self.methods), _listed(self.others))
    )
    if self.kind == 'at_least':
      return [(name, None) for name in ours]
    others = [name for name in others if name not in ours]
    return itertools.product(ours, others)


def _listed(names):
  is_one = isinstance(names, (str, int, float)) and names != ALL_OTHERS
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
    by: The claimed lead, in the unit of the metric.
    **options: `metric`, the column of the numbers (None uses the study's),
      `conditions` of the claim (None means all), `source`, the place of the
      claim, such as 'FedRep, table 1' (by default the study's), and `is_ours`,
      True for our own question, which is counted separately.
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

  Claims on missing numbers, for example of a method that was not selected, are
  left out.
  """
  found = (claim for one in checks for claim in one(numbers, study))
  return [
    claim if claim.source else claim._replace(source=study.source)
    for claim in found
  ]


def _bound(above, below):
  return ('>', above) if below is None else ('<', below)


def _threshold(above, below, of_paper):
  side, bound = _bound(above, below)
  ours = '' if bound == 0 or of_paper else ' (ours)'
  return f'{side} {bound:g}{ours}'


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
  measured = claim['measured']
  text = 'nan' if measured is None else f'{measured:.3g}'
  if claim['low'] is not None:
    text += f' [{claim["low"]:.3g}, {claim["high"]:.3g}]'
  if claim.get('decided_by') == 'worst':
    side, bound = claim['threshold'].split()[:2]
    is_beyond = _is_beyond(np.array(claim['values'], float), side, float(bound))
    if is_beyond.any():
      text += f' ({is_beyond.sum()} of {claim["num_seeds"]} seeds beyond)'
  return text


def _is_beyond(values, side, bound):
  """True for values on the wrong side of a bound, including NaN."""
  return ~(values > bound if side == '>' else values < bound)


def count_all(claims: Iterable[Mapping[str, Any]]) -> str:
  """The `count` of claims, with our own claims counted separately.

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
      # Only on the first of a study's claims.
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
    ['study', 'claim', 'source', 'measured', 'bound', 'seeds', 'verdict'],
  )
