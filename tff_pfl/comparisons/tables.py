"""The numbers of an experiment: a data frame with a row for each point."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
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

  def __init__(self, columns: Any):
    """Takes a data frame, or columns by name."""
    self.frame = pd.DataFrame(columns)

  @classmethod
  def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Table:
    """A table of rows, which may lack some of the columns."""
    return cls(list(rows))

  def rows(self) -> list[dict[str, Any]]:
    """The rows, as JSON types."""
    return self.frame.to_dict('records')

  def columns(self) -> dict[str, list[Any]]:
    """The columns, as JSON types."""
    return self.frame.to_dict('list')

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
      column: Column to look up.
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

  def paired_difference(
    self,
    column: str,
    better: Hashable,
    worse: Hashable,
    *,
    by: str = 'method',
    **fixed: Hashable,
  ) -> np.ndarray:
    """The difference between two methods' values of a column, seed by seed.

    Args:
      column: Column to look up.
      better: First method: a value of the column `by`.
      worse: Second method, whose values are subtracted.
      by: Column of the methods, or of others that are compared.
      **fixed: Values of other columns.

    Returns:
      The differences by seed, `[num_seeds]`.
    """
    first, second = (
      self.values(column, **{by: name}, **fixed) for name in (better, worse)
    )
    return first - second

  def curve(
    self, column: str, over: str, **fixed: Hashable
  ) -> tuple[np.ndarray, np.ndarray]:
    """A column's values by those of another one.

    Args:
      column: Column to look up.
      over: Other column.
      **fixed: Values of further columns.

    Returns:
      The distinct values of `over`, `[n]`, and the column's, `[num_seeds, n]`.
    """
    table = self.where(**fixed)
    places = table.distinct(over)
    values = [table.values(column, **{over: place}) for place in places]
    return np.array(places), np.stack(values, axis=1)
