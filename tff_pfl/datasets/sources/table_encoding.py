"""The encoding of a table's rows as examples, stored with a run.

One column is the label, or several are (multilabel). Others may give a row's
domain, its client (a hospital, a bank), its split (training or test) and its
weight in the training loss; all remaining columns are inputs. A column of
numbers becomes one input, standardized; a column of words one input for each
word (1 for the row's word, else 0). Columns whose numbers only stand for
categories have to be named. A column with both numbers and other cells is an
error rather than a guess.

The columns, their words, the words' counts and the columns with missing values
are taken from the whole file: clients have to agree on them beforehand. Means
and deviations are not, see `tabular`.

The inputs are the columns of numbers in the order of the file, then the words
of each column of categories, then, if asked for, an input for each column with
missing values, which is 1 where one is missing. A missing number becomes the
mean, 0; a missing category has 0 for all words, and so has a word that only new
rows have, unless the column's rare words share an input.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets.sources import table_files

MULTILABEL = 'multilabel'
TASKS = ('classification', 'regression', MULTILABEL)
MISSING_DOMAIN = ('error', 'drop', 'value')
MISSING_LABEL = ('error', 'drop')
# The domain or client of rows without one, if these are one of their own.
MISSING = '(missing)'
# A column with more words is free text or row numbers, and so is one with
# another word in nearly every row.
_MAX_CATEGORIES = 1000
_MIN_FREE_TEXTS = 50
_MAX_DOMAINS = 100
_MAX_CLASSES = 100
# More classes that are numbers may be meant for regression.
_MANY_CLASSES = 20
_ADVICE = (
  "`task='regression'` predicts numbers, `label_above` makes two classes of"
  ' them, `label_values` selects words'
)
# Larger numbers' squares cannot be added up.
_MAX_NUMBER = 1e150
_OTHER_FORM = '`decimal` or `thousands` read such numbers'
_AS_TRAINED = ', as in the training data'
# Most of a column's cells decide its kind.
_MOST = 0.9
_LIKE_NUMBERS = r"[-+]?(?:\d+(?:[.,' \u00a0\u202f]\d{3})*(?:[.,]\d*)?|[.,]\d+)"
_LIKE_QUANTITIES = r'[-+$€£]?[.,]?\d.*'


@dataclasses.dataclass(frozen=True)
class Columns:
  """The roles of a table's columns; see `tabular.load_tabular` for each.

  Attributes:
    renamed: Column to new names of its words or numbers.
    form: Form of the file.
  """

  label: str
  domain: Optional[str] = None
  client: Optional[str] = None
  split: Optional[str] = None
  drop: Sequence[str] = ()
  categorical: Sequence[str] = ()
  zero_is_missing: Sequence[str] = ()
  task: str = 'classification'
  label_above: Optional[float] = None
  label_values: Sequence[str] = ()
  missing_label: str = 'error'
  domain_bounds: Sequence[float] = ()
  missing_domain: str = 'error'
  missing_indicators: bool = False
  min_category_count: Optional[int] = None
  renamed: Mapping[str, Mapping[str, str]] = dataclasses.field(
    default_factory=dict
  )
  form: table_files.Format = table_files.Format()
  weight: Optional[str] = None

  def __post_init__(self):
    errors.expect_one_of('task', self.task, TASKS)
    errors.expect_one_of('missing_domain', self.missing_domain, MISSING_DOMAIN)
    errors.expect_one_of('missing_label', self.missing_label, MISSING_LABEL)
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
    words = self._class_of_word
    errors.expect(
      len(words) == len(self.label_values)
      and '' not in {*words, *words.values()},
      'label_values',
      'different words, or WORD:CLASS',
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

  @property
  def _class_of_word(self) -> dict[str, str]:
    """The class of each word of `label_values`."""
    parts = [value.rpartition(':') for value in self.label_values]
    return {word if colon else c: c for word, colon, c in parts}

  def check(self, table: pd.DataFrame) -> None:
    """Raises `ValueError` unless the table has all named columns."""
    others = {
      'domain_column': self.domain,
      'client_column': self.client,
      'split_column': self.split,
      'weight_column': self.weight,
    }
    named = {
      'label_column': self.labels,
      **{name: [c] for name, c in others.items() if c is not None},
      'drop_columns': self.drop,
      'categorical_columns': self.categorical,
      'zero_is_missing_columns': self.zero_is_missing,
    }
    all_named = {column for columns in named.values() for column in columns}
    for argument, columns in named.items():
      known = [*table]
      if argument in others:
        known = [column for column in table if column not in self.labels]
      for column in columns:
        errors.expect(
          column in known,
          argument,
          f'one of the columns of {table.attrs["path"]} ({", ".join(known)})',
          column,
        )
        # The name of a second column of that name, which is an input.
        second = f'{column}.1'
        errors.expect(
          column not in table.attrs.get('doubled', ()) or second in all_named,
          argument,
          f'a column that {table.attrs["path"]} has once (name the second one,'
          f' {second}, in `drop_columns` if it is to be left out)',
          column,
        )
    if self.task == MULTILABEL:
      errors.expect(
        len(set(self.labels)) == len(self.labels) > 1,
        'label_column',
        f'two or more different columns for the task {MULTILABEL}',
        self.label,
      )

  def with_names(self, table: pd.DataFrame) -> pd.DataFrame:
    """Returns a copy of the table with words `renamed`."""
    table = table.copy()
    for column in table.columns.intersection(list(self.renamed)):
      words, names = zip(*self.renamed[column].items())
      found = table_files.positions(table, column, words, self.form)
      new = np.array([*names, None, None], object)[found]
      table[column] = table[column].mask(found >= 0, new)
    return table

  def used_rows(
    self, table: pd.DataFrame, client: Optional[str]
  ) -> pd.DataFrame:
    """Returns the rows that are not left out for missing values.

    Args:
      table: All rows.
      client: The column of clients; None if rows need none.
    """
    is_used = pd.Series(True, table.index)
    for column in filter(None, (client, self.domain)):
      if self.missing_domain == 'error':
        advice = "; `missing_domain='drop'` leaves such rows out"
        table_files.complete(table, column, advice)
      elif self.missing_domain == 'drop':
        is_used &= table[column].notna()
    for label in self.labels:
      if self.missing_label == 'error' and not self.label_values:
        advice = "; `missing_label='drop'` leaves such rows out"
        table_files.complete(table, label, advice)
      is_used &= self.label_cells(table, label).notna()
    if not is_used.all():
      logging.warning(
        '%s: %d of %d rows are left out for their client, domain or label.',
        table.attrs['path'],
        (~is_used).sum(),
        len(table),
      )
    if not is_used.any():
      raise table_files.error(table, 'rows that are not left out, found none')
    return table[is_used]

  def owners(self, table: pd.DataFrame, column: str) -> pd.Series:
    """Returns the cells of the column of domains or clients."""
    cells = table[column]
    if self.form.numbers(cells).notna().equals(cells.notna()):
      # The numbers 1 and 1.0 are the same owner.
      zeros = rf'(?<=\d){re.escape(self.form.decimal)}0*$'
      cells = cells.str.replace(zeros, '', regex=True)
    return cells.fillna(MISSING) if self.missing_domain == 'value' else cells

  def domains(self, table: pd.DataFrame) -> pd.Series:
    """Returns the name of each row's domain."""
    cells = self.owners(table, self.domain)
    if not self.domain_bounds:
      return cells
    values = self.numbers(table, self.domain, '`domain_bounds` needs numbers')
    edges = [-np.inf, *self.domain_bounds, np.inf]
    groups = pd.cut(values, edges, right=False, labels=self._groups)
    return groups.astype(object).where(values.notna(), cells)

  @property
  def _groups(self) -> list[str]:
    """Names of the domains between bounds."""
    column, bounds = self.domain, [f'{bound:g}' for bound in self.domain_bounds]
    between = (
      f'{low}<={column}<{high}' for low, high in zip(bounds, bounds[1:])
    )
    return [f'{column}<{bounds[0]}', *between, f'{column}>={bounds[-1]}']

  def domain_names(self, table: pd.DataFrame) -> list[str]:
    """Returns the names of the domains, in their order."""
    found = self.domains(table)
    if self.domain_bounds:
      return self._groups + [MISSING] * (MISSING in found.to_numpy())
    names = table_files.distinct(found, self.form)
    errors.expect(
      len(names) <= _MAX_DOMAINS,
      'domain_column',
      f'a column of at most {_MAX_DOMAINS} different values, or one of numbers'
      ' with `domain_bounds`',
      f'{self.domain} with {len(names)}',
    )
    return names

  def is_test(self, table: pd.DataFrame) -> np.ndarray:
    """Returns a mask of the test rows by the split column, bool `[rows]`."""
    lower = table[[self.split]].apply(lambda cells: cells.str.lower())
    table_files.complete(lower, self.split)
    return table_files.known_positions(lower, self.split, ('train', 'test')) > 0

  def weights(self, table: pd.DataFrame) -> Optional[np.ndarray]:
    """Returns the weights of rows, float64 `[rows]`; None if there are none.

    A table without the column has weights of 1.
    """
    if self.weight is None:
      return None
    if self.weight not in table:
      return np.ones(len(table))
    table_files.complete(table, self.weight)
    return self.numbers(table, self.weight, 'weights are numbers').to_numpy()

  def numbers(
    self, table: pd.DataFrame, column: str, why: str = ''
  ) -> pd.Series:
    """Returns a column of numbers, NaN where missing.

    Args:
      table: The rows.
      column: Name of the column.
      why: Reason for numbers, for the message; empty for an input.
    """
    cells = table[column]
    values = self.form.numbers(cells)
    is_other = cells.notna() & values.isna()
    if is_other.any():
      why = why or (
        'name the column in `categorical_columns`, or the word in'
        ' `missing_markers`'
      )
      if _are_numbers(cells[is_other]):
        why = _OTHER_FORM
      raise table_files.error(
        table, f'numbers in column {column}', column, is_other, f'; {why}'
      )
    is_large = values.abs() > _MAX_NUMBER
    if is_large.any():
      limit = f'numbers of at most {_MAX_NUMBER:g} in column {column}'
      raise table_files.error(table, limit, column, is_large)
    return (
      values.mask(values == 0) if column in self.zero_is_missing else values
    )

  def is_categorical(self, table: pd.DataFrame, column: str) -> bool:
    """Returns True for a column of words, or one named as categorical."""
    zero_is_missing = column in self.zero_is_missing
    if column in self.categorical:
      errors.expect(
        not zero_is_missing,
        'zero_is_missing_columns',
        'columns of numbers',
        column,
      )
      return True
    cells = table[column].dropna()
    if self.form.numbers(cells).notna().any() or zero_is_missing:
      return False
    if _are_numbers(cells):
      raise table_files.error(
        table,
        f'numbers or words in column {column}',
        column,
        table[column].notna(),
        f'; {_OTHER_FORM}, `categorical_columns` as words',
      )
    return len(cells) > 0

  def words(self, column: str, cells: pd.Series) -> tuple[list[str], bool]:
    """Returns the words that have an input, and True if others share one."""
    words = table_files.distinct(cells, self.form)
    if self.min_category_count is not None:
      counts = cells.value_counts()
      kept = [w for w in words if counts.get(w, 0) >= self.min_category_count]
      return kept, len(kept) < len(words)
    is_free = (
      column not in self.categorical
      and len(words) >= _MIN_FREE_TEXTS
      and (
        len(words) > _MOST * cells.count()
        or pd.Series(words).str.fullmatch(_LIKE_QUANTITIES).mean() > 0.5
      )
    )
    errors.expect(
      len(words) <= _MAX_CATEGORIES and not is_free,
      'categorical_columns',
      f'columns of at most {_MAX_CATEGORIES} different words that recur and are'
      ' not like numbers (name this one in it if it is one; or give'
      ' `min_category_count` to group rare words, `drop_columns` to leave it'
      ' out, `decimal` or `thousands` to read numbers)',
      f'{column} with {len(words)} in {cells.count()} rows, such as {words[0]}',
    )
    return words, False

  def label_cells(self, table: pd.DataFrame, label: str) -> pd.Series:
    """Returns the classes, or the numbers, of a column of labels.

    Rows to leave out have NaN.
    """
    cells = table[label]
    if self.task == 'regression':
      return self.numbers(table, label, 'the task regression needs numbers')
    if self.label_values:
      words, classes = zip(*self._class_of_word.items())
      found = table_files.positions(table, label, words, self.form)
      # Both missing and unknown are positions from the end.
      classes = np.array([*classes, None, None], object)
      return pd.Series(classes[found], table.index)
    if self.label_above is not None:
      values = self.numbers(table, label, '`label_above` needs numbers')
      names = np.array(self._above, object)[(values > self.label_above) * 1]
      return pd.Series(names, table.index).where(cells.notna())
    return cells

  @property
  def _above(self) -> list[str]:
    """Names of the two classes of `label_above`."""
    return [f'{self.label}{sign}{self.label_above:g}' for sign in ('<=', '>')]

  def classes(self, table: pd.DataFrame) -> list[str]:
    """Returns the names of the classes, in their order."""
    found = {label: self._classes_of(table, label) for label in self.labels}
    first, *others = found.values()
    errors.expect(
      self.task != MULTILABEL
      or (len(first) == 2 and all(classes == first for classes in others)),
      'label_column',
      'columns of the same two words or numbers, such as 0 and 1'
      ' (`label_values` renames them)',
      '; '.join(f'{", ".join(c[:3])} in {label}' for label, c in found.items()),
    )
    return first

  def _classes_of(self, table: pd.DataFrame, label: str) -> list[str]:
    """Returns the classes of one of the columns of labels."""
    cells = self.label_cells(table, label)
    if self.label_values:
      words = self._class_of_word
      found = table_files.positions(table, label, list(words), self.form)
      absent = [word for i, word in enumerate(words) if i not in found]
      errors.expect(
        not absent,
        'label_values',
        f'words of the column {label}, or WORD:CLASS',
        absent,
      )
      classes = list(dict.fromkeys(words.values()))
      names = pd.Series(classes, dtype=str)
      if table_files.Format().numbers(names).notna().all():
        classes.sort(key=float)
    elif self.label_above is not None:
      classes = [name for name in self._above if name in set(cells)]
    else:
      classes = table_files.distinct(cells, self.form)
      values = self.form.numbers(cells)
      if len(classes) > 2 and values.notna().any():
        is_bad = cells.notna() & (values % 1 != 0)
        if is_bad.any():
          expected = f'whole numbers, or words alone, as {label}'
          raise table_files.error(
            table, expected, label, is_bad, f'; {_ADVICE}'
          )
      errors.expect(
        len(classes) <= _MAX_CLASSES,
        'label_column',
        f'a column of at most {_MAX_CLASSES} classes ({_ADVICE})',
        f'{len(classes)} in {label}',
      )
      if len(classes) > _MANY_CLASSES and values.notna().any():
        logging.warning(
          '%s: %d different numbers of column %s are taken for classes; %s.',
          table.attrs['path'],
          len(classes),
          label,
          _ADVICE,
        )
    if len(classes) < 2:
      raise table_files.error(
        table, f'rows of two or more classes by {label}, found one alone'
      )
    return classes


