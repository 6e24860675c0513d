"""CSV files that the user brings, with errors that name the file."""

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np

from tff_pfl.datasets import files

# What stands for a missing value in tables, besides an empty cell.
MISSING_MARKERS = ('?', 'NA', 'N/A', 'NaN', 'nan', 'null')
# What Python's csv takes by itself, 131,072 characters, long texts exceed.
_MAX_FIELD_SIZE = 2**31 - 1


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
