"""Columns of pandas frames: numbers, values of categories, and their errors."""

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import pandas as pd
from absl import logging
from pandas.api import types

# In place of a value's position.
MISSING, UNKNOWN = -1, -2
_DAY = pd.Timedelta(days=1)
_EPOCH = pd.Timestamp(0, tz='UTC')
# Larger numbers' squares cannot be added up.
_MAX_NUMBER = 1e150
# A column with more strings is free text or row numbers, and so is one with
# another string in nearly every row.
_MAX_VALUES = 1000
_MIN_FREE_TEXTS = 50
_FREE = 0.9
# Numbers with another decimal mark, or in a spreadsheet's quotes.
_LIKE_NUMBER = (
  r"(?:'|=\")?[-+]?(?:\d+(?:[.,' \u00a0\u202f]\d{3})*(?:[.,]\d*)?|[.,]\d+)"
  r"['\"]?"
)
_LIKE_QUANTITY = (
  r'[-+]?[$€£¥]?\s?\d[\d.,]*\s?(?:[%$€£¥]|[^\W\d_]{1,4})?|[$€£¥]\s?\d.*'
)


def error(
  column: pd.Series, contents: str, remedy: str, bad: Any = None
) -> ValueError:
  """Returns the error for a column.

  Args:
    column: The column.
    contents: What it should have.
    remedy: Advice, in pandas' words, with COLUMN for the column.
    bad: Mask of the wrong cells, of which the first is named; None for those
      that are not missing.
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
  """Returns a cell as a type of JSON; 3.0 is 3."""
  if isinstance(cell, np.generic):
    cell = cell.item()
  if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
    cell = int(cell)
  return cell if isinstance(cell, (bool, int, float)) else str(cell)


def complete(column: pd.Series) -> pd.Series:
  """Returns the column; raises `ValueError` if a value is missing."""
  if column.isna().any():
    raise error(
      column,
      'a value in every row',
      f'`frame.dropna(subset=[{column.name!r}])` leaves such rows out',
      column.isna(),
    )
  return column


def is_date(column: pd.Series) -> bool:
  """Returns True for dates and times."""
  return types.is_datetime64_any_dtype(column.dtype)


def is_category(column: pd.Series) -> bool:
  """Returns True for the dtype category."""
  return isinstance(column.dtype, pd.CategoricalDtype)


def numbers(column: pd.Series) -> Optional[np.ndarray]:
  """Returns numbers as float64, NaN where missing; None for words.

  Dates are days since 1970, durations days, and booleans 0 and 1.
  """
  if column.dtype == object:
    column = column.convert_dtypes()
  original = column
  if is_category(column) or types.is_string_dtype(column):
    return None
  if is_date(column):
    column = (pd.to_datetime(column, utc=True) - _EPOCH) / _DAY
  elif types.is_timedelta64_dtype(column.dtype):
    column = column / _DAY
  elif column.dtype.kind == 'c' or not (
    types.is_numeric_dtype(column.dtype) or types.is_bool_dtype(column.dtype)
  ):
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
  values = column.to_numpy(float, na_value=np.nan)
  if is_date(original) and (np.abs(values[~np.isnan(values)]) < 1).all():
    raise error(
      original,
      'dates other than 1970-01-01',
      'pandas takes numbers for nanoseconds; `pd.to_datetime(numbers, format='
      "'%Y%m%d')` reads such as 20240131",
    )
  if (is_large := np.abs(values) > _MAX_NUMBER).any():
    raise error(
      column,
      f'numbers up to {_MAX_NUMBER:g}',
      '`COLUMN.mask(~np.isfinite(COLUMN))` makes infinite ones missing',
      is_large,
    )
  return values


def required_numbers(
  column: pd.Series, purpose: str, dates: bool = False
) -> np.ndarray:
  """Returns `numbers`; raises `ValueError` for words.

  Args:
    column: The column.
    purpose: What they are for, after "numbers".
    dates: True for dates in place of numbers.
  """
  values = numbers(column)
  if values is None or is_date(column) != dates:
    kind, function = ('numbers', 'to_numeric')
    if dates:
      kind, function = ('dates', 'to_datetime')
    remedy = f"`pd.{function}(COLUMN, errors='coerce')` makes others missing"
    raise error(column, f'{kind} {purpose}', remedy)
  return values


def _expect_words(column: pd.Series, is_input: bool) -> None:
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
      f" `pd.read_csv(..., na_values=['?'])` reads marks of such, {meant}",
      is_word if is_word.any() else None,
    )
  is_like_number = words.str.fullmatch(_LIKE_NUMBER)
  if is_like_number.mean() > 0.5:
    is_other = column.isin(words[~is_like_number])
    raise error(
      column,
      'numbers alone, in the form of Python',
      "`pd.read_csv(..., decimal=',', thousands='.', na_values=['?'])` reads"
      ' others and marks of missing values,'
      ' `pd.to_numeric(COLUMN.str.strip("\'="))` takes quotes away, ' + meant,
      is_other if is_other.any() else None,
    )
  if not is_input:
    return
  if pd.to_datetime(words, format='ISO8601', errors='coerce').notna().all():
    raise error(column, 'dates, or words', f'`pd.to_datetime(COLUMN)`, {meant}')
  is_quantity = words.str.fullmatch(_LIKE_QUANTITY)
  if len(words) > _MAX_VALUES or (
    len(words) >= _MIN_FREE_TEXTS
    and (len(words) > _FREE * column.count() or is_quantity.mean() > 0.5)
  ):
    raise error(
      column,
      f'at most {_MAX_VALUES} words, which recur ({len(words)} in'
      f' {column.count()} rows)',
      f'`frame.drop(columns=[{column.name!r}])` leaves it out,'
      " `pd.read_csv(..., decimal=',', thousands='.')` reads numbers,"
      f' `pd.to_datetime(COLUMN, dayfirst=True)` dates, {meant}',
    )
  if is_quantity.any():
    logging.warning(
      'Column %r has words that begin with a number, such as %r; each becomes'
      ' an input. pd.to_numeric makes numbers of them, .astype("category") says'
      ' that they are meant.',
      column.name,
      words[is_quantity].iloc[0],
    )


def values(column: pd.Series, is_input: bool = True) -> list[Any]:
  """Returns the distinct values of a column, in their order, for JSON.

  Categories keep their order, and those without a row.

  Args:
    column: The column.
    is_input: False for labels, of which there may be many.
  """
  if is_category(column):
    return [json_value(value) for value in column.cat.categories]
  if numbers(column) is None:
    _expect_words(column, is_input)
  return [json_value(value) for value in np.sort(column.dropna().unique())]


def positions(column: pd.Series, among: Sequence[Any]) -> np.ndarray:
  """Returns each cell's position among values, int32 `[rows]`.

  Numbers, strings and categories compare by what is written: 3.0 is '3'.

  Returns:
    Positions, `MISSING` where a cell is, `UNKNOWN` for another value.
  """
  codes, uniques = pd.factorize(column)
  index = pd.Index([str(value) for value in among])
  places = index.get_indexer([str(json_value(value)) for value in uniques])
  places = np.where(places < 0, UNKNOWN, places)
  return np.append(places, MISSING)[codes].astype(np.int32)


def known_positions(column: pd.Series, among: Sequence[Any]) -> np.ndarray:
  """Returns `positions`; raises `ValueError` for missing and other values."""
  places = positions(complete(column), among)
  if (is_unknown := places == UNKNOWN).any():
    raise error(
      column,
      f'one of {", ".join(map(str, among))} in every row',
      'leave rows with others out',
      is_unknown,
    )
  return places


def owners(column: pd.Series) -> np.ndarray:
  """Returns the clients that a column names, integers or strings `[rows]`."""
  expect_names(column)
  codes, uniques = pd.factorize(column)
  names = [json_value(value) for value in uniques]
  if not all(type(name) is int for name in names):
    names = [str(name) for name in names]
  return np.array(names)[codes]


def expect_names(column: pd.Series) -> None:
  """Raises `ValueError` unless cells are names, as of clients or domains."""
  expect_different(complete(column))
  if types.is_float_dtype(column.dtype) and (column % 1).any():
    raise error(
      column,
      'names, which are no fractions',
      '`pd.cut(COLUMN, [0, 50, 60])` makes groups of numbers',
      column % 1 != 0,
    )


def expect_different(column: pd.Series) -> None:
  """Raises `ValueError` if strings differ in case or blanks alone."""
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
