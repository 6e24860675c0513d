"""Tables that users bring: CSV with any separator, or parquet, read by pandas.

Cells are texts until something asks for numbers: without blanks around them,
without what spreadsheets put before numbers (`="1.5"`, `'1.5`), and NaN where
missing. Row numbers in messages begin at 1 after the heading.
"""

import codecs
import csv
import dataclasses
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import files

PATTERNS = ('*.csv', '*.csv.gz', '*.tsv', '*.tsv.gz', '*.parquet')
# What stands for a missing value, besides an empty cell.
MISSING_MARKERS = ('?', 'NA', 'N/A', 'NaN', 'nan', 'null')
HEADERS = ('auto', 'first', 'none')
_SEPARATORS = ',;\t|'
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UNNAMED = 'Unnamed: '
# What Python's csv takes by itself, 131,072 characters, long texts exceed.
_MAX_FIELD_SIZE = 2**31 - 1
# In place of a word's position.
NONE, UNKNOWN = -1, -2


@dataclasses.dataclass(frozen=True)
class Format:
  """How a file writes a table; see `tabular.load_tabular` for each.

  Attributes:
    separator: None for the one that the first line has most often.
    charset: None for UTF-8, UTF-16 with its mark, or else Windows-1252.
    header: One of `HEADERS`.
  """

  separator: Optional[str] = None
  decimal: str = '.'
  thousands: Optional[str] = None
  charset: Optional[str] = None
  header: str = 'auto'
  missing_markers: Sequence[str] = MISSING_MARKERS

  def __post_init__(self):
    errors.expect_one_of('header', self.header, HEADERS)
    errors.expect_one_of('decimal', self.decimal, ('.', ','))
    errors.expect(
      self.thousands != self.decimal,
      'thousands',
      'another mark than `decimal`',
      self.thousands,
    )
    if self.charset is not None:
      try:
        codecs.lookup(self.charset)
      except LookupError:
        errors.expect(False, 'charset', 'a known character set', self.charset)

  def numbers(self, cells: pd.Series) -> pd.Series:
    """Returns cells as float64, NaN where missing or no finite number."""
    if self.thousands:
      cells = cells.str.replace(self.thousands, '', regex=False)
    if self.decimal == ',':
      # A point is no part of a number then.
      cells = cells.str.translate({ord(','): '.', ord('.'): 'x'})
    values = pd.to_numeric(cells, errors='coerce').astype(float)
    return values.where(np.isfinite(values))


def error(
  table: pd.DataFrame,
  expected: str,
  column: Optional[str] = None,
  bad: Optional[np.ndarray] = None,
  advice: str = '',
) -> ValueError:
  """Returns the error for a table, or for a cell of it.

  Args:
    table: What `read_table` gave, or some of its rows.
    expected: Read after "Expected … to have".
    column: The column of the cell that was found instead.
    bad: Which rows are wrong, bool `[rows]`; the first is named.
  """
  if column is not None:
    position = int(np.argmax(bad))
    cell = table[column].iloc[position]
    found = 'none' if pd.isna(cell) else repr(cell)
    expected += (
      f', found {found} in row {table.index[position] + 1} after the heading'
    )
  return ValueError(
    f'Expected `{table.attrs["path"]}` to have {expected}{advice}.'
  )


def expect_columns(table: pd.DataFrame, *columns: str) -> None:
  """Raises `ValueError` unless there are such columns."""
  missing = [c for c in dict.fromkeys(columns) if c not in table]
  if missing:
    raise error(
      table, f'the columns {", ".join(missing)}, found {", ".join(table)}'
    )


def complete(table: pd.DataFrame, column: str) -> pd.Series:
  """Returns a column's cells; `ValueError` if one is missing."""
  is_missing = table[column].isna().to_numpy()
  if is_missing.any():
    raise error(table, f'a {column} in every row', column, is_missing)
  return table[column]


