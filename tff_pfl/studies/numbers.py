"""The numbers of a study: a data frame with a row for each point."""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd

from tff_pfl import errors

SEED, FOLD = 'seed', 'fold'


def by_seed(values: pd.Series) -> pd.Series:
  """The means over folds, including folds that are not finite."""
  if not len(values):
    return values
  grouped = values.groupby(level=SEED)
  return grouped.agg(lambda of_seed: of_seed.mean(skipna=False))


class Numbers:
  """A data frame with a column `seed`.

  Values are looked up by seed, in the order of the seeds, so two methods'
  values in one study are paired.

  Attributes:
    frame: The data frame.
    higher_is_better: False for columns in which lower is better.
  """

  def __init__(
    self, rows: Any, higher_is_better: Optional[Mapping[str, bool]] = None
  ):
    """Takes any input of a data frame. Rows may lack some of the columns."""
    self.frame = pd.DataFrame(rows)
    self.higher_is_better = dict(higher_is_better or {})

  def where(self, **fixed: Hashable) -> Numbers:
    """The rows that have these values in the named columns."""
    frame = self.frame
    if fixed:
      is_equal = (frame[name] == value for name, value in fixed.items())
      frame = frame[functools.reduce(operator.and_, is_equal)]
    return Numbers(frame, self.higher_is_better)

  def distinct(self, column: str, **fixed: Hashable) -> list[Any]:
    """The distinct values of a column, in order of appearance."""
    return self.where(**fixed).frame[column].drop_duplicates().tolist()

  def values(self, column: str, **fixed: Hashable) -> np.ndarray:
    """A column's values by seed, `[num_seeds]`, as means over folds.

    Args:
      **fixed: Values of other columns, which together select one row of a seed
        and fold.

    Raises:
      ValueError: If they select no row, or several rows of a seed and fold.
    """
    return by_seed(self._by_run(column, **fixed)).to_numpy()

  def lacks(self, column: str, method: Hashable) -> bool:
    """True for a method with scores that has no figure of this kind."""
    frame = self.where(method=method).frame
    scores = frame.get('score', frame[column])
    return bool(frame[column].isna().all() and scores.notna().any())

  def _by_run(self, column, **fixed):
    """A column by seed and fold."""
    frame = self.where(**fixed).frame
    keys = [name for name in (SEED, FOLD) if name in frame]
    errors.expect(
      len(frame) and not frame.duplicated(keys).any(),
      'columns',
      'values that name one row of each seed',
      fixed,
    )
    return frame.set_index(keys)[column]

  def lead(
    self,
    column: str,
    better: Hashable,
    worse: Hashable,
    *,
    by: str = 'method',
    **fixed: Hashable,
  ) -> np.ndarray:
    """One method's values minus another's in a column by seed, `[num_seeds]`.

    Seeds and folds that one of the methods lacks are left out.

    Args:
      better: First method: a value of the column `by`.
      worse: Second method, whose values are subtracted.
      **fixed: Values of other columns.
    """
    first, second = (
      self._by_run(column, **{by: name}, **fixed) for name in (better, worse)
    )
    both = first.index.intersection(second.index)
    return by_seed(first[both] - second[both]).to_numpy()

  def curve(self, column: str, over: str, **fixed: Hashable) -> np.ndarray:
    """A column's values at each value of another column, `[num_seeds, n]`.

    Args:
      over: The other column, with `n` distinct values in order of appearance.
      **fixed: Values of further columns.
    """
    rows = self.where(**fixed)
    return np.stack(
      [rows.values(column, **{over: place}) for place in rows.distinct(over)],
      axis=1,
    )