def _are_numbers(cells: pd.Series) -> bool:
  """Returns True if most words are numbers that another option reads."""
  return bool(len(cells)) and cells.str.fullmatch(_LIKE_NUMBERS).mean() > _MOST


class Rows(NamedTuple):
  """Encoded rows of a table, in a compact form.

  Attributes:
    numbers: Columns of numbers, float64 `[rows, columns]`, NaN where missing.
    codes: Columns of categories, int32 `[rows, columns]`: the position of the
      input that is 1 among the column's; negative for none.
    domain: Domain ids, int32 `[rows]`; None for a table without domains.
  """

  numbers: np.ndarray
  codes: np.ndarray
  domain: Optional[np.ndarray]

  def select(self, chosen: Union[slice, np.ndarray]) -> 'Rows':
    """Returns some of the rows."""
    return Rows(*(f if f is None else f[chosen] for f in self))


@dataclasses.dataclass(frozen=True)
class TableEncoding:
  """An encoding of rows as examples.

  Attributes:
    columns: Roles of the columns.
    numbers: Names of the columns of numbers.
    categories: Column of categories to its words that have an input.
    grouped: Names of columns whose other words share one more input.
    indicators: Names of columns with an input that marks missing values.
    classes: Names of the classes, for several labels the two of each; empty for
      regression.
    domains: Names of the domains; empty without domains.
    means: Means of the columns of numbers, then of the label for regression.
    deviations: Standard deviations of the same.
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
    """Makes an encoding from the parsed JSON of `text`."""
    columns = value['columns']
    form = table_files.Format(**columns['form'])
    return cls(**{**value, 'columns': Columns(**{**columns, 'form': form})})

  @property
  def text(self) -> str:
    """The encoding as one line of JSON."""
    return json.dumps(dataclasses.asdict(self))

  @functools.cached_property
  def input_names(self) -> list[str]:
    """Names of the inputs: `age`, `blood=AB`, `age is missing`."""
    names = list(self.numbers)
    for column, words in self.categories.items():
      names += [f'{column}={word}' for word in words]
      names += [f'other {column}'] * (column in self.grouped)
    return names + [f'{column} is missing' for column in self.indicators]

  def read(
    self, path: str, with_labels: bool = False, with_clients: bool = False
  ) -> pd.DataFrame:
    """Reads new rows, of the columns that the encoding was fitted to.

    Other columns are ignored, with a warning.

    Args:
      path: A table, see `table_files.read_table`.
      with_labels: True to require the label column.
      with_clients: True to require the client column.
    """
    columns = self.columns
    needed = [*self.numbers, *self.categories]
    needed += [columns.domain] * bool(self.domains)
    needed += columns.labels * with_labels
    needed += [columns.client] * with_clients
    table = self._read(path, needed)
    table_files.expect_columns(table, *needed)
    known = {*needed, *columns.labels, *columns.drop, columns.domain}
    known |= {columns.client, columns.split, columns.weight}
    more = [c for c in table if c not in known]
    if columns.form.header == 'none':
      # Without names, any other column moves the ones after it.
      table_files.expect_columns(table, *sorted(known - {None}))
    elif more:
      logging.warning(
        '%s: columns %s are not used: the training data did not have them.',
        path,
        ', '.join(more),
      )
    return columns.with_names(table)

  def _read(self, path: str, needed: Sequence[str]) -> pd.DataFrame:
    """Reads a table in the form of the training table, or in one that fits."""
    columns, own = self.columns, self.columns.form
    numbers = [*self.numbers, *[columns.domain] * bool(columns.domain_bounds)]
    if not self.classes or columns.label_above is not None:
      numbers.append(columns.label)
    for form in (
      own,
      dataclasses.replace(own, decimal='.', thousands=None),
      dataclasses.replace(own, decimal=',', thousands='.'),
    ):
      try:
        table = table_files.read_table(path, form)
      except ValueError:
        continue
      cells = table[table.columns.intersection(numbers)]
      values = cells.apply(form.numbers)
      if set(needed) <= set(table) and values.isna().equals(cells.isna()):
        if form != own:
          logging.warning(
            '%s: read with the decimal mark %r, other than the training data.',
            path,
            form.decimal,
          )
          for name in cells:
            table[name] = values[name].map(
              lambda value: repr(value).replace('.', own.decimal),
              na_action='ignore',
            )
        return table
    return table_files.read_table(path, own)

  def encode(self, table: pd.DataFrame) -> Rows:
    """Encodes rows in a compact form, with their domains."""
    numbers = [self.columns.numbers(table, column) for column in self.numbers]
    codes = []
    for column, words in self.categories.items():
      found = table_files.positions(table, column, words, self.columns.form)
      is_unknown = found == table_files.UNKNOWN
      if column in self.grouped:
        found[is_unknown] = len(words)
      elif is_unknown.any():
        first = np.argmax(is_unknown)
        logging.warning(
          '%s: in column %s, %d cells, such as %r in row %d after the heading,'
          ' are words that the training data did not have; none of the inputs'
          ' of the column is 1 there.',
          table.attrs['path'],
          column,
          is_unknown.sum(),
          table[column].iloc[first],
          table.index[first] + 1,
        )
      codes.append(found)
    domain = None
    if self.domains:
      column = self.columns.domain
      domains = table.assign(**{column: self.columns.domains(table)})
      table_files.complete(domains, column)
      domain = self._known(domains, column, self.domains)
    shape = -1, len(table)
    return Rows(
      np.array(numbers, np.float64).reshape(shape).T,
      np.array(codes, np.int32).reshape(shape).T,
      domain,
    )

  def _known(
    self, table: pd.DataFrame, column: str, words: Sequence[str]
  ) -> np.ndarray:
    return table_files.known_positions(
      table, column, words, self.columns.form, _AS_TRAINED
    )

  def inputs(self, rows: Rows) -> np.ndarray:
    """Expands encoded rows to a model's inputs, float32 `[rows, inputs]`."""
    numbers, codes, _ = rows
    x = np.zeros((len(numbers), len(self.input_names)), np.float32)
    end = len(self.numbers)
    x[:, :end] = np.nan_to_num(
      (numbers - self.means[:end]) / self.deviations[:end]
    )
    for column, code in zip(self.categories, codes.T):
      (known,) = np.nonzero(code >= 0)
      x[known, end + code[known]] = 1
      end += len(self.categories[column]) + (column in self.grouped)
    missing = dict(zip(self.numbers, np.isnan(numbers).T))
    missing.update(zip(self.categories, (codes == table_files.NONE).T))
    for position, column in enumerate(self.indicators, end):
      x[:, position] = missing[column]
    return x

  def labels(self, table: pd.DataFrame) -> np.ndarray:
    """Returns the rows' labels.

    Returns:
      Classes, int32 `[rows]`, or `[rows, labels]` for several labels; for
      regression numbers, float64 `[rows]`.
    """
    columns = self.columns
    cells = {
      label: columns.label_cells(table, label) for label in columns.labels
    }
    if columns.task == 'regression':
      return cells[columns.label].to_numpy()
    table = table.assign(**cells)
    labels = [self._known(table, label, self.classes) for label in cells]
    return np.stack(labels, axis=1) if len(labels) > 1 else labels[0]

  def target(self, labels: np.ndarray) -> np.ndarray:
    """Returns models' targets: classes, or standardized numbers, float32."""
    if self.classes:
      return labels
    return ((labels - self.means[-1]) / self.deviations[-1]).astype(np.float32)

  def label(self, target: np.ndarray) -> np.ndarray:
    """Converts predictions for regression to the label's own unit."""
    return np.asarray(target, np.float64) * self.deviations[-1] + self.means[-1]