def positions(
  table: pd.DataFrame, column: str, words: Sequence[str], form: Format
) -> np.ndarray:
  """Returns which of the words each cell is, numbers being equal by value.

  Returns:
    int32 `[rows]`, `NONE` where a cell is missing, `UNKNOWN` where it is none.
  """
  cells = table[column]
  found = pd.Index(words).get_indexer(cells)
  unknown = (found < 0) & cells.notna().to_numpy()
  # 3.0 is 3: whole numbers of a column with gaps are often written so.
  values = Format().numbers(pd.Series(words, dtype=str)).dropna()
  by_value = dict(zip(values.to_numpy(), values.index))
  found[unknown] = [
    by_value.get(value, UNKNOWN) for value in form.numbers(cells[unknown])
  ]
  return found.astype(np.int32)


def known_positions(
  table: pd.DataFrame,
  column: str,
  words: Sequence[str],
  form: Format = Format(),
  where: str = '',
) -> np.ndarray:
  """As `positions`; `ValueError` if a cell is none of the words."""
  found = positions(table, column, words, form)
  if (found == UNKNOWN).any():
    raise error(
      table,
      f'one of {", ".join(words)} as {column}{where}',
      column,
      found == UNKNOWN,
    )
  return found


def distinct(cells: pd.Series, form: Format) -> list[str]:
  """Returns the different cells that are not missing, numbers by value."""
  words = pd.Series(cells.dropna().unique(), dtype=str)
  values = form.numbers(words)
  if values.isna().any():
    return sorted(words)
  return [repr(n).removesuffix('.0') for n in np.unique(values).tolist()]


def read_table(
  path: str,
  form: Format = Format(),
  names: Optional[Sequence[str]] = None,
) -> pd.DataFrame:
  """Reads a file; what is read is told by its ending, parquet or else CSV.

  Args:
    path: The file; a CSV file is compressed if its name ends in `.gz`.
    names: The columns' names of a file without a heading.

  Returns:
    A text, or NaN, for every cell.

  Raises:
    ValueError: The file is missing or damaged, or has no row; its first line
      is no heading, or a row is longer or shorter than it.
  """
  if path.endswith('.parquet'):
    table = _read_parquet(path)
  else:
    table = _read_csv(path, form, names)
  if table.empty:
    raise files.file_error(path, 'a table with rows', 'none')
  markers = ['', *form.missing_markers]
  for name in table:
    cells = table[name].str.strip()
    if cells.str.startswith(('="', "'")).any():
      cells = cells.str.replace(r'^="([^"]*)"$', r'\1', regex=True)
      cells = cells.str.replace(r"^'(?=[-+.\d])", '', regex=True)
    table[name] = cells.mask(cells.isin(markers))
  table.attrs['path'] = path
  if names is None and not path.endswith('.parquet'):
    _check_heading(table, form)
  return _without_row_numbers(table, form)


def read_tables(
  paths: Mapping[str, str],
  column: str,
  form: Format = Format(),
  names: Optional[Sequence[str]] = None,
) -> pd.DataFrame:
  """Reads files of the same columns, one below the other; see `read_table`.

  Args:
    paths: By what `column` says of a file's rows.
    column: What is added; none of the files may have it.
  """
  tables = {key: read_table(path, form, names) for key, path in paths.items()}
  first = next(iter(tables.values()))
  for table in tables.values():
    if set(table) != set(first) or column in table:
      raise error(
        table,
        f'the columns {", ".join(first)}, as {first.attrs["path"]} has them,'
        f' and none called {column}; found {", ".join(table)}',
      )
  joined = pd.concat(tables, names=[column]).reset_index(column)
  joined = joined.reset_index(drop=True)
  joined.attrs['path'] = os.path.dirname(first.attrs['path'])
  return joined


