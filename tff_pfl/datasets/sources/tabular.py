"""Tables of numbers and categories, from a user's file.

A CSV file has a heading, or not, and may be compressed with gzip; parquet is
read as well. `table_encoding` makes inputs of its columns.

Numbers are standardized by the training rows of the clients that take part; so
are labels for regression, while predictions are in the labels' own unit. Test
rows and later rows are transformed with the same numbers. (docs/production.md
has the means and deviations as a federated sum.)
"""

import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np
import pandas as pd
from sklearn import preprocessing

from tff_pfl import errors
from tff_pfl.datasets import arrays as arrays_lib
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import table_encoding, table_files

# Name of the client column if each file of a folder is a client.
FILE = 'file'
# Largest size of the inputs of a client's rows.
_MAX_CLIENT_BYTES = 2**31


class _Inputs:
  """A function from rows' positions to models' inputs."""

  def __init__(
    self, encoding: table_encoding.TableEncoding, rows: table_encoding.Rows
  ):
    self._encoding = encoding
    self._rows = rows
    self._digest = hashlib.sha256(encoding.text.encode()).digest()

  def __call__(self, positions: np.ndarray) -> np.ndarray:
    return self._encoding.inputs(self._rows.select(positions))

  def content(self, positions: np.ndarray) -> Iterator[bytes]:
    """Yields rows in their compact form, for a checksum."""
    yield self._digest
    rows = self._rows.select(positions)
    yield rows.numbers.tobytes()
    yield rows.codes.tobytes()


def _arrays(
  table: pd.DataFrame,
  encoding: table_encoding.TableEncoding,
  name: str,
  owners: Optional[pd.Series],
) -> tuple[arrays_lib.Arrays, table_encoding.Rows, np.ndarray]:
  """Returns rows' positions as examples, the encoded rows, their labels."""
  rows, labels = encoding.encode(table), encoding.labels(table)
  parts = {'': slice(None)}
  if encoding.columns.split in table:
    is_test = encoding.columns.is_test(table)
    parts = {'': ~is_test, '_test': is_test}
  fields = {
    f'{field}{suffix}': values[chosen]
    for field, values in (
      ('x', np.arange(len(labels))),
      ('y', labels),
      ('domain', rows.domain),
      ('client', None if owners is None else owners.to_numpy(str)),
      ('weight', encoding.columns.weights(table)),
    )
    for suffix, chosen in parts.items()
    if values is not None
  }
  arrays = arrays_lib.Arrays(
    name=name,
    **fields,
    num_classes=len(encoding.classes) or None,
    domain_names=encoding.domains or None,
  )
  return arrays, rows, labels


def _deal(
  arrays: arrays_lib.Arrays,
  encoding: table_encoding.TableEncoding,
  rows: table_encoding.Rows,
  labels: np.ndarray,
  **options: Any,
) -> federated_dataset.FederatedDataset:
  """Deals examples to clients; options are those of `Arrays.to_clients`."""
  targets = encoding.target(labels)
  data = dataclasses.replace(
    arrays,
    y=targets[arrays.x],
    y_test=None if arrays.x_test is None else targets[arrays.x_test],
    transform=_Inputs(encoding, rows),
  ).to_clients(**options)
  data.encoding = encoding
  return data


def _standardized(
  encoding: table_encoding.TableEncoding,
  clients: federated_dataset.FederatedDataset,
  values: np.ndarray,
) -> table_encoding.TableEncoding:
  """Returns the encoding with the moments of clients' training rows.

  The clients' inputs are positions in `values`, which has for regression the
  label last.
  """
  if not values.shape[1]:
    return encoding
  trained = [clients.train(client_id).x for client_id in clients.client_ids]
  with np.errstate(invalid='ignore'):
    scaler = preprocessing.StandardScaler().fit(values[np.concatenate(trained)])
  # A column may have no value among these rows.
  scale = np.where(np.isfinite(scaler.scale_), scaler.scale_, 1)
  return dataclasses.replace(
    encoding,
    means=np.nan_to_num(scaler.mean_).tolist(),
    deviations=scale.tolist(),
  )


