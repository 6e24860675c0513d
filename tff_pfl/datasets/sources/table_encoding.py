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

_AS_TRAINED = ', as in the training data'


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
    """
    columns = self.columns
    table = csv_files.read_table(path, columns.missing_markers)
    needed = [*self.numbers, *self.categories]
    needed += [columns.domain] * bool(self.domains)
    needed += columns.labels * with_labels
    needed += [columns.client] * with_clients
    table.expect_columns(*needed)
    known = {*needed, *columns.labels, columns.client, columns.split}
    more = [c for c in table.cells if c not in known.union(columns.drop)]
    if more:
      logging.warning(
        '%s: columns %s are not used: the training data did not have them.',
        path,
        ', '.join(more),
      )
    return columns.with_names(table)

  def encode(self, table: csv_files.Table) -> Rows:
    """Returns the rows' inputs and domains."""
    numbers = [self.columns.numbers(table, column) for column in self.numbers]
    codes = []
    for column, words in self.categories.items():
      cells = table.cells[column]
      codes.append(csv_files.positions_of(cells, words))
      unknown = np.flatnonzero(codes[-1] == csv_files.UNKNOWN)
      if column in self.grouped:
        codes[-1][unknown] = len(words)
      elif len(unknown):
        logging.warning(
          '%s: in column %s, %d cells, such as %r in row %d after the heading,'
          ' are words that the training data did not have; none of the inputs'
          ' of the column is 1 there.',
          table.path,
          column,
          len(unknown),
          cells[unknown[0]],
          unknown[0] + 1,
        )
    domain = None
    if self.domains:
      domain = self.columns.domains(table).positions(
        self.columns.domain, self.domains, _AS_TRAINED
      )
    shape = -1, table.num_rows
    return Rows(
      np.array(numbers, np.float64).reshape(shape).T,
      np.array(codes, np.int32).reshape(shape).T,
      domain,
    )

  def inputs(self, rows: Rows) -> np.ndarray:
    """Returns encoded rows as a model takes them, float32 `[rows, inputs]`."""
    numbers, codes, _ = rows
    x = np.zeros((len(numbers), len(self.input_names)), np.float32)
    end = len(self.numbers)
    x[:, :end] = standardization.standardized(
      numbers, self.means[:end], self.deviations[:end]
    )
    for column, code in zip(self.categories, codes.T):
      (known,) = np.nonzero(code >= 0)
      x[known, end + code[known]] = 1
      end += len(self.categories[column]) + (column in self.grouped)
    missing = dict(zip(self.numbers, np.isnan(numbers).T))
    missing.update(zip(self.categories, (codes == csv_files.NONE).T))
    for position, column in enumerate(self.indicators, end):
      x[:, position] = missing[column]
    return x

  def labels(self, table: csv_files.Table) -> np.ndarray:
    """Returns the rows' labels.

    Returns:
      Classes, int32 `[rows]`, of several labels `[rows, labels]`; -1 in rows
      that are to be left out; for regression the numbers, float64.
    """
    columns = self.columns
    if columns.task == 'regression':
      table.complete(columns.label)
      return columns.numbers(table, columns.label)
    of_each = [
      c.label_words(table).positions(c.label, self.classes, _AS_TRAINED)
      for c in columns.by_label()
    ]
    if columns.task == table_columns.MULTILABEL:
      return np.stack(of_each, axis=1)
    return of_each[0]

  def target(self, labels: np.ndarray) -> np.ndarray:
    """Returns what models learn: classes, or standardized numbers, float32."""
    if self.classes:
      return labels
    return standardization.standardized(
      labels, self.means[-1], self.deviations[-1]
    )

  def label(self, target: np.ndarray) -> np.ndarray:
    """Returns models' predictions for regression in the label's own unit."""
    return np.asarray(target, np.float64) * self.deviations[-1] + self.means[-1]


def fit(
  table: csv_files.Table, columns: table_columns.Columns
) -> TableEncoding:
  """Returns the encoding of a table, without means and deviations."""
  columns.check(table)
  encoding = TableEncoding(
    columns,
    numbers=[],
    categories={},
    grouped=[],
    indicators=[],
    classes=columns.classes(table) if columns.task != 'regression' else [],
    domains=columns.domain_names(table) if columns.domain else [],
  )
  # A domain that is cut into groups stays an input: a value says more.
  excluded = {*columns.labels, columns.client, columns.split, *columns.drop}
  if not columns.domain_bounds:
    excluded.add(columns.domain)
  for column, cells in table.cells.items():
    if column in excluded:
      continue
    if columns.is_categorical(table, column):
      words, has_others = columns.words(column, cells)
      encoding.categories[column] = words
      encoding.grouped.extend([column] * has_others)
      is_missing = np.array([not cell for cell in cells])
    else:
      encoding.numbers.append(column)
      is_missing = np.isnan(columns.numbers(table, column))
    if is_missing.all():
      raise table.error(
        f'a {column} in some row, found none; name the column in `drop_columns`'
      )
    if columns.missing_indicators and is_missing.any():
      encoding.indicators.append(column)
  if not encoding.numbers and not encoding.categories:
    raise table.error(
      'a column that is an input, found none besides those that are named'
      ' otherwise'
    )
  return encoding
