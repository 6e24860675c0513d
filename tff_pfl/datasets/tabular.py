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
from collections.abc import Mapping, Sequence
from typing import (
  Any,
  NamedTuple,
  Optional,
  Union,
)

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import (
  csv_files,
  federated_dataset,
  natural_clients,
  partitioning,
  standardization,
)

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
    cells: By column, in the file's order: the text of each row without blanks
      around it, empty where it is missing.
  """

  path: str
  cells: Mapping[str, Sequence[str]]

  @property
  def num_rows(self) -> int:
    """Number of rows."""
    return len(next(iter(self.cells.values())))


@dataclasses.dataclass(frozen=True)
class Columns:
  """What the columns of a table are.

  Attributes:
    label: The column of labels.
    domain: The column that says which domain a row is of; None for none.
    client: The column that says whose row it is; None for none.
    drop: Columns that are no inputs.
    categorical: Columns whose numbers stand for categories.
    zero_is_missing: Columns of numbers in which 0 means that there is none.
    label_above: Rows whose label is a number above are of class 1, others of
      class 0; None where labels are classes already.
    domain_bounds: Ascending numbers that cut the domain column's numbers into
      groups, each from one bound up to but without the next; none where every
      value is a domain.
  """

  label: str
  domain: Optional[str] = None
  client: Optional[str] = None
  drop: Sequence[str] = ()
  categorical: Sequence[str] = ()
  zero_is_missing: Sequence[str] = ()
  label_above: Optional[float] = None
  domain_bounds: Sequence[float] = ()


class Inputs(NamedTuple):
  """The inputs of all rows before numbers are standardized.

  Attributes:
    numbers: float64 `[rows, a]`, NaN where missing.
    others: float32 `[rows, b]`, 0 or 1.
    names: Of all a + b inputs.
  """

  numbers: np.ndarray
  others: np.ndarray
  names: tuple[str, ...]


def read_table(
  path: str,
  missing_markers: Sequence[str] = csv_files.MISSING_MARKERS,
  columns: Optional[Sequence[str]] = None,
) -> Table:
  """Reads a CSV file.

  Args:
    path: The file; compressed if its name ends in `.gz`.
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
    raise arrays_lib.file_error(path, 'a CSV file with rows', 'none')
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


def _check_columns(table: Table, columns: Columns) -> None:
  """Raises `ValueError` unless all columns that are named are there."""
  singles = {
    'label_column': columns.label,
    'domain_column': columns.domain,
    'client_column': columns.client,
  }
  named = [(n, value) for n, value in singles.items() if value is not None]
  named += [
    (argument, column)
    for argument, values in (
      ('drop_columns', columns.drop),
      ('categorical_columns', columns.categorical),
      ('zero_is_missing_columns', columns.zero_is_missing),
    )
    for column in values
  ]
  for argument, column in named:
    errors.expect(
      column in table.cells,
      argument,
      f'one of the columns of {table.path} ({", ".join(table.cells)})',
      column,
    )
  for argument in ('domain_column', 'client_column'):
    errors.expect(
      singles[argument] != columns.label,
      argument,
      'another column than the label',
      columns.label,
    )


def _complete(table: Table, column: str) -> Sequence[str]:
  """Returns a column's cells.

  Raises:
    ValueError: One is missing.
  """
  cells = table.cells[column]
  if '' in cells:
    raise ValueError(
      f'Expected `{table.path}` to have a {column} in every row, found none in'
      f' {_row(cells.index(""))}.'
    )
  return cells


def _as_numbers(
  table: Table, column: str, cells: Sequence[str], why: str
) -> np.ndarray:
  """Returns a column's cells as numbers, NaN where missing.

  Raises:
    ValueError: One is something else; the message names its row, and says what
      to do.
  """
  values, others = csv_files.numbers_of(cells)
  if others:
    raise ValueError(
      f'Expected `{table.path}` to have numbers in column {column}, found'
      f' {cells[others[0]]!r} in {_row(others[0])}; {why}.'
    )
  return values


def labels_of(table: Table, columns: Columns) -> tuple[np.ndarray, int]:
  """Returns the labels as classes, int32 `[rows]`, and their number.

  Without `label_above`, labels are whole numbers or one of two words; they are
  numbered in their sorted order.

  Args:
    table: The cells.
    columns: What they are.

  Raises:
    ValueError: A label is missing or of another kind, or all are the same.
  """
  cells = _complete(table, columns.label)
  if columns.label_above is not None:
    numbers = _as_numbers(
      table, columns.label, cells, '`label_above` needs numbers'
    )
    classes, y = np.array([0, 1]), numbers > columns.label_above
  else:
    numbers, others = csv_files.numbers_of(cells)
    values = np.array(cells) if others else numbers
    classes, y = np.unique(values, return_inverse=True)
    is_whole = not others and (numbers == np.round(numbers)).all()
    if len(classes) > 2 and not is_whole:
      bad = others[0] if others else np.argmax(numbers != np.round(numbers))
      raise ValueError(
        f'Expected `{table.path}` to have whole numbers or two different words'
        f' as {columns.label}, found {cells[bad]!r} in {_row(bad)}; number the'
        ' classes, or give `label_above` for two classes.'
      )
  errors.expect(
    len(classes) <= _MAX_CLASSES,
    'label_column',
    f'a column of at most {_MAX_CLASSES} classes (`label_above` makes two of'
    ' numbers)',
    f'{len(classes)} in {columns.label}',
  )
  if len(np.unique(y)) < 2:
    raise ValueError(
      f'Expected `{table.path}` to have rows of two or more classes by'
      f' {columns.label}, found one alone.'
    )
  return y.astype(np.int32), len(classes)


