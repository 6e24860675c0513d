"""The numbers of an experiment: a data frame with a row for each point."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd

from tff_pfl import errors

SEED = 'seed'


class Table:
  """A data frame, of which `seed` is a column.

  Values are looked up by seed, in the order of the seeds, so that two methods'
  values of one experiment are paired.

  Attributes:
    frame: The data frame.
  """

  def __init__(self, rows: Any):
    """Takes whatever makes a data frame; rows may lack some of the columns."""
    self.frame = pd.DataFrame(rows)

  def where(self, **fixed: Hashable) -> Table:
    """The rows that have these values in the columns of these names."""
    frame = self.frame
    for name, value in fixed.items():
      frame = frame[frame[name] == value]
    return Table(frame)

  def distinct(self, column: str, **fixed: Hashable) -> list[Any]:
    """The values of a column in the order in which they come."""
    return self.where(**fixed).frame[column].drop_duplicates().tolist()

  def values(self, column: str, **fixed: Hashable) -> np.ndarray:
    """A column's values by seed, `[num_seeds]`.

    Args:
      **fixed: Values of other columns, which together name one row of a seed.

    Raises:
      ValueError: If they name no row, or several of a seed.
    """
    frame = self.where(**fixed).frame.sort_values(SEED)
    errors.expect(
      len(frame) and frame[SEED].is_unique,
      'columns',
      'that name one row of each seed',
      fixed,
    )
    return frame[column].to_numpy()

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

    Args:
      better: First method: a value of the column `by`.
      worse: Second method, whose values are subtracted.
      **fixed: Values of other columns.
    """
    return self.values(column, **{by: better}, **fixed) - self.values(
      column, **{by: worse}, **fixed
    )

  def curve(self, column: str, over: str, **fixed: Hashable) -> np.ndarray:
    """A column's values by those of another one, `[num_seeds, n]`.

    Args:
      over: The other column, whose distinct values are in their order.
      **fixed: Values of further columns.
    """
    table = self.where(**fixed)
    return np.stack(
      [table.values(column, **{over: place}) for place in table.distinct(over)],
      axis=1,
    )
