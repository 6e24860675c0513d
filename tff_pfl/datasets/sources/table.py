"""Users' tables, read by pandas, as federated datasets.

`frames` describes the encoding of columns.
"""

import codecs
import contextlib
import csv
import dataclasses
import io
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import pandas as pd

from tff_pfl import errors, fields
from tff_pfl.datasets import federated_dataset, files, frames, partitioning
from tff_pfl.datasets.sources import own_files

PATTERNS = tuple(
  f'*.{form}{packed}'
  for form in ('csv', 'tsv', 'parquet')
  for packed in ('', '.gz')
)
# Column of the file's name if each file of a folder is a client.
FILE = 'file'
# Options of `read_csv` that apply to every line.
_OF_LINES = (
  *('sep', 'encoding', 'quotechar', 'quoting', 'doublequote', 'escapechar'),
  *('comment', 'skiprows', 'skipinitialspace', 'engine'),
)
# With no other options, each line that is not blank is a row.
_OF_CELLS = {'header', 'names', 'na_values', 'decimal', 'thousands', 'dtype'}
# Options for the training rows, and options of Parquet files alone.
_OF_TRAINING = {'nrows', 'columns', 'filters'}
_ENDING = re.compile(r'\.(csv|tsv|parquet)(\.gz)?$')


def _form(path: str) -> str:
  """Returns 'csv', 'tsv' or 'parquet'."""
  ending = _ENDING.search(path)
  return ending[1] if ending else 'csv'


def read_table(
  path: str, options: Mapping[str, Any], required: Sequence[str] = ()
) -> pd.DataFrame:
  """Reads a table.

  Args:
    path: A file of `PATTERNS`.
    options: Keyword arguments of `pandas.read_csv` or `pandas.read_parquet`.
    required: Names of columns that must be there.

  Raises:
    ValueError: If the file is missing or damaged, its first line names a column
      twice, a row is too short, or a column is missing.
  """
  content = files.read_bytes(path)
  form = _form(path)
  is_parquet = form == 'parquet'
  given = options
  if not is_parquet:
    defaults = dict(
      sep='\t' if form == 'tsv' else ',',
      index_col=False,
      skipinitialspace=True,
      engine='c',
    )
    options = {**defaults, **options}
    options['sep'] = options.pop('delimiter', options['sep'])
    if len(options['sep'] or '') != 1 or 'skipfooter' in options:
      options['engine'] = 'python'
    if options['engine'] == 'c':
      options['low_memory'] = False
  reader = pd.read_parquet if is_parquet else pd.read_csv
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('error', pd.errors.ParserWarning)
      frame = reader(io.BytesIO(content), **options)
  except UnicodeDecodeError as error:
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    raise _error(
      path,
      f'a text in UTF-8, found another ({error})',
      {'encoding': 'utf-16' if is_utf_16 else 'cp1252'},
    ) from None
  except (*errors.EXPECTED, LookupError, pd.errors.ParserWarning) as error:
    reason = ' '.join(str(error).split())
    message = f'a table that pandas.{reader.__name__} reads, found: {reason}'
    raise _error(path, message, {'sep': ';', 'decimal': ','}) from None
  if not is_parquet:
    if not {'header', 'names'} & set(options):
      _check_heading(path, content, options)
    if {*given} <= _OF_CELLS and given.get('header') is None:
      _check_lengths(path, content, options['sep'], frame)
    frame = frame.rename(columns=lambda name: str(name).strip())
    for name, column in frame.select_dtypes('str').items():
      frame[name] = column.str.strip()
  if not set(required) <= set(frame):
    contents = f'a table with the columns {", ".join(required)}'
    raise files.file_error(path, contents, ', '.join(map(str, frame)))
  return frame


def read_new(path: str, encoding: frames.FrameEncoding) -> pd.DataFrame:
  """Reads new rows with the options of the encoding.

  `nrows` is not used, nor are options of CSV files for Parquet files. Columns
  that `usecols` names may be missing.
  """
  if _form(path) == 'parquet':
    return read_table(path, {})
  options = {k: v for k, v in encoding.read.items() if k not in _OF_TRAINING}
  columns = options.get('usecols')
  if columns and isinstance(columns[0], str):
    options['usecols'] = {*columns}.__contains__
  return read_table(path, options)


def _error(
  path: str, message: str, options: Mapping[str, Any]
) -> files.FileError:
  """Returns the error for a file that other options may read."""
  return files.FileError(
    f'Expected `{path}` to be {message}; options of pandas read other forms, in'
    f" programs for example --dataset_read='{json.dumps(options)}'."
  )


def _check_heading(
  path: str, content: bytes, options: Mapping[str, Any]
) -> None:
  """Raises `ValueError` if the first line names a column twice."""
  first = {name: options[name] for name in options if name in _OF_LINES}
  first.update(header=None, nrows=1, dtype=str)
  heading = pd.read_csv(io.BytesIO(content), **first).iloc[0].dropna()
  doubled = heading[heading.duplicated()].tolist()
  if doubled:
    raise _error(
      path,
      f'a table with distinct column names, found {doubled[0]} twice',
      {'header': 0, 'names': ['x', 'y', '...']},
    )


