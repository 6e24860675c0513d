"""CSV files that the user brings, with errors that name the file."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import files

# What stands for a missing value in tables, besides an empty cell.
MISSING_MARKERS = ('?', 'NA', 'N/A', 'NaN', 'nan', 'null')
# What Python's csv takes by itself, 131,072 characters, long texts exceed.
_MAX_FIELD_SIZE = 2**31 - 1
# In place of a word's position.
NONE, UNKNOWN = -1, -2


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

  def error(
    self,
    expected: str,
    column: Optional[str] = None,
    row: int = 0,
    advice: str = '',
  ) -> ValueError:
    """What is wrong with the file, or with a cell of it.

    Args:
      expected: Read after "Expected … to have".
      column: Where the cell is that was found instead.
    """
    if column is not None:
      cell = self.cells[column][row]
      found = repr(cell) if cell else 'none'
      expected += f', found {found} in row {row + 1} after the heading'
    return ValueError(f'Expected `{self.path}` to have {expected}{advice}.')

  def expect_columns(self, *columns: str) -> None:
    """Raises `ValueError` unless there are such columns."""
    missing = [c for c in dict.fromkeys(columns) if c not in self.cells]
    if missing:
      raise self.error(
        f'the columns {", ".join(missing)}, found {", ".join(self.cells)}'
      )

  def complete(self, column: str) -> Sequence[str]:
    """Returns a column's cells; `ValueError` if one is missing."""
    cells = self.cells[column]
    if '' in cells:
      raise self.error(f'a {column} in every row', column, cells.index(''))
    return cells

  def numbers(self, column: str, why: str) -> np.ndarray:
    """Returns a column's cells as numbers, NaN where missing."""
    values, others = numbers_of(self.cells[column])
    if others:
      raise self.error(
        f'numbers in column {column}', column, others[0], f'; {why}'
      )
    return values

  def positions(
    self, column: str, words: Sequence[str], where: str = ''
  ) -> np.ndarray:
    """Returns which of the words a column's cells are, `NONE` where missing."""
    found = positions_of(self.cells[column], words)
    unknown = np.flatnonzero(found == UNKNOWN)
    if len(unknown):
      raise self.error(
        f'one of {", ".join(words)} as {column}{where}', column, unknown[0]
      )
    return found


def read_table(
  path: str,
  missing_markers: Sequence[str] = MISSING_MARKERS,
  columns: Optional[Sequence[str]] = None,
) -> Table:
  """Reads a file in UTF-8, with or without a byte-order mark.

  Args:
    path: The file; compressed if its name ends in `.gz`.
    missing_markers: What stands for a missing value, besides an empty cell.
    columns: The columns' names of a file without a heading; None where its
      first line has them.

  Raises:
    ValueError: The file is missing or damaged, has no row or two columns of one
      name, or a row is longer or shorter than the heading.
  """
  limit = csv.field_size_limit(_MAX_FIELD_SIZE)
  try:
    # With or without the mark that spreadsheets put before UTF-8.
    content = io.StringIO(files.read_bytes(path).decode('utf-8-sig'), '')
    rows = [row for row in csv.reader(content, strict=True) if row]
  except (csv.Error, UnicodeDecodeError) as error:
    raise files.file_error(path, 'a CSV file in UTF-8', error) from None
  finally:
    csv.field_size_limit(limit)
  if columns is None:
    columns, *rows = rows or [[]]
  names = [name.strip() for name in columns]
  errors.expect(
    names and len(set(names)) == len(names),
    path,
    'a CSV file with a heading of different names',
    names,
  )
  if not rows:
    raise files.file_error(path, 'a CSV file with rows', 'none')
  cells = []
  for number, row in enumerate(rows):
    if len(row) != len(names):
      raise ValueError(
        f'Expected `{path}` to have {len(names)} cells in every row, found'
        f' {len(row)} in row {number + 1} after the heading.'
      )
    texts = (text.strip() for text in row)
    cells.append(['' if t in missing_markers else t for t in texts])
  return Table(path, dict(zip(names, map(list, zip(*cells)))))


def numbers_of(cells: Sequence[str]) -> tuple[np.ndarray, list[int]]:
  """Returns cells as numbers, and which of those that are there are none.

  Args:
    cells: A column's texts; empty where missing.

  Returns:
    float64 array, NaN where there is no number, and the positions of the cells
    that are something else.
  """
  values = np.full(len(cells), np.nan)
  others = []
  for number, text in enumerate(cells):
    if text:
      try:
        # Python would read 10_19, a group of ages, as 1019.
        values[number] = float(text.replace('_', ' '))
      except ValueError:
        pass
      if not np.isfinite(values[number]):
        others.append(number)
  return values, others


def positions_of(cells: Sequence[str], words: Sequence[str]) -> np.ndarray:
  """Returns which of the words each cell is, numbers being equal by value.

  Returns:
    int32 array, `NONE` where a cell is missing, `UNKNOWN` where it is none.
  """
  position = {'': NONE, **{word: i for i, word in enumerate(words)}}
  found = np.array([position.get(cell, UNKNOWN) for cell in cells], np.int32)
  unknown = np.flatnonzero(found == UNKNOWN)
  if len(unknown):
    # 3.0 is 3: whole numbers of a column with gaps are often written so.
    values, _ = numbers_of(words)
    by_value = {v: i for i, v in enumerate(values) if not np.isnan(v)}
    values, _ = numbers_of([cells[i] for i in unknown])
    found[unknown] = [by_value.get(value, UNKNOWN) for value in values]
  return found