def fit(table: pd.DataFrame, columns: Columns) -> TableEncoding:
  """Fits the encoding of a table, without means and deviations.

  Args:
    table: The `used_rows` of a table.
    columns: Roles of its columns.
  """
  encoding = TableEncoding(
    columns,
    numbers=[],
    categories={},
    grouped=[],
    indicators=[],
    classes=columns.classes(table) if columns.task != 'regression' else [],
    domains=columns.domain_names(table) if columns.domain else [],
  )
  # A domain column with bounds stays an input: a value says more than a group.
  excluded = {*columns.labels, *columns.drop}
  excluded |= {columns.client, columns.split, columns.weight}
  if not columns.domain_bounds:
    excluded.add(columns.domain)
  for column in table.columns.difference([*excluded], sort=False):
    cells = table[column]
    if columns.is_categorical(table, column):
      words, has_others = columns.words(column, cells)
      encoding.categories[column] = words
      encoding.grouped.extend([column] * has_others)
      is_missing = cells.isna()
    else:
      encoding.numbers.append(column)
      is_missing = columns.numbers(table, column).isna()
    if is_missing.all():
      raise table_files.error(
        table,
        f'a {column} in some row, found none; name the column in'
        ' `drop_columns`',
      )
    if columns.missing_indicators and is_missing.any():
      encoding.indicators.append(column)
  if not encoding.numbers and not encoding.categories:
    raise table_files.error(
      table,
      'a column that is an input, found none besides those that are named'
      ' otherwise',
    )
  return encoding