def _check_lengths(
  path: str, content: bytes, separator: str, frame: pd.DataFrame
) -> None:
  """Raises `ValueError` for a row that is too short, which pandas fills."""
  if frame.iloc[:, -1].notna().all():
    return
  text, size = content.decode('utf-8-sig'), len(frame.columns)
  rows = csv.reader(
    io.StringIO(text, newline=''), delimiter=separator, skipinitialspace=True
  )
  with contextlib.suppress(csv.Error):  # Cells of more than 131,072 characters.
    for row in rows:
      if len(row) < size and row not in ([], ['']):
        raise _error(
          path,
          f'a table of {size} cells in every row, found {len(row)} in line'
          f' {rows.line_num}',
          {'sep': ';'},
        )


def _read_all(data_dir: Optional[str], options: Mapping[str, Any]):
  """Returns the table, and True if its column `FILE` names several files."""
  paths = []
  if data_dir and os.path.isdir(data_dir):
    paths = [
      p for pattern in PATTERNS for p in files.matching(data_dir, pattern)
    ]
  if len(paths) < 2:
    path = files.find_file('table', data_dir, PATTERNS)
    return read_table(path, options), False
  tables: dict[str, pd.DataFrame] = {}
  for path in sorted(paths):
    name = _ENDING.sub('', os.path.basename(path))
    table = read_table(path, options)
    first = next(iter(tables.values()), table)
    errors.expect(
      name not in tables and set(table) == set(first) and FILE not in table,
      'data_dir',
      'a folder of tables with distinct names, which are the clients, and with'
      f' the same columns ({", ".join(first)}), none called {FILE}',
      f'{path} with {", ".join(table)}',
    )
    tables[name] = table
  joined = pd.concat(tables, names=[FILE, None])
  return joined.assign(**{FILE: joined.index.get_level_values(FILE)}), True


@fields.checked_call
def load_table(
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  *,
  data_dir: Optional[str] = None,
  seed: fields.Seed = 0,
  label: str = 'label',
  client: Optional[str] = None,
  domain: Optional[str] = None,
  split: Optional[str] = None,
  weight: Optional[str] = None,
  drop: Union[str, Sequence[str]] = (),
  task: Optional[fields.one_of(frames.TASKS)] = None,
  read: Union[str, Mapping[str, Any]] = '{}',
  test_fraction: Optional[fields.ShareBelowOne] = None,
) -> federated_dataset.FederatedDataset:
  """Any table, with columns that you name for labels, domains and clients.

  It is a CSV or Parquet file or a folder of them. The partition is natural or
  any other.

  Args:
    num_clients: Number of clients.
    partition: Natural for the clients of the column, or a rule that deals all
      rows.
    data_dir: The file (.csv, .tsv or .parquet, also with .gz), its folder if
      that holds no other table, or a folder with a table of each client.
    seed: Non-negative.
    label: The column of labels, or several columns, separated by commas, for
      multilabel.
    client: The column of clients, which is not an input. None means the file
      names if a folder has several tables.
    domain: The column of domains, which is not an input.
    split: The column with the words train and test, which divides the rows.
      None draws the test rows.
    weight: The column of the rows' weights in the training loss.
    drop: Columns that are not inputs, such as row numbers.
    task: The task, 'classification' or 'regression'. None means regression for
      a column of floats and classification for others.
    read: Options of `pandas.read_csv` or `read_parquet`, as JSON, such as
      '{"sep": ";", "decimal": ",", "dtype": {"zip": "category"}}'.
    test_fraction: Fraction of a client's rows in its test set, in [0, 1),
      stratified by domain and class. None means 0.2. Not allowed with a split
      column.
  """
  try:
    options = json.loads(read if isinstance(read, str) else json.dumps(read))
  except (ValueError, TypeError) as error:
    raise ValueError(
      errors.message('read', f'options as JSON ({error})', read)
    ) from None
  errors.expect_type(options, Mapping, 'read', 'options by name')
  frame, has_files = _read_all(data_dir, options)
  if has_files and client is None:
    client = FILE
  drop = [drop] if isinstance(drop, str) else [*drop]
  drop += [FILE] * (has_files and client != FILE)
  with own_files.naming(data_dir):
    frame.columns = frame.columns.astype(str)
    for name in drop:
      names = ', '.join(frame)
      errors.expect(
        name in frame, 'drop', f'some of the columns ({names})', name
      )
    frame = frame.drop(columns=drop)
    if client is None and num_clients is None:
      num_clients = partitioning.NUM_CLIENTS
    data = federated_dataset.FederatedDataset.from_frame(
      frame,
      label=label.split(','),
      client=client,
      domain=domain,
      split=split,
      weight=weight,
      task=task,
      partition=partition,
      num_clients=num_clients,
      test_fraction=test_fraction,
      seed=seed,
      name='table',
    )
  data.encoding = dataclasses.replace(data.encoding, read=options)
  return data
