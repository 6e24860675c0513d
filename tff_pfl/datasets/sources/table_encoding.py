"""How the rows of a table become examples, fitted once and stored with a run.

A column of numbers is one input, a column of words one input for each word (1
for the word that the row has, 0 elsewhere); see `table_columns` for which is
which.

What columns and words there are, how often a word occurs, and which columns
miss values somewhere, is taken from the whole file: it is what clients have to
agree on beforehand. Means and deviations are not, see `tabular`.

The inputs are the columns of numbers in the order of the file, then the words
of each column of categories, then, if asked for, an input for each column that
misses values, which is 1 where it does. A missing number becomes the mean, 0; a
missing category has 0 for all words, and so has a word that only new rows have,
unless the column's rare words share an input.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from absl import logging

from tff_pfl.datasets.sources import (
  csv_files,
  standardization,
  table_columns,
)


class Rows(NamedTuple):
  """Encoded rows of a table, in a compact form.

  Attributes:
    numbers: Float64 `[rows, columns]`, NaN where missing.
    codes: Int32 `[rows, columns]`: which of the column's inputs is 1; negative
      for none.
    domain: Domain ids, int32 `[rows]`, -1 for rows that are to be left out;
      None for a table without domains.
  """

  numbers: np.ndarray
  codes: np.ndarray
  domain: Optional[np.ndarray]

  def select(self, chosen: Union[slice, np.ndarray]) -> 'Rows':
    """Returns some of the rows."""
    return Rows(*(f if f is None else f[chosen] for f in self))


@dataclasses.dataclass(frozen=True)
class TableEncoding:
  """What makes examples of a table's rows.

  Attributes:
    columns: What the columns are.
    numbers: The columns of numbers.
    categories: By column of categories the words that have an input.
    grouped: The columns whose other words share one more input.
    indicators: The columns that have an input which marks missing values.
    classes: What the classes are called, of several labels the two of each;
      empty for regression.
    domains: What the domains are called; empty without.
    means: Those of the columns of numbers, then the label's for regression.
    deviations: By which the same are divided after their mean is subtracted.
  """

  columns: table_columns.Columns
  numbers: Sequence[str]
  categories: Mapping[str, Sequence[str]]
  grouped: Sequence[str]
  indicators: Sequence[str]
  classes: Sequence[str]
  domains: Sequence[str]
  means: Sequence[float] = ()
  deviations: Sequence[float] = ()

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> 'TableEncoding':
    """Returns what `dataclasses.asdict` turned into JSON types."""
    return cls(
      **{**value, 'columns': table_columns.Columns(**value['columns'])}
    )

  @property
  def text(self) -> str:
    """The encoding as one line of JSON."""
    return json.dumps(dataclasses.asdict(self))

  @functools.cached_property
  def input_names(self) -> list[str]:
    """What each input is: `age`, `blood=AB`, `age is missing`."""
    names = list(self.numbers)
    for column, words in self.categories.items():
      names += [f'{column}={word}' for word in words]
      names += [f'other {column}'] * (column in self.grouped)
    return names + [f'{column} is missing' for column in self.indicators]

  def read(
    self, path: str, with_labels: bool = False, with_clients: bool = False
  ) -> csv_files.Table:
    """Reads new rows, of the columns that the encoding was fitted to.

    Columns that are none of these do not count, with a warning.

    Args:
      path: A CSV file; compressed if its name ends in `.gz`.
      with_labels: Whether the label column has to be there.
      with_clients: Whether the client column has to be there.

    Raises:
      ValueError: The file is missing, damaged, or lacks a column.
    """
    columns = self.columns
    table = csv_files.read_table(path, columns.missing_markers)
    needed = [*self.numbers, *self.categories]
    needed += [columns.domain] * bool(self.domains)
    needed += columns.labels * with_labels
    needed += [columns.client] * with_clients
    missing = [c for c in dict.fromkeys(needed) if c not in table.cells]
    if missing:
      raise table.error(
        f'the columns of the training data, found no {", ".join(missing)}'
      )
    known = {*needed, *columns.labels, columns.client, columns.split}
    more = [c for c in table.cells if c not in known.union(columns.drop)]
    if more:
      logging.warning(
        '%s: columns %s are not used: the training data did not have them.',
        path,
        ', '.join(more),
      )
    return table

  def encode(self, table: csv_files.Table) -> Rows:
    """Returns the rows' inputs and domains.

    Raises:
      ValueError: A cell is not what it should be; the message says where.
    """
    table = table_columns.with_names(table, self.columns)
    numbers = [
      table_columns.numbers_of(table, column, self.columns)
      for column in self.numbers
    ]
    codes = []
    for column, words in self.categories.items():
      cells = table.cells[column]
      codes.append(table_columns.positions(cells, words))
      unknown = np.flatnonzero(codes[-1] == table_columns.UNKNOWN)
      if column in self.grouped:
        codes[-1][unknown] = len(words)
      elif len(unknown):
        logging.warning(
          '%s: in column %s, %d cells, such as %r in %s, are words that the'
          ' training data did not have; none of the inputs of the column is 1'
          ' there.',
          table.path,
          column,
          len(unknown),
          cells[unknown[0]],
          csv_files.row_name(unknown[0]),
        )
    shape = -1, table.num_rows
    return Rows(
      np.array(numbers, np.float64).reshape(shape).T,
      np.array(codes, np.int32).reshape(shape).T,
      self._domains(table) if self.domains else None,
    )

  def inputs(self, numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Returns encoded rows as a model takes them, float32 `[rows, inputs]`."""
    x = np.zeros((len(numbers), len(self.input_names)), np.float32)
    end = len(self.numbers)
    x[:, :end] = self._moments(slice(end)).standardize(numbers)
    for column, code in zip(self.categories, codes.T):
      (rows,) = np.nonzero(code >= 0)
      x[rows, end + code[rows]] = 1
      end += len(self.categories[column]) + (column in self.grouped)
    for position, column in enumerate(self.indicators, end):
      if column in self.categories:
        x[:, position] = (
          codes[:, list(self.categories).index(column)] == table_columns.NONE
        )
      else:
        x[:, position] = np.isnan(numbers[:, self.numbers.index(column)])
    return x

  def labels(self, table: csv_files.Table) -> np.ndarray:
    """Returns the rows' labels.

    Returns:
      Classes, int32 `[rows]`, of several labels `[rows, labels]`; -1 in rows
      that are to be left out; for regression the numbers, float64.

    Raises:
      ValueError: A label is missing or of another kind.
    """
    table = table_columns.with_names(table, self.columns)
    if self.columns.task == table_columns.MULTILABEL:
      return np.stack(
        [self._labels(table, c) for c in self.columns.by_label()], axis=1
      )
    return self._labels(table, self.columns)

  def _labels(self, table, columns):
    """Returns the labels of one column."""
    if columns.label_values:
      words, classes = table_columns.label_values(columns)
      position = np.array([self.classes.index(c) for c in classes] + [-1, -1])
      # Both missing and unknown are positions from the end.
      return position[
        table_columns.positions(table.cells[columns.label], words)
      ].astype(np.int32)
    cells = table.complete(columns.label)
    if columns.task == 'regression':
      return table_columns.numbers_of(table, columns.label, columns)
    if columns.label_above is not None:
      numbers = table.numbers(columns.label, '`label_above` needs numbers')
      return (numbers > columns.label_above).astype(np.int32)
    return self._known(table, columns.label, cells, self.classes)

  def target(self, labels: np.ndarray) -> np.ndarray:
    """Returns what models learn: classes, or standardized numbers, float32."""
    if self.classes:
      return labels
    return self._moments(slice(-1, None)).standardize(labels[:, None])[:, 0]

  def label(self, target: np.ndarray) -> np.ndarray:
    """Returns models' predictions for regression in the label's own unit."""
    return np.asarray(target, np.float64) * self.deviations[-1] + self.means[-1]

  def _moments(self, columns: slice) -> standardization.Moments:
    return standardization.Moments(
      np.array(self.means[columns]), np.array(self.deviations[columns])
    )

  def _domains(self, table: csv_files.Table) -> np.ndarray:
    """Returns the rows' domain ids, -1 for rows that are to be left out."""
    columns = self.columns
    cells = table_columns.owned_cells(table, columns.domain, columns)
    if not columns.domain_bounds:
      return self._known(table, columns.domain, cells, self.domains)
    numbers = table.numbers(columns.domain, '`domain_bounds` needs numbers')
    ids = np.searchsorted(columns.domain_bounds, numbers, side='right')
    is_missing = np.isnan(numbers)
    if columns.missing_domain == 'value' and is_missing.any():
      self._known(table, columns.domain, [table_columns.MISSING], self.domains)
      ids[is_missing] = self.domains.index(table_columns.MISSING)
    else:
      ids[is_missing] = table_columns.NONE
    return ids.astype(np.int32)

  def _known(self, table, column, cells, words):
    """Returns which of the words the cells are; `ValueError` for others."""
    positions = table_columns.positions(cells, words)
    unknown = np.flatnonzero(positions == table_columns.UNKNOWN)
    if len(unknown):
      raise table.error(
        f'one of {", ".join(words)} as {column}, as in the training data, found'
        f' {cells[unknown[0]]!r} in {csv_files.row_name(unknown[0])}'
      )
    return positions


