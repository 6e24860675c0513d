"""Users' tables: CSV with any separator, or parquet, read by pandas.

Cells are texts until numbers are needed: without blanks around them, without
spreadsheets' marks of numbers (`="1.5"`, `'1.5`), and NaN where missing. Row
numbers in messages begin at 1 after the heading.
"""

import codecs
import collections
import csv
import dataclasses
import io
import itertools
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

import numpy as np
import pandas as pd
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import files

PATTERNS = ('*.csv', '*.csv.gz', '*.tsv', '*.tsv.gz', '*.parquet')
# Marks of a missing value, besides an empty cell: pandas' words and '?'.
MISSING_MARKERS = (
  '?', '#N/A', '#NA', '<NA>', 'N/A', 'NA', 'NULL', 'NaN', 'None', '-NaN',
  '-nan', 'n/a', 'nan', 'null',
)  # fmt: skip
HEADERS = ('auto', 'first', 'none')
_SEPARATORS = ',;\t|'
_THOUSANDS = (None, ',', '.', ' ', "'")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UNNAMED = 'Unnamed: '
# Long texts exceed the default of Python's csv, 131,072 characters.
_MAX_FIELD_SIZE = 2**31 - 1
# In place of a word's position.
NONE, UNKNOWN = -1, -2


@dataclasses.dataclass(frozen=True)
class Format:
  """The form of a file with a table; see `tabular.load_tabular` for each.

  Attributes:
    separator: Separator of cells; None for the most frequent one in the first
      line.
    charset: Character set; None for UTF-8, UTF-16 with its mark, or else
      Windows-1252.
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
      self.thousands in _THOUSANDS and self.thousands != self.decimal,
      'thousands',
      'a comma, point, blank or apostrophe, and another mark than `decimal`',
      self.thousands,
    )
    if self.separator == r'\t':  # As it is typed.
      object.__setattr__(self, 'separator', '\t')
    errors.expect(
      self.separator is None or len(self.separator) == 1,
      'separator',
      'one character',
      self.separator,
    )

  def numbers(self, cells: pd.Series) -> pd.Series:
    """Returns cells as float64, NaN where missing or no finite number."""
    if self.thousands:
      if self.thousands == ' ':
        cells = cells.str.replace(r'[\u00a0\u202f]', ' ', regex=True)
      mark, point = re.escape(self.thousands), re.escape(self.decimal)
      grouped = rf'[-+]?\d{{1,3}}(?:{mark}\d{{3}})+(?:{point}\d*)?'
      plain = cells.str.replace(self.thousands, '', regex=False)
      cells = cells.mask(cells.str.fullmatch(grouped).eq(True), plain)
    if self.decimal == ',':
      # Then a point is no part of a number.
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
    table: The result of `read_table`, or some of its rows.
    expected: The demand on the table, read after "Expected … to have".
    column: The column of the wrong cell; None for no cell.
    bad: Mask of the wrong rows, bool `[rows]`; the first is named.
    advice: Text at the end of the message.
  """
  path = table.attrs['path']
  if column is not None:
    position = int(np.argmax(bad))
    cell, row = table[column].iloc[position], table.index[position]
    found = 'none' if pd.isna(cell) else repr(cell)
    # Of a row of several files, its own.
    starts = table.attrs.get('starts', {path: 0})
    path, start = [item for item in starts.items() if item[1] <= row][-1]
    expected += f', found {found} in row {row - start + 1} after the heading'
  return ValueError(f'Expected `{path}` to have {expected}{advice}.')


def expect_columns(table: pd.DataFrame, *columns: str) -> None:
  """Raises `ValueError` unless the table has the columns."""
  missing = [c for c in dict.fromkeys(columns) if c not in table]
  if missing:
    raise error(
      table, f'the columns {", ".join(missing)}, found {", ".join(table)}'
    )


def complete(table: pd.DataFrame, column: str, advice: str = '') -> pd.Series:
  """Returns a column's cells; raises an error with advice if one is missing."""
  is_missing = table[column].isna().to_numpy()
  if is_missing.any():
    raise error(table, f'a {column} in every row', column, is_missing, advice)
  return table[column]


