"""The numbers of an experiment: a row for each point, with its seed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_pfl import errors

SEED = 'seed'


class Table:
  """Rows with columns by name, of which `seed` is one.

  What is looked up comes by seed, in the order of the seeds, so that two
  methods' values of one experiment are paired.
  """

  def __init__(self, columns: Mapping[str, Sequence[Any]]):
    """Takes the columns, all of one length.

    Args:
      columns: By name numbers (None for NaN) or words, one for each row.
    """
    self._columns = {n: _array(values) for n, values in columns.items()}

  @classmethod
  def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Table:
    """A table of rows, which may lack some of the columns."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return cls({name: [row.get(name) for row in rows] for name in names})

  def rows(self) -> list[dict[str, Any]]:
    """The rows, as JSON types."""
    columns = [values.tolist() for values in self._columns.values()]
    return [dict(zip(self._columns, row)) for row in zip(*columns)]

  def columns(self) -> dict[str, list[Any]]:
    """The columns, as JSON types."""
    return {name: values.tolist() for name, values in self._columns.items()}

  def where(self, **fixed: Hashable) -> Table:
    """The rows that have these values in the columns of these names."""
    if not fixed:
      return self
    chosen = np.all(
      [self._columns[name] == value for name, value in fixed.items()], axis=0
    )
    return Table({n: values[chosen] for n, values in self._columns.items()})

  def distinct(self, column: str, **fixed: Hashable) -> list[Any]:
    """The values of a column in the order in which they come."""
    table = self.where(**fixed)
    return list(dict.fromkeys(table._columns[column].tolist()))

  def values(self, column: str, **fixed: Hashable) -> np.ndarray:
    """A column's values by seed, `[num_seeds]`.

    Args:
      **fixed: Values of other columns, which together name one row of a seed.

    Raises:
      ValueError: If they name none, or several of a seed.
    """
    chosen = self.where(**fixed)._columns
    seeds, order = np.unique(chosen[SEED], return_index=True)
    errors.expect(
      0 < len(seeds) == len(chosen[SEED]),
      'columns',
      'that name one row of each seed',
      fixed,
    )
    return chosen[column][order]

  def lead(
    self,
    column: str,
    better: Hashable,
    worse: Hashable,
    *,
    by: str = 'method',
    **fixed: Hashable,
  ) -> np.ndarray:
    """By how much a column is larger for one method than for another.

    Args:
      better: The first method: a value of the column `by`.
      worse: The second one.
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
    """A column's values against those of another one.

    Returns:
      The distinct values of `over`, `[n]`, and the column's, `[num_seeds, n]`.
    """
    table = self.where(**fixed)
    places = table.distinct(over)
    of_places = [table.values(column, **{over: place}) for place in places]
    return np.array(places), np.stack(of_places, axis=1)


def _array(values):
  if isinstance(values, np.ndarray):
    # A part of another table's column.
    return values
  values = list(values)
  if any(isinstance(v, str) for v in values):
    # Words where there are any, such as the names of layers among numbers.
    return np.array(values, object)
  if any(v is None for v in values):
    return np.array([np.nan if v is None else v for v in values], float)
  return np.array(values)


def mean_and_spread(values: Any) -> tuple[Any, Any]:
  """The mean and the sample standard deviation over the first axis.

  Args:
    values: `[num_seeds, ...]`; the deviation of a single seed is 0.
  """
  values = np.asarray(values, float)
  return values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
