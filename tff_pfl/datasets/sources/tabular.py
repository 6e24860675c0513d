"""Tables of numbers and categories, from a CSV file that the user brings.

The file has a heading, and may be compressed with gzip. One column is the
label; one may say which domain a row is of, and one whose row it is (the
client: a hospital, a bank); all others are inputs. A column of numbers is one
input, a column of other words one input for each word (1 for the word that the
row has, 0 elsewhere). Columns whose numbers only stand for categories have to
be named. A column with some cells that are numbers and some that are not is an
error rather than a guess.

Numbers are standardized federatedly: of each column, the clients that take part
count and sum their training rows' values and squares, one federated sum adds
these up (see `standardization`), and all subtract the resulting mean and divide
by the deviation. The test rows are transformed with the same numbers. A missing
number becomes the mean, 0; a missing category has 0 for all words. What columns
and words there are, and which columns miss values somewhere, is taken from the
whole file: it is what clients have to agree on beforehand.

The inputs are the columns of numbers in the order of the file, then the words
of each column of categories, then, if asked for, an input for each column that
misses values, which is 1 where it does.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import csv_files, standardization

_PATTERNS = ('*.csv', '*.csv.gz')
# More words than these in a column are free text or row numbers.
_MAX_CATEGORIES = 1000
_MAX_DOMAINS = 100
_MAX_CLASSES = 100
# Larger numbers' squares cannot be added up.
_MAX_NUMBER = 1e150


class Table(NamedTuple):
  """The cells of a file.

  Attributes:
    path: Where they come from, for messages.
    cells: By column, in the file's order: the texts of the rows without blanks
      around them, empty where missing.
  """

  path: str
  cells: Mapping[str, Sequence[str]]

  @property
  def num_rows(self) -> int:
    """Number of rows."""
    return len(next(iter(self.cells.values())))

  def error(self, expected: str) -> ValueError:
    """What is wrong with the file, read after "Expected … to have"."""
    return ValueError(f'Expected `{self.path}` to have {expected}.')

  def complete(self, column: str) -> Sequence[str]:
    """Returns a column's cells; `ValueError` if one is missing."""
    cells = self.cells[column]
    if '' in cells:
      raise self.error(
        f'a {column} in every row, found none in {_row(cells.index(""))}'
      )
    return cells

  def numbers(self, column: str, why: str) -> np.ndarray:
    """Returns a column's cells as numbers, NaN where missing.

    Raises:
      ValueError: One is something else; the message names its row, and says
        `why` numbers are needed or what to do.
    """
    cells = self.cells[column]
    values, others = csv_files.numbers_of(cells)
    if others:
      raise self.error(
        f'numbers in column {column}, found {cells[others[0]]!r} in'
        f' {_row(others[0])}; {why}'
      )
    return values