def to_clients(
  table: pd.DataFrame,
  columns: table_encoding.Columns,
  num_clients: int,
  partition: partitioning.Partitioner,
  seed: int,
  *,
  name: str,
  test_fraction: Optional[float],
) -> federated_dataset.FederatedDataset:
  """Deals a table's rows to clients and standardizes them.

  Arguments and errors are those of `load_tabular`.
  """
  columns.check(table)
  is_natural = isinstance(partition, natural.Natural)
  errors.expect(
    not is_natural or columns.client is not None,
    'client_column',
    f'given for the partition {partition.name}',
    columns.client,
  )
  errors.expect(
    columns.split is None or test_fraction is None,
    'test_fraction',
    'unset with a split column, which gives the test rows',
    test_fraction,
  )
  table = columns.used_rows(
    columns.with_names(table), columns.client if is_natural else None
  )
  encoding = table_encoding.fit(table, columns)
  owners = columns.owners(table, columns.client) if is_natural else None
  arrays, rows, labels = _arrays(table, encoding, name, owners)
  options = dict(
    num_clients=num_clients,
    partition=partition,
    seed=seed,
    test_fraction=test_fraction,
  )
  values = rows.numbers
  if not encoding.classes:
    values = np.column_stack([values, labels])
  # Dealt once to know each client's rows.
  clients = arrays.to_clients(**options)
  encoding = _standardized(encoding, clients, values)
  data = _deal(arrays, encoding, rows, labels, **options)
  _check_size(data)
  return data


def _check_size(data: federated_dataset.FederatedDataset) -> None:
  """Raises `ValueError` if a client's inputs would fill the memory."""
  num_inputs = len(data.encoding.input_names)
  most = max(
    max(data.num_train_examples(c), data.num_test_examples(c))
    for c in data.client_ids
  )
  errors.expect(
    4 * num_inputs * most <= _MAX_CLIENT_BYTES,
    'min_category_count',
    f'so large that the {most:,} rows of the largest client take at most 2 GiB',
    f'{data.encoding.columns.min_category_count}, which makes {num_inputs:,}'
    ' inputs',
  )


def load_new_clients(
  encoding: table_encoding.TableEncoding,
  path: str,
  *,
  seed: int = 0,
  test_fraction: Optional[float] = None,
) -> federated_dataset.FederatedDataset:
  """Loads later rows with the encoding of the training table.

  The client column gives their clients; without it all rows are of one client.
  A split column, if there is one, gives the test rows.

  Args:
    encoding: Encoding of the training table.
    path: A table with the same columns.
    seed: Seed of the choice of test rows.
    test_fraction: See `load_tabular`.

  Raises:
    ValueError: If the file is missing, damaged or lacks a column, or has a
      label, a domain or a cell that the encoding cannot take.
  """
  table = encoding.read(path, with_labels=True)
  columns = encoding.columns
  has_clients = columns.client in table
  table = columns.used_rows(table, columns.client if has_clients else None)
  owners = pd.Series('client', table.index)
  if has_clients:
    owners = columns.owners(table, columns.client)
  arrays, rows, labels = _arrays(
    table, encoding, os.path.basename(path), owners
  )
  return _deal(
    arrays,
    encoding,
    rows,
    labels,
    num_clients=owners.nunique(),
    partition='natural',
    seed=seed,
    test_fraction=test_fraction,
  )


def _read_folder(data_dir: str, form: table_files.Format) -> pd.DataFrame:
  """Reads all tables of a folder; the column `FILE` names a row's file."""
  contents = f'a folder of tables ({", ".join(table_files.PATTERNS)})'
  folder = files.find_folder(
    data_dir, ('tabular',), table_files.PATTERNS, contents
  )
  found = itertools.chain.from_iterable(
    files.matching(folder, pattern) for pattern in table_files.PATTERNS
  )
  paths: dict[str, str] = {}
  for path in found:
    name = re.sub(r'\.(csv|tsv|parquet)(\.gz)?$', '', os.path.basename(path))
    errors.expect(
      paths.setdefault(name, path) == path,
      'data_dir',
      'a folder of tables of different names, which are the clients',
      f'{paths[name]} and {path}',
    )
  return table_files.read_tables(dict(sorted(paths.items())), FILE, form)