def domains_of(
  table: Table, columns: Columns
) -> tuple[Optional[np.ndarray], Optional[tuple[str, ...]]]:
  """Returns the rows' domain ids, int32 `[rows]`, and the domains' names.

  Both are None without a domain column.

  Args:
    table: The cells.
    columns: What they are.

  Raises:
    ValueError: A domain is missing, or there are too many.
  """
  bounds = list(columns.domain_bounds)
  if columns.domain is None:
    errors.expect(
      not bounds, 'domain_bounds', 'given with a domain column only', bounds
    )
    return None, None
  cells = _complete(table, columns.domain)
  if bounds:
    errors.expect(
      bounds == sorted(set(bounds)), 'domain_bounds', 'ascending', bounds
    )
    numbers = _as_numbers(
      table, columns.domain, cells, '`domain_bounds` needs numbers'
    )
    return np.searchsorted(bounds, numbers, side='right').astype(
      np.int32
    ), _group_names(columns.domain, bounds)
  names = _sorted_words(cells)
  errors.expect(
    len(names) <= _MAX_DOMAINS,
    'domain_column',
    f'a column of at most {_MAX_DOMAINS} different values, or one of numbers'
    ' with `domain_bounds`',
    f'{columns.domain} with {len(names)}',
  )
  position = {name: number for number, name in enumerate(names)}
  return np.array([position[cell] for cell in cells], np.int32), tuple(names)


def _group_names(column: str, bounds: Sequence[float]) -> tuple[str, ...]:
  """Names the groups that bounds make: below, from one to the next, above."""
  between = [
    f'{low:g}<={column}<{high:g}' for low, high in zip(bounds, bounds[1:])
  ]
  return (f'{column}<{bounds[0]:g}', *between, f'{column}>={bounds[-1]:g}')


def _sorted_words(cells: Sequence[str]) -> list[str]:
  """Returns the different cells that are not missing, numbers by value."""
  words = sorted({cell for cell in cells if cell})
  numbers, others = csv_files.numbers_of(words)
  return words if others else [words[i] for i in np.argsort(numbers)]


def inputs_of(
  table: Table, columns: Columns, missing_indicators: bool = False
) -> Inputs:
  """Returns the rows' inputs.

  A domain column is no input unless it is cut into groups: a value says more
  than its group.

  Args:
    table: The cells.
    columns: What they are.
    missing_indicators: Whether a column that misses values has an input that
      says where.

  Raises:
    ValueError: A cell is no number where others of its column are, a column
      misses all values or has too many categories, or there is no input.
  """
  excluded = {columns.label, columns.client, *columns.drop}
  if not columns.domain_bounds:
    excluded.add(columns.domain)
  numbers: dict[str, np.ndarray] = {}
  others: dict[str, np.ndarray] = {}
  indicators: dict[str, np.ndarray] = {}
  for column, cells in table.cells.items():
    if column in excluded:
      continue
    values = _numbers_or_none(table, column, cells, columns)
    if values is not None:
      numbers[column] = values
      is_missing = np.isnan(values)
    else:
      others.update(_one_hot(column, cells))
      is_missing = np.array([not cell for cell in cells])
    if is_missing.all():
      raise ValueError(
        f'Expected `{table.path}` to have a {column} in some row, found none;'
        ' name the column in `drop_columns`.'
      )
    if missing_indicators and is_missing.any():
      indicators[f'{column} is missing'] = is_missing
  others.update(indicators)
  if not numbers and not others:
    raise ValueError(
      f'Expected `{table.path}` to have a column that is an input, found none'
      ' besides those that are named otherwise.'
    )
  return Inputs(
    _side_by_side(numbers, table.num_rows, np.float64),
    _side_by_side(others, table.num_rows, np.float32),
    (*numbers, *others),
  )


def _numbers_or_none(
  table: Table, column: str, cells: Sequence[str], columns: Columns
) -> Optional[np.ndarray]:
  """Returns a column of numbers, None for one of categories."""
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
  values = _as_numbers(
    table,
    column,
    cells,
    'name the column in `categorical_columns`, or the word in'
    ' `missing_markers`',
  )
  too_large = np.flatnonzero(np.abs(values) > _MAX_NUMBER)
  if len(too_large):
    raise ValueError(
      f'Expected `{table.path}` to have numbers of at most {_MAX_NUMBER:g} in'
      f' column {column}, found {cells[too_large[0]]!r} in'
      f' {_row(too_large[0])}.'
    )
  return np.where(values == 0, np.nan, values) if zero_is_missing else values


