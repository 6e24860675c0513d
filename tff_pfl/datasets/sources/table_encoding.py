"""How the rows of a table become examples, fitted once and stored with a run.

One column is the label; one may say which domain a row is of, one whose row it
is (the client: a hospital, a bank), and one whether it is for training or test;
all others are inputs. A column of numbers is one input, a column of other words
one input for each word (1 for the word that the row has, 0 elsewhere). Columns
whose numbers only stand for categories have to be named. A column with some
cells that are numbers and some that are not is an error rather than a guess.

What columns and words there are, how often a word occurs, and which columns
miss values somewhere, is taken from the whole file: it is what clients have to
agree on beforehand. Means and deviations are not, see `tabular`.

The inputs are the columns of numbers in the order of the file, then the words
of each column of categories, then, if asked for, an input for each column that
misses values, which is 1 where it does. A missing number becomes the mean, 0; a
missing category has 0 for all words, and so has a word that only new rows have,
unless the column's rare words share an input.
"""

import collections
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets.sources import csv_files, standardization

TASKS = ('classification', 'regression')
MISSING_DOMAIN = ('error', 'drop', 'value')
# What rows without a domain or client have, where that is a value of its own.
MISSING = '(missing)'
# More words than these in a column are free text or row numbers.
_MAX_CATEGORIES = 1000
_MAX_DOMAINS = 100
_MAX_CLASSES = 100
# More numbers than these as classes may be meant as numbers.
_MANY_CLASSES = 20
# Larger numbers' squares cannot be added up.
_MAX_NUMBER = 1e150
# In place of a word's position.
_NONE, _UNKNOWN = -1, -2