def positions(
  table: pd.DataFrame, column: str, words: Sequence[str], form: Format
) -> np.ndarray:
  """Returns each cell's position among words; numbers compare by value.

  Returns:
    int32 `[rows]`, `NONE` for a missing cell, `UNKNOWN` for another word.
  """
  cells = table[column]
  found = pd.Index(words).get_indexer(cells)
  unknown = (found < 0) & cells.notna().to_numpy()
  # 3.0 is 3, as whole numbers of a column with gaps are often written.
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
  """Returns `positions`; raises `ValueError` if a cell is another word."""
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
  """Returns the distinct cells, sorted; numbers compare by value."""
  words = pd.Series(cells.dropna().unique(), dtype=str)
  values = form.numbers(words)
  # 3.0 is 3, but 03 is another code than 3, and a float has 15 digits.
  plain = words.str.replace(r'^\+|[.,]0*$', '', regex=True)
  if values.isna().any() or plain.nunique() > values.nunique():
    return sorted(words)
  return [repr(n).removesuffix('.0') for n in np.unique(values).tolist()]


def read_table(
  path: str,
  form: Format = Format(),
  names: Optional[Sequence[str]] = None,
) -> pd.DataFrame:
  """Reads a table.

  Args:
    path: A parquet file if its name ends in `.parquet`, else a CSV file,
      compressed if its name ends in `.gz`.
    form: Form of the file.
    names: Names of the columns of a file without a heading.

  Returns:
    A text, or NaN, for every cell; a second column x is called x.1, and
    `attrs` has such names as `doubled`.

  Raises:
    ValueError: If the file is missing or damaged or has no row, its first line
      is no heading, or a row is longer or shorter than it.
  """
  if path.endswith('.parquet'):
    table = _read_parquet(path, form)
  else:
    table = _read_csv(path, form, names)
  markers = pd.Series(['', *form.missing_markers], dtype=str)
  values = form.numbers(markers).dropna()
  for name in table:
    cells = table[name].str.strip()
    if cells.str.startswith(('="', "'")).any():
      cells = cells.str.replace(r'^="([^"]*)"$', r'\1', regex=True)
      cells = cells.str.replace(r"^'([-+.\d][^']*)'?$", r'\1', regex=True)
    is_missing = cells.isin(markers)
    if len(values):
      is_missing |= form.numbers(cells).isin(values)
    table[name] = cells.mask(is_missing)
  table.attrs['path'] = path
  return _without_row_numbers(table, form)