def _read_parquet(path: str) -> pd.DataFrame:
  try:
    table = pd.read_parquet(path)
  except OSError as reason:
    raise files.unreadable_error(path, reason) from None
  except ValueError as reason:
    raise files.file_error(path, 'a parquet file', reason) from None
  table = table.rename(columns=str).reset_index(drop=True)
  for name in table:
    texts = table[name].map(str, na_action='ignore').astype(str)
    table[name] = texts.mask(table[name].isna())
  return table


def _read_csv(
  path: str, form: Format, names: Optional[Sequence[str]]
) -> pd.DataFrame:
  text = _decoded(path, form.charset)
  first = text.lstrip().partition('\n')[0]
  separator = form.separator or max(
    _SEPARATORS.replace(form.decimal, ''), key=first.count
  )
  has_heading = form.header != 'none' and names is None
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('error', pd.errors.ParserWarning)
      table = pd.read_csv(
        io.StringIO(text),
        sep=separator,
        header=0 if has_heading else None,
        names=names,
        dtype=str,
        keep_default_na=False,
        skipinitialspace=True,
        index_col=False,
      )
  except (ValueError, pd.errors.ParserWarning) as reason:
    # Of the tokenizer's line, what comes after its own prefix.
    found = str(reason).strip().rpartition('C error: ')[2].rstrip('.')
    raise files.file_error(
      path, f'a CSV file with as many {separator!r} in every row', found
    ) from None
  table.columns = [str(name).strip() for name in table.columns]
  if not table.empty and (table.iloc[:, -1] == '').any():
    csv.field_size_limit(_MAX_FIELD_SIZE)
    reader = csv.reader(
      io.StringIO(text, ''), delimiter=separator, skipinitialspace=True
    )
    lengths = [len(row) for row in reader if row][has_heading:]
    # Shorter rows, which pandas fills up.
    for number, found in enumerate(lengths, 1):
      if found < table.shape[1]:
        raise ValueError(
          f'Expected `{path}` to have {table.shape[1]} cells in every row,'
          f' found {found} in row {number} after the heading.'
        )
  return table


def _decoded(path: str, charset: Optional[str]) -> str:
  """Returns a file's text."""
  content = files.read_bytes(path)
  if charset is None:
    charset = 'utf-16' if content.startswith(_UTF_16) else 'utf-8-sig'
    try:
      return content.decode(charset)
    except UnicodeDecodeError:
      charset = 'cp1252'
      logging.warning(
        '%s: read in the character set Windows-1252, as it is not in UTF-8;'
        ' `charset` names another one.',
        path,
      )
  try:
    return content.decode(charset)
  except UnicodeDecodeError as reason:
    raise files.file_error(path, f'a text in {charset}', reason) from None


def _check_heading(table: pd.DataFrame, form: Format) -> None:
  """Raises `ValueError` if the first line looks like one of the rows."""
  if form.header != 'auto':
    return
  names = pd.Series(table.columns, dtype=str)
  is_number = form.numbers(names).notna().to_numpy()
  of_numbers = np.array(
    [form.numbers(table[name].dropna()).notna().all() for name in table]
  )
  if of_numbers.any() and is_number[of_numbers].all():
    raise ValueError(
      f'Expected `{table.attrs["path"]}` to begin with a heading, found the'
      f' numbers {", ".join(names[is_number][:3])} in it; without one give'
      " `header='none'`, which calls the columns 0, 1, …, and if these are"
      " names `header='first'`."
    )


def _without_row_numbers(table: pd.DataFrame, form: Format) -> pd.DataFrame:
  """Returns the table without the unnamed index that pandas writes."""
  path, first = table.attrs['path'], table.columns[0]
  for name in table:
    original, _, number = name.rpartition('.')
    if original in table and number.isdecimal():
      logging.warning(
        '%s: %s may be a second column called %s.', path, name, original
      )
  values = form.numbers(table[first])
  if first == f'{_UNNAMED}0' and values.is_unique and (values % 1 == 0).all():
    logging.warning(
      '%s: the first column, row numbers without a name, is left out.', path
    )
    return table.drop(columns=first)
  return table