def _one_hot(column: str, cells: Sequence[str]) -> dict[str, np.ndarray]:
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
  return {f'{column}={word}': cells == word for word in words}


def _side_by_side(
  columns: Mapping[str, np.ndarray], num_rows: int, dtype: Any
) -> np.ndarray:
  if not columns:
    return np.zeros((num_rows, 0), dtype)
  return np.stack(list(columns.values()), axis=1).astype(dtype)


def to_clients(
  table: Table,
  columns: Columns,
  num_clients: int,
  partition: Union[str, partitioning.Partitioner],
  *,
  name: str,
  seed: int = 0,
  missing_indicators: bool = False,
  test_fraction: float = 0.2,
) -> federated_dataset.FederatedDataset:
  """Returns a table's rows, dealt to clients and standardized by them.

  Args:
    table: The cells.
    columns: What they are.
    num_clients: As for `load_tabular`, like the others that follow.
    partition: As said.
    name: What the data set is called.
    seed: As said.
    missing_indicators: As said.
    test_fraction: As said.

  Raises:
    ValueError: As said.
  """
  _check_columns(table, columns)
  y, num_classes = labels_of(table, columns)
  domain, domain_names = domains_of(table, columns)
  inputs = inputs_of(table, columns, missing_indicators)
  rows = np.arange(table.num_rows)
  owners: dict[str, Any] = dict(num_clients=num_clients, partition=partition)
  if natural_clients.is_natural(partition):
    errors.expect(
      columns.client is not None,
      'client_column',
      f'given for the partition {partitioning.Natural.name}',
      None,
    )
    keys = np.array(_complete(table, columns.client))
    chosen = natural_clients.choose_clients(
      np.unique(keys), num_clients, f'different {columns.client}', seed
    )
    rows = np.flatnonzero(np.isin(keys, chosen))
    owners = dict(keys=keys[rows])

  def dealt(transform=None) -> federated_dataset.FederatedDataset:
    return federated_dataset.FederatedDataset.from_arrays(
      rows,
      y[rows],
      **owners,
      test_fraction=test_fraction,
      num_classes=num_classes,
      transform=transform,
      name=name,
      seed=seed,
      domain=None if domain is None else domain[rows],
      domain_names=domain_names,
    )

  # Once to see who has which rows, and once with the inputs that these give.
  clients = dealt()
  moments = standardization.federated_moments(
    [inputs.numbers[clients.train(c).x] for c in clients.client_ids]
  )
  x = np.concatenate(
    [moments.standardize(inputs.numbers), inputs.others], axis=1
  )
  return dealt(x.__getitem__)


def load_tabular(
  num_clients: int,
  partition: Union[str, partitioning.Partitioner] = 'natural',
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
    num_clients: At least 1; with the partition natural, so many of the client
      column's values are drawn at random.
    partition: 'natural' for the clients of `client_column`, or a rule that
      deals all rows.
    data_dir: The CSV file, its folder if that holds no other, or the parent of
      its folder `tabular`.
    seed: Of the choice of clients or the partition, and of the test rows,
      non-negative.
    label_column: The column of labels, which are whole numbers or one of two
      words unless `label_above` is given.
    domain_column: The column that says which domain a row is of; None for data
      without domains.
    client_column: The column that says whose row it is; it is no input.
    drop_columns: Columns that are no inputs, such as numbers of rows.
    categorical_columns: Columns whose numbers stand for categories.
    zero_is_missing_columns: Columns of numbers in which 0 means a missing
      value.
    missing_markers: What stands for a missing value, besides an empty cell.
    label_above: Class 1 is a label above this number, class 0 any other; None
      where labels are classes already.
    domain_bounds: Ascending numbers that cut the domain column's numbers into
      groups, each from one bound up to but without the next; none where every
      value is a domain of its own.
    missing_indicators: Whether a column that misses values has a further input
      that says where.
    test_fraction: What part of a client's rows becomes its test set, in
      [0, 1), stratified by domain and label.

  Returns:
    Dataset with `x` float32 `[inputs]` and `y` int32.

  Raises:
    ValueError: The file is missing or damaged, a column is not there, a cell is
      not what it should be, the partition is impossible, or an argument is out
      of range.
  """
  errors.expect(
    data_dir is not None,
    'data_dir',
    'a CSV file, or a folder that holds one',
    data_dir,
  )
  path = arrays_lib.find_file('tabular', data_dir, _PATTERNS)
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
    ),
    num_clients,
    partition,
    name='tabular',
    seed=seed,
    missing_indicators=missing_indicators,
    test_fraction=test_fraction,
  )
