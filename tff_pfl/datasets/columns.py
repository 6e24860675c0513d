"""Columns of pandas frames: numbers, category values and their errors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

# Codes for cells without a position.
MISSING, UNKNOWN = -1, -2
_DAY = pd.Timedelta(days=1)
_EPOCH = pd.Timestamp(0, tz='UTC')
# The sum of the squares of larger numbers may overflow.
_MAX_NUMBER = 1e150
# A column with more distinct strings is free text or row numbers. So is a
# column with a different string in nearly every row.
_MAX_VALUES = 1000
_MIN_FREE_TEXTS = 50
_FREE = 0.9
# Numbers with another decimal mark, or in quotes from a spreadsheet.
_LIKE_NUMBER = (
  r"(?:'|=\")?[-+]?(?:\d+(?:[.,' \u00a0\u202f]\d{3})*(?:[.,]\d*)?|[.,]\d+)"
  r"['\"]?"
)


def error(
  column: pd.Series, contents: str, remedy: str, bad: Any = None
) -> ValueError:
  """Returns the error for a column.

  Args:
    column: The column.
    contents: The contents that it should have.
    remedy: Advice in terms of pandas, with COLUMN for the column.
    bad: Mask of the wrong cells, the first of which is named. None means all
      cells that are not missing.
  """
  bad = column.notna() if bad is None else bad
  place = int(np.argmax(bad))
  cell = column.iloc[place]
  cell = 'none' if pd.isna(cell) else repr(json_value(cell))
  label = column.index[place]
  label = ', '.join(map(str, label if isinstance(label, tuple) else [label]))
  remedy = remedy.replace('COLUMN', f'frame[{column.name!r}]')
  return ValueError(
    f'Expected the column {column.name!r} to have {contents}, found {cell} at'
    f' index {label}: {remedy}.'
  )


def json_value(cell: Any) -> Any:
  """Converts a cell to a JSON type, such as 3.0 to 3."""
  if isinstance(cell, np.generic):
    cell = cell.item()
  if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
    cell = int(cell)
  return cell if isinstance(cell, (bool, int, float)) else str(cell)


def complete(column: pd.Series) -> pd.Series:
  """Returns the column, or raises `ValueError` if a value is missing."""
  if column.isna().any():
    raise error(
      column,
      'a value in every row',
      f'`frame.dropna(subset=[{column.name!r}])` leaves such rows out,'
      " `pd.read_csv(..., keep_default_na=False, na_values=[''])` reads words"
      ' such as None',
      column.isna(),
    )
  return column


def is_category(column: pd.Series) -> bool:
  """Returns True for the dtype category."""
  return isinstance(column.dtype, pd.CategoricalDtype)


def inferred(column: pd.Series) -> pd.Series:
  """Infers the dtype of a column of objects or of Arrow types."""
  if isinstance(column.dtype, pd.ArrowDtype):
    cells = column.to_numpy(object, na_value=None)
    column = pd.Series(cells, column.index, object, column.name)
  return column.convert_dtypes() if column.dtype == object else column


def kind(column: pd.Series) -> str:
  """Returns 'numbers', 'dates', 'durations', or 'words' (also categories).

  Raises:
    ValueError: If the column is none of these.
  """
  column = inferred(column)
  if is_category(column) or types.is_string_dtype(column):
    return 'words'
  if types.is_datetime64_any_dtype(column.dtype):
    return 'dates'
  if types.is_timedelta64_dtype(column.dtype):
    return 'durations'
  if types.is_numeric_dtype(column.dtype) and column.dtype.kind != 'c':
    return 'numbers'
  texts = column.where(column.map(lambda cell: isinstance(cell, str)))
  is_word = texts.notna() & pd.to_numeric(texts, errors='coerce').isna()
  raise error(
    column,
    'numbers, strings, categories or dates, not the type'
    f' {types.infer_dtype(column, skipna=True)}',
    "`pd.to_numeric(COLUMN, errors='coerce')`, `pd.to_datetime(COLUMN)`,"
    " `COLUMN.astype(str)` and `COLUMN.astype('category')` make them",
    is_word if is_word.any() else None,
  )


def numbers(column: pd.Series) -> np.ndarray:
  """Returns a column without words as float64, with NaN for missing cells.

  Dates are days since 1970, durations are days, and booleans are 0 and 1.
  """
  column = inferred(column)
  column_kind = kind(column)
  if column_kind == 'dates':
    days = pd.to_datetime(column, utc=True)
    column = (days - _EPOCH.as_unit(days.dt.unit)) / _DAY
    # Not if all are that date itself, as new rows may be.
    if (column.dropna().abs() < 1).all() and column.any():
      raise error(
        column,
        'dates other than 1970-01-01',
        'pandas takes numbers for nanoseconds; `pd.to_datetime(numbers,'
        " format='%Y%m%d')` reads numbers such as 20240131",
      )
  elif column_kind == 'durations':
    column = column / _DAY
  values = column.to_numpy(float, na_value=np.nan)
  if (is_large := np.abs(values) > _MAX_NUMBER).any():
    raise error(
      column,
      f'numbers up to {_MAX_NUMBER:g}',
      '`COLUMN.mask(~np.isfinite(COLUMN))` makes infinite ones missing',
      is_large,
    )
  return values


def numbers_of(
  column: pd.Series, purpose: str, required: str = 'numbers'
) -> np.ndarray:
  """Returns `numbers`, or raises `ValueError` for a column of another kind.

  Args:
    column: The column. Any dtype is accepted if all values are missing.
    purpose: Purpose of the numbers, for the message.
    required: The required result of `kind`.
  """
  if column.isna().all():
    return np.full(len(column), np.nan)
  column = inferred(column)
  if kind(column) != required:
    function = {'dates': 'datetime', 'durations': 'timedelta'}.get(required)
    remedy = (
      f"`pd.to_{function or 'numeric'}(COLUMN, errors='coerce')` makes others"
      ' missing'
    )
    raise error(column, f'{required} {purpose}', remedy)
  return numbers(column)


def _expect_words(column: pd.Series) -> None:
  """Raises `ValueError` if strings are numbers or free text."""
  expect_different(column)
  words = pd.Series(column.dropna().unique(), dtype=str)
  meant = (
    f"`COLUMN.astype('category')` or `pd.read_csv(..., dtype={{{column.name!r}:"
    " 'category'})` if each is a category"
  )
  is_number = np.isfinite(pd.to_numeric(words, errors='coerce'))
  if is_number.any():
    is_word = ~column.isin(words[is_number]) & column.notna()
    raise error(
      column,
      'numbers alone or words alone',
      "`pd.to_numeric(COLUMN, errors='coerce')` makes others missing,"
      f" `pd.read_csv(..., na_values=['?'])` reads '?' as missing, {meant}",
      is_word if is_word.any() else None,
    )
  is_like_number = words.str.fullmatch(_LIKE_NUMBER)
  if is_like_number.mean() > 0.5:
    is_other = column.isin(words[~is_like_number])
    raise error(
      column,
      'numbers alone, in the form of Python',
      "`pd.read_csv(..., decimal=',', thousands='.', na_values=['?'])` reads"
      ' other forms and marks of missing values,'
      ' `pd.to_numeric(COLUMN.str.strip("\'="))` removes quotes, ' + meant,
      is_other if is_other.any() else None,
    )
  if pd.to_datetime(words, format='ISO8601', errors='coerce').notna().all():
    raise error(column, 'dates, or words', f'`pd.to_datetime(COLUMN)`, {meant}')
  if len(words) > _MAX_VALUES or (
    len(words) >= _MIN_FREE_TEXTS and len(words) > _FREE * column.count()
  ):
    raise error(
      column,
      f'at most {_MAX_VALUES} words, which recur ({len(words)} in'
      f' {column.count()} rows)',
      f'`frame.drop(columns=[{column.name!r}])` leaves it out,'
      " `pd.read_csv(..., decimal=',', thousands='.')` reads numbers,"
      f' `pd.to_datetime(COLUMN, dayfirst=True)` dates, {meant}',
    )


def values(column: pd.Series) -> list[Any]:
  """Returns the distinct values of a column in order, as JSON types.

  Categories keep their order and include those without a row.
  """
  column = inferred(column)
  if is_category(column):
    cells = column.cat.categories
  else:
    if kind(column) == 'words':
      _expect_words(column)
    else:
      numbers(column)
    cells = np.sort(column.dropna().unique())
  different = [json_value(cell) for cell in cells]
  if len({*map(str, different)}) < len(different):
    raise error(
      column,
      'values that are written differently, unlike 1 and "1"',
      '`COLUMN.astype(str)` makes them equal',
    )
  return different


def positions(column: pd.Series, among: Sequence[Any]) -> np.ndarray:
  """Returns each cell's position among values, int32 `[rows]`.

  Numbers, strings and categories are compared as text: 3.0 equals '3'.

  Returns:
    Positions, `MISSING` for missing cells, `UNKNOWN` for other values.
  """
  codes, uniques = pd.factorize(column)
  index = pd.Index([str(value) for value in among])
  places = index.get_indexer([str(json_value(value)) for value in uniques])
  places = np.where(places < 0, UNKNOWN, places)
  return np.append(places, MISSING)[codes].astype(np.int32)


def known_positions(column: pd.Series, among: Sequence[Any]) -> np.ndarray:
  """Returns `positions`; raises `ValueError` for missing or unknown values."""
  places = positions(complete(column), among)
  if (is_unknown := places == UNKNOWN).any():
    raise error(
      column,
      f'one of {", ".join(map(str, among))} in every row',
      'leave out rows with other values',
      is_unknown,
    )
  return places


def expect_names(column: pd.Series) -> None:
  """Raises `ValueError` unless cells can name clients or domains."""
  column = inferred(complete(column))
  column_kind = kind(column)
  expect_different(column)
  if column_kind in ('dates', 'durations'):
    raise error(column, 'names', '`COLUMN.astype(str)` makes them')
  if column_kind == 'numbers' and (is_part := numbers(column) % 1 != 0).any():
    raise error(
      column,
      'names, which are not fractions',
      '`pd.cut(COLUMN, [0, 50, 60])` makes groups of numbers',
      is_part,
    )


def owners(column: pd.Series) -> np.ndarray:
  """Returns the client of each row, integers or strings `[rows]`."""
  expect_names(column)
  codes, uniques = pd.factorize(column)
  names = [json_value(value) for value in uniques]
  if not all(type(name) is int for name in names):
    names = [str(name) for name in names]
  # As objects, because NumPy turns very large integers into floats.
  return np.array(names, object)[codes]


def expect_different(column: pd.Series) -> None:
  """Raises `ValueError` if strings differ only in case or blanks."""
  if not types.is_string_dtype(column):
    return
  words = column.dropna().drop_duplicates()
  is_second = words.str.strip().str.lower().duplicated()
  if is_second.any():
    raise error(
      words,
      'words that differ in more than case and blanks',
      '`COLUMN.str.strip().str.lower()` makes them equal, `COLUMN.astype('
      "'category')` if each is a category",
      is_second,
    )