def read_tables(
  paths: Mapping[str, str],
  column: str,
  form: Format = Format(),
  names: Optional[Sequence[str]] = None,
) -> pd.DataFrame:
  """Reads files with the same columns as one table; see `read_table`.

  Args:
    paths: Value of `column` for a file's rows to the file.
    column: Name of a column to add, which none of the files may have.
    form: Form of the files.
    names: Names of the columns of files without a heading.
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
  joined.attrs['doubled'] = first.attrs.get('doubled', [])
  ends = itertools.accumulate(map(len, tables.values()), initial=0)
  joined.attrs['starts'] = dict(zip(paths.values(), ends))
  return joined


def _read_parquet(path: str, form: Format) -> pd.DataFrame:
  """Reads a parquet file; returns cells as a CSV file of the form has them."""
  try:
    table = pd.read_parquet(path)
  except OSError as reason:
    raise files.unreadable_error(path, reason) from None
  except ValueError as reason:
    raise _error(path, 'a parquet file', reason) from None
  table = table.reset_index(drop=table.index.names == [None])
  table.columns = [
    '_'.join(map(str, name)) if isinstance(name, tuple) else str(name)
    for name in table
  ]
  if table.empty or not table.columns.is_unique:
    raise _error(path, 'a table with rows and distinct columns', 'another')

  def text(value):
    if isinstance(value, bytes):
      return value.decode('utf-8', 'replace')
    if isinstance(value, float):
      return repr(value).removesuffix('.0').replace('.', form.decimal)
    return str(value)

  for name in table:
    texts = table[name].map(text, na_action='ignore').astype(str)
    table[name] = texts.mask(table[name].isna())
  return table


def _read_csv(
  path: str, form: Format, names: Optional[Sequence[str]]
) -> pd.DataFrame:
  text = _decoded(path, form.charset)
  unquoted = re.sub(r'"[^"]*"', '', text.lstrip().partition('\n')[0])
  separator = form.separator or max(
    _SEPARATORS.replace(form.decimal, ''), key=unquoted.count
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
  except pd.errors.EmptyDataError:
    table = pd.DataFrame()
  except (ValueError, pd.errors.ParserWarning) as reason:
    _check_lengths(path, text, separator, has_heading, names)
    reason = str(reason).strip().rpartition('C error: ')[2]
    raise _error(path, 'a CSV file', reason) from None
  if table.empty:
    raise _error(path, 'a table with rows', 'none')
  # Rows that are too short were filled up.
  if (table.iloc[:, -1] == '').any():
    _check_lengths(path, text, separator, has_heading, names)
  table.columns = [str(name).strip() for name in table.columns]
  if not table.columns.is_unique:
    found = ', '.join(table)
    raise _error(path, 'a table with columns of different names', found)
  if has_heading:
    # Before pandas has named the second one x.1.
    heading = [name.strip() for name in next(_rows(text, separator))]
    counts = collections.Counter(filter(None, heading))
    table.attrs['doubled'] = [name for name in counts if counts[name] > 1]
    if form.header == 'auto':
      _check_heading(path, heading, table, form)
  return table


def _check_lengths(
  path: str,
  text: str,
  separator: str,
  has_heading: bool,
  names: Optional[Sequence[str]],
) -> None:
  """Raises `FileError` for the first row of another length."""
  size = len(names or ())
  for number, row in enumerate(_rows(text, separator), 1 - has_heading):
    size = size or len(row)
    if len(row) != size:
      raise _error(
        path,
        f'a table of {size} cells between {separator!r} in every row',
        f'{len(row)} in row {number} after the heading',
      )


def _rows(text: str, separator: str) -> Iterator[list[str]]:
  """Yields the cells of each row that is not empty."""
  csv.field_size_limit(_MAX_FIELD_SIZE)
  file = io.StringIO(text, '')
  reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
  return filter(None, reader)


def _error(path: str, constraint: str, found: object) -> files.FileError:
  return files.FileError(
    f'Expected `{path}` to be {constraint}, found {found}.'
  )


def _decoded(path: str, charset: Optional[str]) -> str:
  """Reads a file's text."""
  content = files.read_bytes(path)
  if charset is None and not content.startswith(_UTF_16) and b'\0' in content:
    raise _error(
      path,
      'a CSV or parquet file',
      "bytes of 0, as in a spreadsheet's own format, which has to be saved as"
      ' CSV, or in UTF-16 without a mark, which `charset` has to name',
    )
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
  except (UnicodeDecodeError, LookupError) as reason:
    raise _error(
      path, f'a text in {charset}', f'another ({reason}; see `charset`)'
    ) from None


def _check_heading(
  path: str, heading: Sequence[str], table: pd.DataFrame, form: Format
) -> None:
  """Raises `ValueError` if the first line looks like one of the rows."""
  names = pd.Series(heading, dtype=str)
  are_empty = (names == '').to_numpy()
  are_numbers = form.numbers(names).notna().to_numpy()
  has_numbers = [form.numbers(table[name]).notna().any() for name in table]
  if are_numbers.any() and (are_numbers | are_empty)[has_numbers].all():
    raise ValueError(
      f'Expected `{path}` to begin with a heading, found the numbers'
      f' {", ".join(names[are_numbers][:3])} in it; without one give'
      " `header='none'`, which calls the columns 0, 1, …, and if these are"
      " names `header='first'`."
    )


def _without_row_numbers(table: pd.DataFrame, form: Format) -> pd.DataFrame:
  """Removes the unnamed index that pandas writes."""
  path, first = table.attrs['path'], table.columns[0]
  values = form.numbers(table[first])
  if first == f'{_UNNAMED}0' and values.is_unique and (values % 1 == 0).all():
    logging.warning(
      '%s: the first column, row numbers without a name, is left out.', path
    )
    return table.drop(columns=first)
  return table
