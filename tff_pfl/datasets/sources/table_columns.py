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
_ADVICE = (
  "`task='regression'` predicts numbers, `label_above` makes two classes of"
  ' them, `label_values` selects words'
)
# Larger numbers' squares cannot be added up.
_MAX_NUMBER = 1e150


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
    errors.expect(
      self.label_above is None or self.task == 'classification',
      'label_above',
      f'unset with `task` {self.task}',
      self.label_above,
    )
    errors.expect(
      not self.label_values
      or (self.task != 'regression' and self.label_above is None),
      'label_values',
      'unset with `task` regression and with `label_above`',
      self.label_values,
    )
    bounds = list(self.domain_bounds)
    errors.expect(
      bounds == sorted(set(bounds)) and (self.domain or not bounds),
      'domain_bounds',
      'ascending numbers, for a domain column',
      bounds,
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
        errors.expect(
          argument not in single or column not in self.labels,
          argument,
          'another column than the label',
          column,
        )
    if '' in table.cells:
      raise table.error('a name for every column, found one without')

  def with_names(self, table: csv_files.Table) -> csv_files.Table:
    """Returns a table of the columns with words that are `renamed`."""
    cells = dict(table.cells)
    for column in cells.keys() & self.renamed.keys():
      words = list(self.renamed[column])
      new = [*self.renamed[column].values(), None, None]
      found = csv_files.positions_of(cells[column], words)
      cells[column] = [
        new[position] or cell for position, cell in zip(found, cells[column])
      ]
    return table._replace(cells=cells)

  def owned(self, table: csv_files.Table, column: str) -> Sequence[str]:
    """Returns the cells of a column of domains or clients, complete if asked.

    They are empty for rows that are to be left out.
    """
    if self.missing_domain == 'error':
      return table.complete(column)
    cells = table.cells[column]
    if self.missing_domain == 'value':
      return [cell or MISSING for cell in cells]
    return cells

  def domains(self, table: csv_files.Table) -> csv_files.Table:
    """Returns the table with the rows' domains in the domain column."""
    cells = self.owned(table, self.domain)
    if self.domain_bounds:
      numbers = table.numbers(self.domain, '`domain_bounds` needs numbers')
      groups = np.searchsorted(self.domain_bounds, numbers, side='right')
      cells = [
        cell if np.isnan(number) else self._groups[group]
        for cell, number, group in zip(cells, numbers, groups)
      ]
    return table._replace(cells={self.domain: cells})

  @property
  def _groups(self) -> list[str]:
    """What the domains are called that bounds divide numbers into."""
    column, bounds = self.domain, [f'{bound:g}' for bound in self.domain_bounds]
    between = (
      f'{low}<={column}<{high}' for low, high in zip(bounds, bounds[1:])
    )
    return [f'{column}<{bounds[0]}', *between, f'{column}>={bounds[-1]}']

  def domain_names(self, table: csv_files.Table) -> list[str]:
    """Returns what the domains are called, in their order."""
    found = self.domains(table).cells[self.domain]
    if self.domain_bounds:
      return self._groups + [MISSING] * (MISSING in found)
    names = sorted_words(found)
    errors.expect(
      len(names) <= _MAX_DOMAINS,
      'domain_column',
      f'a column of at most {_MAX_DOMAINS} different values, or one of numbers'
      ' with `domain_bounds`',
      f'{self.domain} with {len(names)}',
    )
    return names

  def is_test(self, table: csv_files.Table) -> np.ndarray:
    """Returns which rows the split column has for tests, bool `[rows]`."""
    cells = [cell.lower() for cell in table.complete(self.split)]
    lower = table._replace(cells={self.split: cells})
    return lower.positions(self.split, ('train', 'test')) == 1

  def numbers(self, table: csv_files.Table, column: str) -> np.ndarray:
    """Returns a column of numbers, NaN where missing."""
    advice = (
      'the task regression needs numbers'
      if column == self.label
      else 'name the column in `categorical_columns`, or the word in'
      ' `missing_markers`'
    )
    values = table.numbers(column, advice)
    too_large = np.flatnonzero(np.abs(values) > _MAX_NUMBER)
    if len(too_large):
      raise table.error(
        f'numbers of at most {_MAX_NUMBER:g} in column {column}',
        column,
        too_large[0],
      )
    if column in self.zero_is_missing:
      return np.where(values == 0, np.nan, values)
    return values

  def is_categorical(self, table: csv_files.Table, column: str) -> bool:
    """Returns whether a column is of words, or named as categorical."""
    cells = table.cells[column]
    zero_is_missing = column in self.zero_is_missing
    if column in self.categorical:
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

  def words(self, column: str, cells: Sequence[str]) -> tuple[list[str], bool]:
    """Returns the words that have an input, and whether others share one."""
    words = sorted_words(cells)
    if self.min_category_count is not None:
      counts = collections.Counter(cells)
      kept = [w for w in words if counts[w] >= self.min_category_count]
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

  def label_words(self, table: csv_files.Table) -> csv_files.Table:
    """Returns the table with the words of classes in the label column.

    They are empty for rows that are to be left out.
    """
    cells = table.cells[self.label]
    if self.label_values:
      words, classes = self._words_of_classes()
      # Both missing and unknown are positions from the end.
      classes += ['', '']
      positions = csv_files.positions_of(cells, words)
      cells = [classes[position] for position in positions]
    else:
      table.complete(self.label)
    if self.label_above is not None:
      numbers = table.numbers(self.label, '`label_above` needs numbers')
      is_above = (numbers > self.label_above).astype(int)
      cells = [self._above[number] for number in is_above]
    return table._replace(cells={self.label: cells})

  @property
  def _above(self) -> list[str]:
    """What the two classes of `label_above` are called."""
    return [f'{self.label}{sign}{self.label_above:g}' for sign in ('<=', '>')]

  def _words_of_classes(self) -> tuple[list[str], list[str]]:
    """Returns the words of `label_values`, and each one's class."""
    parts = [value.rpartition(':') for value in self.label_values]
    words = [word or value for word, _, value in parts]
    return words, [value for _, _, value in parts]

  def classes(self, table: csv_files.Table) -> list[str]:
    """Returns what the classes are called, in their order."""
    if self.task == MULTILABEL:
      return self._common_classes(table)
    if self.label_values:
      return self._given_classes(table)
    cells = self.label_words(table).cells[self.label]
    if self.label_above is not None:
      classes = [name for name in self._above if name in cells]
    else:
      classes = self._found_classes(table, cells)
    if len(classes) < 2:
      raise table.error(
        f'rows of two or more classes by {self.label}, found one alone'
      )
    return classes

  def _given_classes(self, table: csv_files.Table) -> list[str]:
    """Returns the classes of `label_values`."""
    words, classes = self._words_of_classes()
    found = csv_files.positions_of(table.cells[self.label], words)
    absent = sorted(set(range(len(words))).difference(found))
    errors.expect(
      not absent and len(set(words)) == len(words),
      'label_values',
      f'different words of the column {self.label}, or WORD:CLASS',
      words[absent[0]] if absent else words,
    )
    classes = list(dict.fromkeys(classes))
    errors.expect(
      len(classes) >= 2, 'label_values', 'two or more classes', classes
    )
    return (
      classes if csv_files.numbers_of(classes)[1] else sorted_words(classes)
    )

  def _found_classes(
    self, table: csv_files.Table, cells: Sequence[str]
  ) -> list[str]:
    """Returns the words or whole numbers that the labels are."""
    numbers, others = csv_files.numbers_of(cells)
    if others:
      classes = sorted_words(cells)
      bad = others if len(others) < len(cells) else []
    else:
      classes = [
        repr(n).removesuffix('.0') for n in np.unique(numbers).tolist()
      ]
      bad = np.flatnonzero(numbers != np.round(numbers)).tolist()
    if len(classes) > 2 and bad:
      raise table.error(
        f'whole numbers, or words alone, as {self.label}',
        self.label,
        bad[0],
        f'; {_ADVICE}',
      )
    errors.expect(
      len(classes) <= _MAX_CLASSES,
      'label_column',
      f'a column of at most {_MAX_CLASSES} classes ({_ADVICE})',
      f'{len(classes)} in {self.label}',
    )
    if len(classes) > _MANY_CLASSES and not others:
      logging.warning(
        '%s: the %d different numbers of column %s are taken for classes; %s.',
        table.path,
        len(classes),
        self.label,
        _ADVICE,
      )
    return classes

  def _common_classes(self, table: csv_files.Table) -> list[str]:
    """Returns the two classes that several columns of labels have alike."""
    errors.expect(
      len(set(self.labels)) == len(self.labels) > 1,
      'label_column',
      f'two or more different columns for the task {MULTILABEL}',
      self.label,
    )
    found = {c.label: c.classes(table) for c in self.by_label()}
    first, *others = found.values()
    errors.expect(
      len(first) == 2 and all(classes == first for classes in others),
      'label_column',
      'columns of the same two words or numbers, such as 0 and 1'
      ' (`label_values` renames them)',
      '; '.join(f'{", ".join(c[:3])} in {label}' for label, c in found.items()),
    )
    return first


def sorted_words(cells: Sequence[str]) -> list[str]:
  """Returns the different cells that are not missing, numbers by value."""
  words = sorted({cell for cell in cells if cell})
  numbers, others = csv_files.numbers_of(words)
  return words if others else [words[i] for i in np.argsort(numbers)]