@dataclasses.dataclass(frozen=True)
class Columns:
  """What the columns of a table are; see `load_tabular` for each."""

  label: str
  domain: Optional[str] = None
  client: Optional[str] = None
  drop: Sequence[str] = ()
  categorical: Sequence[str] = ()
  zero_is_missing: Sequence[str] = ()
  label_above: Optional[float] = None
  domain_bounds: Sequence[float] = ()
  missing_indicators: bool = False

  def check(self, table: Table) -> None:
    """Raises `ValueError` unless all columns that are named are there."""
    named = {
      'label_column': [self.label],
      'domain_column': [] if self.domain is None else [self.domain],
      'client_column': [] if self.client is None else [self.client],
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
    for argument in ('domain_column', 'client_column'):
      errors.expect(
        self.label not in named[argument],
        argument,
        'another column than the label',
        self.label,
      )


def read_table(
  path: str,
  missing_markers: Sequence[str] = csv_files.MISSING_MARKERS,
  columns: Optional[Sequence[str]] = None,
) -> Table:
  """Reads a CSV file.

  Args:
    missing_markers: What stands for a missing value, besides an empty cell.
    columns: The columns' names of a file without a heading; None where its
      first line has them.

  Raises:
    ValueError: The file is missing or damaged, has no row, a column without a
      name or two of one name, or a row is longer or shorter than the heading.
  """
  names, rows = csv_files.read_rows(path, columns)
  names = [name.strip() for name in names]
  errors.expect(
    names and all(names) and len(set(names)) == len(names),
    path,
    'a CSV file with a heading of different names',
    names,
  )
  if not rows:
    raise files.file_error(path, 'a CSV file with rows', 'none')
  cells = []
  for number, row in enumerate(rows):
    if None in row or None in row.values():
      raise ValueError(
        f'Expected `{path}` to have {len(names)} cells in every row, found'
        f' {"more" if None in row else "fewer"} in {_row(number)}.'
      )
    texts = (text.strip() for text in row.values())
    cells.append(['' if t in missing_markers else t for t in texts])
  return Table(path, dict(zip(names, map(list, zip(*cells)))))


def _row(number: int) -> str:
  return f'row {number + 1} after the heading'


def labels_of(table: Table, columns: Columns) -> tuple[np.ndarray, int]:
  """Returns the labels as classes, int32 `[rows]`, and their number.

  Without `label_above`, labels are whole numbers or one of two words; they are
  numbered in their sorted order.

  Raises:
    ValueError: A label is missing or of another kind, or all are the same.
  """
  cells = table.complete(columns.label)
  if columns.label_above is not None:
    numbers = table.numbers(columns.label, '`label_above` needs numbers')
    classes, y = np.array([0, 1]), numbers > columns.label_above
  else:
    numbers, others = csv_files.numbers_of(cells)
    values = np.array(cells) if others else numbers
    classes, y = np.unique(values, return_inverse=True)
    bad = others or np.flatnonzero(numbers != np.round(numbers)).tolist()
    if len(classes) > 2 and bad:
      raise table.error(
        f'whole numbers or two different words as {columns.label}, found'
        f' {cells[bad[0]]!r} in {_row(bad[0])}; number the classes, or give'
        ' `label_above` for two classes'
      )
  errors.expect(
    len(classes) <= _MAX_CLASSES,
    'label_column',
    f'a column of at most {_MAX_CLASSES} classes (`label_above` makes two of'
    ' numbers)',
    f'{len(classes)} in {columns.label}',
  )
  if len(np.unique(y)) < 2:
    raise table.error(
      f'rows of two or more classes by {columns.label}, found one alone'
    )
  return y.astype(np.int32), len(classes)


def domains_of(
  table: Table, columns: Columns
) -> tuple[Optional[np.ndarray], Optional[tuple[str, ...]]]:
  """Returns the rows' domain ids, int32 `[rows]`, and the domains' names.

  Both are None without a domain column.

  Raises:
    ValueError: A domain is missing, or there are too many.
  """
  column, bounds = columns.domain, list(columns.domain_bounds)
  if column is None:
    errors.expect(
      not bounds, 'domain_bounds', 'given with a domain column only', bounds
    )
    return None, None
  cells = table.complete(column)
  if bounds:
    errors.expect(
      bounds == sorted(set(bounds)), 'domain_bounds', 'ascending', bounds
    )
    numbers = table.numbers(column, '`domain_bounds` needs numbers')
    ids = np.searchsorted(bounds, numbers, side='right')
    between = (
      f'{low:g}<={column}<{high:g}' for low, high in zip(bounds, bounds[1:])
    )
    names = (f'{column}<{bounds[0]:g}', *between, f'{column}>={bounds[-1]:g}')
    return ids.astype(np.int32), names
  names = _sorted_words(cells)
  errors.expect(
    len(names) <= _MAX_DOMAINS,
    'domain_column',
    f'a column of at most {_MAX_DOMAINS} different values, or one of numbers'
    ' with `domain_bounds`',
    f'{column} with {len(names)}',
  )
  position = {name: number for number, name in enumerate(names)}
  return np.array([position[cell] for cell in cells], np.int32), tuple(names)


def _sorted_words(cells: Sequence[str]) -> list[str]:
  """Returns the different cells that are not missing, numbers by value."""
  words = sorted({cell for cell in cells if cell})
  numbers, others = csv_files.numbers_of(words)
  return words if others else [words[i] for i in np.argsort(numbers)]


def inputs_of(table: Table, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
  """Returns the rows' inputs, before numbers are standardized.

  A domain column is no input unless it is cut into groups: a value says more
  than its group.

  Returns:
    Numbers, float64 `[rows, a]`, NaN where missing, and all other inputs,
    float32 `[rows, b]`, 0 or 1.

  Raises:
    ValueError: A cell is no number where others of its column are, a column
      misses all values or has too many categories, or there is no input.
  """
  excluded = {columns.label, columns.client, *columns.drop}
  if not columns.domain_bounds:
    excluded.add(columns.domain)
  numbers: list[np.ndarray] = []
  words: list[np.ndarray] = []
  indicators: list[np.ndarray] = []
  for column, cells in table.cells.items():
    if column in excluded:
      continue
    values = _numbers_or_none(table, column, columns)
    if values is not None:
      numbers.append(values)
      is_missing = np.isnan(values)
    else:
      words += _one_hot(column, cells)
      is_missing = np.array([not cell for cell in cells])
    if is_missing.all():
      raise table.error(
        f'a {column} in some row, found none; name the column in `drop_columns`'
      )
    if columns.missing_indicators and is_missing.any():
      indicators.append(is_missing)
  if not numbers and not words:
    raise table.error(
      'a column that is an input, found none besides those that are named'
      ' otherwise'
    )
  shape = -1, table.num_rows
  return (
    np.array(numbers, np.float64).reshape(shape).T,
    np.array(words + indicators, np.float32).reshape(shape).T,
  )


def _numbers_or_none(
  table: Table, column: str, columns: Columns
) -> Optional[np.ndarray]:
  """Returns a column of numbers, None for one of categories."""
  cells = table.cells[column]
  zero_is_missing = column in columns.zero_is_missing
  if column in columns.categorical:
    errors.expect(
      not zero_is_missing,
      'zero_is_missing_columns',
      'columns of numbers',
      column,
    )
    return None
  _, others = csv_files.numbers_of(cells)
  if len(others) == sum(map(bool, cells)) and others and not zero_is_missing:
    return None
  values = table.numbers(
    column,
    'name the column in `categorical_columns`, or the word in'
    ' `missing_markers`',
  )
  too_large = np.flatnonzero(np.abs(values) > _MAX_NUMBER)
  if len(too_large):
    raise table.error(
      f'numbers of at most {_MAX_NUMBER:g} in column {column}, found'
      f' {cells[too_large[0]]!r} in {_row(too_large[0])}'
    )
  return np.where(values == 0, np.nan, values) if zero_is_missing else values


def _one_hot(column: str, cells: Sequence[str]) -> list[np.ndarray]:
  """Returns one input for each word of a column."""
  words = _sorted_words(cells)
  errors.expect(
    len(words) <= _MAX_CATEGORIES,
    'categorical_columns',
    f'columns of at most {_MAX_CATEGORIES} different words (name others in'
    ' `drop_columns`)',
    f'{column} with {len(words)}',
  )
  cells = np.array(cells)
  return [cells == word for word in words]


def to_clients(
  table: Table,
  columns: Columns,
  num_clients: int,
  partition: partitioning.Partitioner,
  seed: int,
  **options: Any,
) -> federated_dataset.FederatedDataset:
  """Returns a table's rows, dealt to clients and standardized by them.

  Arguments and errors are those of `load_tabular`; the options are further ones
  of `FederatedDataset.from_arrays`.
  """
  columns.check(table)
  y, num_classes = labels_of(table, columns)
  domain, domain_names = domains_of(table, columns)
  numbers, others = inputs_of(table, columns)
  rows = np.arange(table.num_rows)
  owners: dict[str, Any] = dict(num_clients=num_clients, partition=partition)
  if isinstance(partition, natural.Natural):
    errors.expect(
      columns.client is not None,
      'client_column',
      f'given for the partition {partition.name}',
      None,
    )
    keys = np.array(table.complete(columns.client))
    chosen = natural.choose_clients(
      np.unique(keys), num_clients, f'different {columns.client}', seed
    )
    rows = np.flatnonzero(np.isin(keys, chosen))
    owners = dict(keys=keys[rows])

  deal = functools.partial(
    federated_dataset.FederatedDataset.from_arrays,
    rows,
    y[rows],
    **owners,
    **options,
    num_classes=num_classes,
    seed=seed,
    domain=None if domain is None else domain[rows],
    domain_names=domain_names,
  )
  # Once to see who has which rows, and once with the inputs that these give.
  clients = deal()
  moments = standardization.federated_moments(
    [numbers[clients.train(c).x] for c in clients.client_ids]
  )
  x = np.concatenate([moments.standardize(numbers), others], axis=1)
  return deal(transform=x.__getitem__)


def load_tabular(
  num_clients: int,
  partition: partitioning.Partitioner,
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
  label_column: str = 'label',
  domain_column: Optional[str] = None,
  client_column: Optional[str] = None,
  drop_columns: Sequence[str] = (),
  categorical_columns: Sequence[str] = (),
  zero_is_missing_columns: Sequence[str] = (),
  missing_markers: Sequence[str] = csv_files.MISSING_MARKERS,
  label_above: Optional[float] = None,
  domain_bounds: Sequence[int] = (),
  missing_indicators: bool = False,
  test_fraction: float = 0.2,
) -> federated_dataset.FederatedDataset:
  """Returns the rows of a table, by client or dealt to clients.

  Args:
    num_clients: With the partition natural, this many of the client column's
      values are drawn at random.
    partition: Natural for the clients of `client_column`, or a rule that deals
      all rows.
    data_dir: The CSV file, its folder if that holds no other, or the parent of
      its folder `tabular`.
    seed: Decides the choice of clients or the partition, and the test rows.
    label_column: The column of labels, which are whole numbers or one of two
      words unless `label_above` is given.
    domain_column: The column that says which domain a row is of; None for data
      without domains.
    client_column: The column that says whose row it is; it is no input.
    drop_columns: Columns that are not inputs, such as row numbers.
    categorical_columns: Columns whose numbers stand for categories.
    zero_is_missing_columns: Columns of numbers in which 0 means a missing
      value.
    missing_markers: What stands for a missing value, besides an empty cell.
    label_above: Class 1 is a label above this number, class 0 any other; None
      where labels are classes already.
    domain_bounds: Ascending numbers that divide the domain column's numbers
      into groups; a bound belongs to the group above it. Empty where every
      value is a domain of its own.
    missing_indicators: Whether a column with missing values gets a second input
      that marks them.
    test_fraction: Fraction of a client's rows in its test set, in [0, 1),
      stratified by domain and label.

  Returns:
    Dataset with `x` float32 `[inputs]` and `y` int32.

  Raises:
    ValueError: The file is missing or damaged, a column is not there, a cell is
      not what it should be, the partition is impossible, or an argument is out
      of range.
  """
  files.expect_given(data_dir, 'a CSV file, or a folder that holds one')
  path = files.find_file('tabular', data_dir, _PATTERNS)
  return to_clients(
    read_table(path, missing_markers),
    Columns(
      label=label_column,
      domain=domain_column,
      client=client_column,
      drop=drop_columns,
      categorical=categorical_columns,
      zero_is_missing=zero_is_missing_columns,
      label_above=label_above,
      domain_bounds=domain_bounds,
      missing_indicators=missing_indicators,
    ),
    num_clients,
    partition,
    seed,
    name='tabular',
    test_fraction=test_fraction,
  )
