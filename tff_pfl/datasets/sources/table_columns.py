"""What the columns of a table are, and which words and numbers they hold.

One column is the label, or several are (multilabel); one may say which domain a
row is of, one whose row it is (the client: a hospital, a bank), and one whether
it is for training or test; all others are inputs, of numbers or of words.
Columns whose numbers only stand for categories have to be named. A column with
some cells that are numbers and some that are not is an error rather than a
guess.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets.sources import csv_files

MULTILABEL = 'multilabel'
TASKS = ('classification', 'regression', MULTILABEL)
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
NONE, UNKNOWN = -1, -2


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
      ('label_above', self.label_above, 'task', self.task == 'classification'),
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

  @property
  def labels(self) -> list[str]:
    """The columns of labels."""
    return self.label.split(',') if self.task == MULTILABEL else [self.label]

  def by_label(self) -> list['Columns']:
    """The same with each of the labels alone, as classes."""
    return [
      dataclasses.replace(self, label=label, task='classification')
      for label in self.labels
    ]

  def check(self, table: csv_files.Table) -> None:
    """Raises `ValueError` unless all columns that are named are there."""
    single = {
      'domain_column': self.domain,
      'client_column': self.client,
      'split_column': self.split,
    }
    named = {
      'label_column': self.labels,
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
        column not in self.labels,
        argument,
        'another column than the label',
        column,
      )


def clients_of(table: csv_files.Table, columns: Columns) -> np.ndarray:
  """Returns whose each row is, empty for rows that are to be left out."""
  return np.array(owned_cells(table, columns.client, columns))


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


def with_names(table: csv_files.Table, columns: Columns) -> csv_files.Table:
  """Returns the table with other names of words, where it has the columns."""
  cells = dict(table.cells)
  for column, names in columns.renamed.items():
    if column in cells:
      known = list(names)
      new = [*names.values(), None, None]
      found = positions(cells[column], known)
      cells[column] = [
        new[position] or cell for position, cell in zip(found, cells[column])
      ]
  return table._replace(cells=cells)


def positions(cells: Sequence[str], words: Sequence[str]) -> np.ndarray:
  """Returns which of the words each cell is, numbers being equal by value."""
  position = {'': NONE, **{word: i for i, word in enumerate(words)}}
  found = np.array([position.get(cell, UNKNOWN) for cell in cells], np.int32)
  unknown = np.flatnonzero(found == UNKNOWN)
  if len(unknown):
    # 3.0 is 3: whole numbers of a column with gaps are often written so.
    values, _ = csv_files.numbers_of(words)
    by_value = {v: i for i, v in enumerate(values) if not np.isnan(v)}
    values, _ = csv_files.numbers_of([cells[i] for i in unknown])
    found[unknown] = [by_value.get(value, UNKNOWN) for value in values]
  return found


def is_categorical(
  table: csv_files.Table, column: str, columns: Columns
) -> bool:
  """Returns whether a column is of words, or named as categorical."""
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


def numbers_of(
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


def words_of(
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


def label_values(columns: Columns) -> tuple[list[str], list[str]]:
  """Returns the words of `label_values`, and each one's class."""
  parts = [value.rpartition(':') for value in columns.label_values]
  words = [word or value for word, _, value in parts]
  return words, [value for _, _, value in parts]


def classes_of(table: csv_files.Table, columns: Columns) -> list[str]:
  """Returns what the classes are called, in their order."""
  if columns.task == MULTILABEL:
    return _common_classes(table, columns)
  label, above = columns.label, columns.label_above
  if above is not None:
    numbers = table.numbers(label, '`label_above` needs numbers')
    if len(np.unique(numbers > above)) < 2:
      raise _one_class_error(table, label)
    return [f'{label}<={above:g}', f'{label}>{above:g}']
  cells = table.cells[label]
  if columns.label_values:
    words, classes = label_values(columns)
    absent = set(range(len(words))).difference(positions(cells, words))
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


def _common_classes(table: csv_files.Table, columns: Columns) -> list[str]:
  """Returns the two classes that several columns of labels have alike."""
  errors.expect(
    len(set(columns.labels)) == len(columns.labels) > 1,
    'label_column',
    f'two or more different columns for the task {MULTILABEL}',
    columns.label,
  )
  found = {c.label: classes_of(table, c) for c in columns.by_label()}
  first, *others = found.values()
  errors.expect(
    len(first) == 2 and all(classes == first for classes in others),
    'label_column',
    'columns of the same two words or numbers, such as 0 and 1'
    ' (`label_values` renames them)',
    '; '.join(f'{", ".join(c[:3])} in {label}' for label, c in found.items()),
  )
  return first


def _one_class_error(table: csv_files.Table, label: str) -> ValueError:
  return table.error(f'rows of two or more classes by {label}, found one alone')


def _are_numbers(words: Sequence[str]) -> bool:
  return not csv_files.numbers_of(words)[1]


def owned_cells(
  table: csv_files.Table, column: str, columns: Columns
) -> list[str]:
  """Returns the cells of a column of domains or clients, complete if asked."""
  if columns.missing_domain == 'error':
    table.complete(column)
  if columns.missing_domain == 'value' and not columns.domain_bounds:
    return [cell or MISSING for cell in table.cells[column]]
  return list(table.cells[column])


def domain_names(table: csv_files.Table, columns: Columns) -> list[str]:
  """Returns what the domains are called, in their order."""
  column, bounds = columns.domain, columns.domain_bounds
  cells = owned_cells(table, column, columns)
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
