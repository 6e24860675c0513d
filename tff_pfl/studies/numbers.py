"""The numbers of a study: a data frame with a row for each point."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd

from tff_pfl import errors

SEED, FOLD = 'seed', 'fold'


def by_seed(values: pd.Series) -> pd.Series:
  """The means over folds; one that is not finite counts."""
  if not len(values):
    return values
  grouped = values.groupby(level=SEED)
  return grouped.agg(lambda of_seed: of_seed.mean(skipna=False))


class Numbers:
  """A data frame, of which `seed` is a column.

  Values are looked up by seed, in the order of the seeds, so that two methods'
  values of one study are paired.

  Attributes:
    frame: The data frame.
    higher_is_better: False for columns of which less is better.
  """

  def __init__(
    self, rows: Any, higher_is_better: Optional[Mapping[str, bool]] = None
  ):
    """Takes whatever makes a data frame; rows may lack some of the columns."""
    self.frame = pd.DataFrame(rows)
    self.higher_is_better = dict(higher_is_better or {})

  def where(self, **fixed: Hashable) -> Numbers:
    """The rows that have these values in the columns of these names."""
    frame = self.frame
    for name, value in fixed.items():
      frame = frame[frame[name] == value]
    return Numbers(frame, self.higher_is_better)

  def distinct(self, column: str, **fixed: Hashable) -> list[Any]:
    """The values of a column in the order in which they come."""
    return self.where(**fixed).frame[column].drop_duplicates().tolist()

  def values(self, column: str, **fixed: Hashable) -> np.ndarray:
    """A column's values by seed, `[num_seeds]`; means over folds.

    Args:
      **fixed: Values of other columns, which together name one row of a seed.

    Raises:
      ValueError: If they name no row, or several of a seed.
    """
    return by_seed(self._by_run(column, **fixed)).to_numpy()

  def _by_run(self, column, **fixed):
    """A column by seed and fold."""
    frame = self.where(**fixed).frame
    keys = [name for name in (SEED, FOLD) if name in frame]
    errors.expect(
      len(frame) and not frame.duplicated(keys).any(),
      'columns',
      'that name one row of each seed',
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
    """One method's values of a column less another's by seed, `[num_seeds]`.

    Seeds, and folds, that one of them lacks are left out.

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
    """A column's values by those of another one, `[num_seeds, n]`.

    Args:
      over: The other column, whose distinct values are in their order.
      **fixed: Values of further columns.
    """
    rows = self.where(**fixed)
    return np.stack(
      [rows.values(column, **{over: place}) for place in rows.distinct(over)],
      axis=1,
    )