@dataclasses.dataclass(frozen=True)
class Columns:
  """What the columns of a table are; see `tabular.load_tabular` for each.

  Attributes:
    renamed: By column, what words, or numbers, are called instead.
  """

  label: str
  domain: Optional[str] = None
  client: Optional[str] = None
  split: Optional[str] = None
  drop: Sequence[str] = ()
  categorical: Sequence[str] = ()
  zero_is_missing: Sequence[str] = ()
  missing_markers: Sequence[str] = csv_files.MISSING_MARKERS
  task: str = 'classification'
  label_above: Optional[float] = None
  label_values: Sequence[str] = ()
  domain_bounds: Sequence[float] = ()
  missing_domain: str = 'error'
  missing_indicators: bool = False
  min_category_count: Optional[int] = None
  renamed: Mapping[str, Mapping[str, str]] = dataclasses.field(
    default_factory=dict
  )

  def __post_init__(self):
    errors.expect_one_of('task', self.task, TASKS)
    errors.expect_one_of('missing_domain', self.missing_domain, MISSING_DOMAIN)
    if self.min_category_count is not None:
      errors.expect_int('min_category_count', self.min_category_count, 1)
    for name, value, other, is_unset in (
      ('label_above', self.label_above, 'task', self.task != 'regression'),
      ('label_values', self.label_values, 'task', self.task != 'regression'),
      (
        'label_values',
        self.label_values,
        'label_above',
        self.label_above is None,
      ),
    ):
      errors.expect(
        value in (None, (), []) or is_unset,
        name,
        f'unset with `{other}` {getattr(self, other)}',
        value,
      )
    bounds = list(self.domain_bounds)
    errors.expect(
      self.domain is not None or not bounds,
      'domain_bounds',
      'given with a domain column only',
      bounds,
    )
    errors.expect(
      bounds == sorted(set(bounds)), 'domain_bounds', 'ascending', bounds
    )

  def check(self, table: csv_files.Table) -> None:
    """Raises `ValueError` unless all columns that are named are there."""
    single = {
      'domain_column': self.domain,
      'client_column': self.client,
      'split_column': self.split,
    }
    named = {
      'label_column': [self.label],
      **{name: [c] for name, c in single.items() if c is not None},
      'drop_columns': self.drop,
      'categorical_columns': self.categorical,
      'zero_is_missing_columns': self.zero_is_missing,
    }
    for argument, columns in named.items():
      for column in columns:
        errors.expect(
          column in table.cells,
          argument,
          f'one of the columns of {table.path} ({", ".join(table.cells)})',
          column,
        )
    for argument, column in single.items():
      errors.expect(
        column != self.label,
        argument,
        'another column than the label',
        self.label,
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
    classes: What the classes are called; empty for regression.
    domains: What the domains are called; empty without.
    means: Of the columns of numbers, and then of the label for regression.
    deviations: By which the same are divided after their mean is subtracted.
  """

  columns: Columns
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
    return cls(**{**value, 'columns': Columns(**value['columns'])})

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
    needed += [columns.label] * with_labels
    needed += [columns.client] * with_clients
    missing = [c for c in dict.fromkeys(needed) if c not in table.cells]
    if missing:
      raise table.error(
        f'the columns of the training data, found no {", ".join(missing)}'
      )
    known = {*needed, columns.label, columns.client, columns.split}
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
    table = _renamed(table, self.columns)
    numbers = [_numbers(table, column, self.columns) for column in self.numbers]
    codes = []
    for column, words in self.categories.items():
      cells = table.cells[column]
      codes.append(_positions(cells, words))
      unknown = np.flatnonzero(codes[-1] == _UNKNOWN)
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
        x[:, position] = codes[:, list(self.categories).index(column)] == _NONE
      else:
        x[:, position] = np.isnan(numbers[:, self.numbers.index(column)])
    return x

  def labels(self, table: csv_files.Table) -> np.ndarray:
    """Returns the rows' labels.

    Returns:
      Classes, int32 `[rows]`, -1 for rows that are to be left out; for
      regression the numbers, float64.

    Raises:
      ValueError: A label is missing or of another kind.
    """
    columns = self.columns
    table = _renamed(table, columns)
    if columns.label_values:
      words, classes = _label_values(columns)
      position = np.array([self.classes.index(c) for c in classes] + [-1, -1])
      # Both missing and unknown are positions from the end.
      return position[_positions(table.cells[columns.label], words)].astype(
        np.int32
      )
    cells = table.complete(columns.label)
    if columns.task == 'regression':
      return _numbers(table, columns.label, columns)
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
    cells = _owned_cells(table, columns.domain, columns)
    if not columns.domain_bounds:
      return self._known(table, columns.domain, cells, self.domains)
    numbers = table.numbers(columns.domain, '`domain_bounds` needs numbers')
    ids = np.searchsorted(columns.domain_bounds, numbers, side='right')
    is_missing = np.isnan(numbers)
    if columns.missing_domain == 'value' and is_missing.any():
      self._known(table, columns.domain, [MISSING], self.domains)
      ids[is_missing] = self.domains.index(MISSING)
    else:
      ids[is_missing] = _NONE
    return ids.astype(np.int32)

  def _known(self, table, column, cells, words):
    """Returns which of the words the cells are; `ValueError` for others."""
    positions = _positions(cells, words)
    unknown = np.flatnonzero(positions == _UNKNOWN)
    if len(unknown):
      raise table.error(
        f'one of {", ".join(words)} as {column}, as in the training data, found'
        f' {cells[unknown[0]]!r} in {csv_files.row_name(unknown[0])}'
      )
    return positions


def clients_of(table: csv_files.Table, columns: Columns) -> np.ndarray:
  """Returns whose each row is, empty for rows that are to be left out."""
  return np.array(_owned_cells(table, columns.client, columns))


def is_test(table: csv_files.Table, columns: Columns) -> np.ndarray:
  """Returns which rows the split column has for tests, bool `[rows]`."""
  cells = [cell.lower() for cell in table.complete(columns.split)]
  for number, cell in enumerate(cells):
    if cell not in ('train', 'test'):
      raise table.error(
        f'train or test in column {columns.split}, found'
        f' {table.cells[columns.split][number]!r} in'
        f' {csv_files.row_name(number)}'
      )
  return np.array(cells) == 'test'


def fit(table: csv_files.Table, columns: Columns) -> TableEncoding:
  """Returns the encoding of a table, without means and deviations.

  Raises:
    ValueError: A column is not there, misses all values or has too many
      categories, a cell is no number where others of its column are, or there
      is no input.
  """
  columns.check(table)
  table = _renamed(table, columns)
  classes = [] if columns.task == 'regression' else _classes(table, columns)
  domains = [] if columns.domain is None else _domain_names(table, columns)
  # A domain that is cut into groups stays an input: a value says more.
  excluded = {columns.label, columns.client, columns.split, *columns.drop}
  if not columns.domain_bounds:
    excluded.add(columns.domain)
  numbers: list[str] = []
  categories: dict[str, Sequence[str]] = {}
  grouped: list[str] = []
  indicators: list[str] = []
  for column, cells in table.cells.items():
    if column in excluded:
      continue
    if _is_categorical(table, column, columns):
      categories[column], has_others = _words(column, cells, columns)
      grouped += [column] * has_others
      is_missing = np.array([not cell for cell in cells])
    else:
      numbers.append(column)
      is_missing = np.isnan(_numbers(table, column, columns))
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


def _renamed(table: csv_files.Table, columns: Columns) -> csv_files.Table:
  """Returns the table with other names of words, where it has the columns."""
  cells = dict(table.cells)
  for column, names in columns.renamed.items():
    if column in cells:
      known = list(names)
      new = [*names.values(), None, None]
      positions = _positions(cells[column], known)
      cells[column] = [
        new[position] or cell
        for position, cell in zip(positions, cells[column])
      ]
  return table._replace(cells=cells)


def _positions(cells: Sequence[str], words: Sequence[str]) -> np.ndarray:
  """Returns which of the words each cell is, numbers being equal by value."""
  position = {'': _NONE, **{word: i for i, word in enumerate(words)}}
  found = np.array([position.get(cell, _UNKNOWN) for cell in cells], np.int32)
  unknown = np.flatnonzero(found == _UNKNOWN)
  if len(unknown):
    # 3.0 is 3: whole numbers of a column with gaps are often written so.
    values, _ = csv_files.numbers_of(words)
    by_value = {v: i for i, v in enumerate(values) if not np.isnan(v)}
    values, _ = csv_files.numbers_of([cells[i] for i in unknown])
    found[unknown] = [by_value.get(value, _UNKNOWN) for value in values]
  return found


def _is_categorical(
  table: csv_files.Table, column: str, columns: Columns
) -> bool:
  cells = table.cells[column]
  zero_is_missing = column in columns.zero_is_missing
  if column in columns.categorical:
    errors.expect(
      not zero_is_missing,
      'zero_is_missing_columns',
      'columns of numbers',
      column,
    )
    return True
  _, others = csv_files.numbers_of(cells)
  all_words = bool(others) and len(others) == sum(map(bool, cells))
  return all_words and not zero_is_missing


def _numbers(
  table: csv_files.Table, column: str, columns: Columns
) -> np.ndarray:
  """Returns a column of numbers, NaN where missing."""
  advice = (
    'the task regression needs numbers'
    if column == columns.label
    else 'name the column in `categorical_columns`, or the word in'
    ' `missing_markers`'
  )
  values = table.numbers(column, advice)
  too_large = np.flatnonzero(np.abs(values) > _MAX_NUMBER)
  if len(too_large):
    raise table.error(
      f'numbers of at most {_MAX_NUMBER:g} in column {column}, found'
      f' {table.cells[column][too_large[0]]!r} in'
      f' {csv_files.row_name(too_large[0])}'
    )
  if column in columns.zero_is_missing:
    return np.where(values == 0, np.nan, values)
  return values


def _words(
  column: str, cells: Sequence[str], columns: Columns
) -> tuple[list[str], bool]:
  """Returns the words that have an input, and whether others share one."""
  words = _sorted_words(cells)
  if columns.min_category_count is not None:
    counts = collections.Counter(cells)
    kept = [w for w in words if counts[w] >= columns.min_category_count]
    return kept, len(kept) < len(words)
  errors.expect(
    len(words) <= _MAX_CATEGORIES,
    'categorical_columns',
    f'columns of at most {_MAX_CATEGORIES} different words (give'
    ' `min_category_count` to group rare words, or name others in'
    ' `drop_columns`)',
    f'{column} with {len(words)}',
  )
  return words, False


def _sorted_words(cells: Sequence[str]) -> list[str]:
  """Returns the different cells that are not missing, numbers by value."""
  words = sorted({cell for cell in cells if cell})
  numbers, others = csv_files.numbers_of(words)
  return words if others else [words[i] for i in np.argsort(numbers)]


def _label_values(columns: Columns) -> tuple[list[str], list[str]]:
  """Returns the words of `label_values`, and each one's class."""
  parts = [value.rpartition(':') for value in columns.label_values]
  words = [word or value for word, _, value in parts]
  return words, [value for _, _, value in parts]


def _classes(table: csv_files.Table, columns: Columns) -> list[str]:
  """Returns what the classes are called, in their order."""
  label, above = columns.label, columns.label_above
  if above is not None:
    numbers = table.numbers(label, '`label_above` needs numbers')
    if len(np.unique(numbers > above)) < 2:
      raise _one_class_error(table, label)
    return [f'{label}<={above:g}', f'{label}>{above:g}']
  cells = table.cells[label]
  if columns.label_values:
    words, classes = _label_values(columns)
    absent = set(range(len(words))).difference(_positions(cells, words))
    errors.expect(
      not absent and len(set(words)) == len(words),
      'label_values',
      f'different words of the column {label}, or WORD:CLASS',
      words[min(absent)] if absent else words,
    )
    classes = list(dict.fromkeys(classes))
    errors.expect(
      len(classes) >= 2, 'label_values', 'two or more classes', classes
    )
    return _sorted_words(classes) if _are_numbers(classes) else classes
  cells = table.complete(label)
  numbers, others = csv_files.numbers_of(cells)
  if others:
    classes = _sorted_words(cells)
    bad = others if 0 < len(others) < len(cells) else []
  else:
    classes = [repr(n).removesuffix('.0') for n in np.unique(numbers).tolist()]
    bad = np.flatnonzero(numbers != np.round(numbers)).tolist()
  if len(classes) > 2 and bad:
    raise table.error(
      f'whole numbers, or words alone, as {label}, found {cells[bad[0]]!r} in'
      f" {csv_files.row_name(bad[0])}; give `task='regression'` to predict"
      ' numbers, `label_above` to make two classes of them, or `label_values`'
    )
  errors.expect(
    len(classes) <= _MAX_CLASSES,
    'label_column',
    f"a column of at most {_MAX_CLASSES} classes (`task='regression'` predicts"
    ' numbers, `label_above` makes two classes of them, `label_values` selects'
    ' words)',
    f'{len(classes)} in {label}',
  )
  if len(classes) > _MANY_CLASSES and not others:
    logging.warning(
      '%s: the %d different numbers of column %s are taken for classes; give'
      " task='regression' if they are to be predicted as numbers.",
      table.path,
      len(classes),
      label,
    )
  if len(classes) < 2:
    raise _one_class_error(table, label)
  return classes


def _one_class_error(table: csv_files.Table, label: str) -> ValueError:
  return table.error(f'rows of two or more classes by {label}, found one alone')


def _are_numbers(words: Sequence[str]) -> bool:
  return not csv_files.numbers_of(words)[1]


def _owned_cells(
  table: csv_files.Table, column: str, columns: Columns
) -> list[str]:
  """Returns the cells of a column of domains or clients, complete if asked."""
  if columns.missing_domain == 'error':
    table.complete(column)
  if columns.missing_domain == 'value' and not columns.domain_bounds:
    return [cell or MISSING for cell in table.cells[column]]
  return list(table.cells[column])


def _domain_names(table: csv_files.Table, columns: Columns) -> list[str]:
  """Returns what the domains are called, in their order."""
  column, bounds = columns.domain, columns.domain_bounds
  cells = _owned_cells(table, column, columns)
  if bounds:
    table.numbers(column, '`domain_bounds` needs numbers')
    between = (
      f'{low:g}<={column}<{high:g}' for low, high in zip(bounds, bounds[1:])
    )
    names = [
      f'{column}<{bounds[0]:g}',
      *between,
      f'{column}>={bounds[-1]:g}',
    ]
    is_value = columns.missing_domain == 'value'
    return names + [MISSING] * (is_value and '' in cells)
  names = _sorted_words(cells)
  errors.expect(
    len(names) <= _MAX_DOMAINS,
    'domain_column',
    f'a column of at most {_MAX_DOMAINS} different values, or one of numbers'
    ' with `domain_bounds`',
    f'{column} with {len(names)}',
  )
  return names