def fit(
  table: csv_files.Table, columns: table_columns.Columns
) -> TableEncoding:
  """Returns the encoding of a table, without means and deviations.

  Raises:
    ValueError: A column is not there, misses all values or has too many
      categories, a cell is no number where others of its column are, or there
      is no input.
  """
  columns.check(table)
  table = table_columns.with_names(table, columns)
  classes = (
    []
    if columns.task == 'regression'
    else table_columns.classes_of(table, columns)
  )
  domains = (
    [] if columns.domain is None else table_columns.domain_names(table, columns)
  )
  # A domain that is cut into groups stays an input: a value says more.
  excluded = {*columns.labels, columns.client, columns.split, *columns.drop}
  if not columns.domain_bounds:
    excluded.add(columns.domain)
  numbers: list[str] = []
  categories: dict[str, Sequence[str]] = {}
  grouped: list[str] = []
  indicators: list[str] = []
  for column, cells in table.cells.items():
    if column in excluded:
      continue
    if table_columns.is_categorical(table, column, columns):
      categories[column], has_others = table_columns.words_of(
        column, cells, columns
      )
      grouped += [column] * has_others
      is_missing = np.array([not cell for cell in cells])
    else:
      numbers.append(column)
      is_missing = np.isnan(table_columns.numbers_of(table, column, columns))
    if is_missing.all():
      raise table.error(
        f'a {column} in some row, found none; name the column in `drop_columns`'
      )
    if columns.missing_indicators and is_missing.any():
      indicators.append(column)
  if not numbers and not categories:
    raise table.error(
      'a column that is an input, found none besides those that are named'
      ' otherwise'
    )
  return TableEncoding(
    columns,
    numbers,
    categories,
    grouped,
    indicators,
    classes,
    domains,
  )