def load_tabular(
  num_clients: int,
  partition: partitioning.Partitioner,
  *,
  data_dir: Optional[str] = None,
  seed: int = 0,
  label_column: str = 'label',
  domain_column: Optional[str] = None,
  client_column: Optional[str] = None,
  split_column: Optional[str] = None,
  weight_column: Optional[str] = None,
  drop_columns: Sequence[str] = (),
  categorical_columns: Sequence[str] = (),
  zero_is_missing_columns: Sequence[str] = (),
  missing_markers: Sequence[str] = table_files.MISSING_MARKERS,
  separator: Optional[str] = None,
  decimal: str = '.',
  thousands: Optional[str] = None,
  charset: Optional[str] = None,
  header: str = 'auto',
  task: str = 'classification',
  label_above: Optional[float] = None,
  label_values: Sequence[str] = (),
  missing_label: str = 'error',
  domain_bounds: Sequence[int] = (),
  missing_domain: str = 'error',
  missing_indicators: bool = False,
  min_category_count: Optional[int] = None,
  test_fraction: Optional[float] = None,
) -> federated_dataset.FederatedDataset:
  """Loads the rows of a table, by client or dealt to clients.

  Args:
    num_clients: Number of clients.
    partition: Natural for the clients of `client_column`, or a rule that deals
      all rows.
    data_dir: The file (.csv, .tsv, either with .gz, or .parquet), its folder
      if that holds no other table, or the parent of its folder `tabular`.
    seed: Non-negative.
    label_column: The column of labels: words or whole numbers, which are
      classes in their sorted order, unless `task`, `label_above` or
      `label_values` is given. Several columns, separated by commas, for
      multilabel.
    domain_column: The column of domains; None for data without domains.
    client_column: The column of clients, which is no input; 'file' if each file
      of a folder has one client's rows.
    split_column: The column with the words train and test, which divides the
      rows; None to draw the test rows.
    weight_column: The column of the rows' weights in the training loss,
      non-negative numbers; None for 1 each. Scores do not use them.
    drop_columns: Columns that are not inputs, such as row numbers.
    categorical_columns: Columns whose numbers stand for categories.
    zero_is_missing_columns: Columns of numbers in which 0 means a missing
      value.
    missing_markers: Marks of a missing value, besides an empty cell, in place
      of the default ones.
    separator: Separator of cells; None for the most frequent of comma,
      semicolon, tab and bar in the first line.
    decimal: Decimal mark, '.' or ','.
    thousands: Mark between groups of three digits; None for none.
    charset: Character set; None for UTF-8, UTF-16 with its mark, or else
      Windows-1252, with a warning.
    header: 'first' for a first line with the columns' names; 'none' for
      columns called 0, 1, …; 'auto' for 'first', with an error if that line has
      numbers like the rows.
    task: 'classification'; 'multilabel' for several labels, each of the same
      two classes, the second of which means that the label applies; or
      'regression' for numbers, which are standardized for training, so that
      reported errors are in standard deviations.
    label_above: Bound on numeric labels: class 1 is a label above it, class 0
      any other; None for labels that are classes.
    label_values: Words of the label column that are classes, in their order, or
      WORD:CLASS to rename words or give several the same class (sorted by class
      if these are numbers). Rows with other labels, or none, are left out.
    missing_label: Treatment of rows without a label: 'error', or 'drop' to
      leave them out.
    domain_bounds: Ascending numbers that divide the domain column's numbers
      into groups; a bound belongs to the group above it. Empty to make every
      value a domain.
    missing_domain: Treatment of rows without a domain, and with the partition
      natural of rows without a client: 'error', 'drop' to leave them out,
      'value' to make them one more domain (or client).
    missing_indicators: True to give a column with missing values a second input
      that marks them.
    min_category_count: Least count of a word with an input of its own; rarer
      words of a column share one, so that it may have any number of words. None
      for at most 1000 words, each with an input.
    test_fraction: Fraction of a client's rows in its test set, in [0, 1),
      stratified by domain and class; None for 0.2, or with a split column.

  Returns:
    Dataset with an `encoding`, `x` float32 `[inputs]` and `y` int32, of shape
    `[labels]` for multilabel; for regression float32.
  """
  form = table_files.Format(
    separator, decimal, thousands, charset, header, missing_markers
  )
  columns = table_encoding.Columns(
    label=label_column,
    domain=domain_column,
    client=client_column,
    split=split_column,
    weight=weight_column,
    drop=drop_columns,
    categorical=categorical_columns,
    zero_is_missing=zero_is_missing_columns,
    task=task,
    label_above=label_above,
    label_values=label_values,
    missing_label=missing_label,
    domain_bounds=domain_bounds,
    missing_domain=missing_domain,
    missing_indicators=missing_indicators,
    min_category_count=min_category_count,
    form=form,
  )
  if client_column == FILE and data_dir and os.path.isdir(data_dir):
    table = _read_folder(data_dir, form)
  else:
    path = files.find_file('tabular', data_dir, table_files.PATTERNS)
    table = table_files.read_table(path, form)
  return to_clients(
    table,
    columns,
    num_clients,
    partition,
    seed,
    name='tabular',
    test_fraction=test_fraction,
  )
