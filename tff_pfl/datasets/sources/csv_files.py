"""CSV files that the user brings, with errors that name the file."""

import contextlib
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import files

# What stands for a missing value in tables, besides an empty cell.
MISSING_MARKERS = ('?', 'NA', 'N/A', 'NaN', 'nan', 'null')
# What Python's csv takes by itself, 131,072 characters, long texts exceed.
_MAX_FIELD_SIZE = 2**31 - 1


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
        f'a {column} in every row, found none in {row_name(cells.index(""))}'
      )
    return cells

  def numbers(self, column: str, why: str) -> np.ndarray:
    """Returns a column's cells as numbers, NaN where missing.

    Raises:
      ValueError: One is something else; the message names its row, and says
        `why` numbers are needed or what to do.
    """
    cells = self.cells[column]
    values, others = numbers_of(cells)
    if others:
      raise self.error(
        f'numbers in column {column}, found {cells[others[0]]!r} in'
        f' {row_name(others[0])}; {why}'
      )
    return values


def read_rows(
  path: str, columns: Optional[Sequence[str]] = None
) -> tuple[tuple[str, ...], list[dict[Optional[str], Optional[str]]]]:
  """Reads a file in UTF-8, with or without a byte-order mark.

  Args:
    path: The file; compressed if its name ends in `.gz`.
    columns: The columns' names of a file without a heading; None where its
      first line has them.

  Returns:
    The columns' names, as in the heading, none of an empty file; and the rows'
    cells by column. They are None where a row is too short for the column;
    those beyond the heading's are a list under the key None. Empty lines do not
    count.

  Raises:
    ValueError: The file is missing or damaged; the message names it.
  """
  try:
    # With or without the mark that spreadsheets put before UTF-8.
    content = files.read_bytes(path).decode('utf-8-sig')
    with _fields_of_any_size():
      reader = csv.DictReader(
        io.StringIO(content, newline=''), columns, strict=True
      )
      names = tuple(reader.fieldnames or ())
      return names, list(reader)
  except (csv.Error, UnicodeDecodeError) as error:
    raise files.file_error(path, 'a CSV file in UTF-8', error) from None


def read_table(
  path: str,
  missing_markers: Sequence[str] = MISSING_MARKERS,
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
  names, rows = read_rows(path, columns)
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
        f' {"more" if None in row else "fewer"} in {row_name(number)}.'
      )
    texts = (text.strip() for text in row.values())
    cells.append(['' if t in missing_markers else t for t in texts])
  return Table(path, dict(zip(names, map(list, zip(*cells)))))


def row_name(number: int) -> str:
  """Returns what messages call the row at a position."""
  return f'row {number + 1} after the heading'


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


@contextlib.contextmanager
def _fields_of_any_size() -> Iterator[None]:
  """Lifts the limit that the csv module keeps for the whole process."""
  limit = csv.field_size_limit(_MAX_FIELD_SIZE)
  try:
    yield
  finally:
    csv.field_size_limit(limit)
