"""Tables of numbers and categories, from a CSV file that the user brings.

The file has a heading, and may be compressed with gzip. What its columns become
is in `table_encoding`.

Numbers are standardized federatedly: of each column, the clients that take part
count and sum their training rows' values and squares, one federated sum adds
these up (see `standardization`), and all subtract the resulting mean and divide
by the deviation. So are the labels for regression; predictions are given in the
labels' own unit. The test rows, and rows that come later, are transformed with
the same numbers.
"""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import federated_dataset, files, partitioning
from tff_pfl.datasets.partitioning import natural
from tff_pfl.datasets.sources import (
  csv_files,
  standardization,
  table_columns,
  table_encoding,
)

_PATTERNS = ('*.csv', '*.csv.gz')
_TEST_FRACTION = 0.2
# What the inputs of a client's rows may take, of tables of many inputs.
_MAX_CLIENT_BYTES = 2**31


class _Inputs:
  """Makes models' inputs of rows, which are given by their positions."""

  def __init__(
    self, encoding: table_encoding.TableEncoding, rows: table_encoding.Rows
  ):
    self._encoding = encoding
    self._rows = rows

  def __call__(self, positions: np.ndarray) -> np.ndarray:
    return self._encoding.inputs(self._rows.select(positions))


class _ManyInputs(_Inputs):
  """The same of rows that are too wide to be read for a checksum."""

  @functools.cached_property
  def _digest(self) -> bytes:
    return hashlib.sha256(self._encoding.text.encode()).digest()

  def content(self, positions: np.ndarray) -> Iterator[bytes]:
    yield self._digest
    rows = self._rows.select(positions)
    yield rows.numbers.tobytes()
    yield rows.codes.tobytes()


class _EncodedTable:
  """A table's rows and labels as an encoding has them.

  Attributes:
    keys: Whose each row is, `[rows]`; None where a rule deals them.
    is_used: Which rows are not left out, bool `[rows]`.
  """

  def __init__(
    self,
    table: csv_files.Table,
    encoding: table_encoding.TableEncoding,
    keys: Optional[np.ndarray],
  ):
    self._table = table
    self.keys = keys
    self.rows, self.labels = encoding.encode(table), encoding.labels(table)
    self.is_used = np.ones(table.num_rows, bool)
    is_known = np.ones(table.num_rows, bool)
    if encoding.classes:
      is_known &= (self.labels.reshape(table.num_rows, -1) >= 0).all(axis=1)
    if self.rows.domain is not None:
      is_known &= self.rows.domain >= 0
    self._leave_out(~is_known, 'label or domain')
    if keys is not None:
      self._leave_out(keys == '', 'client')

  def _leave_out(self, chosen: np.ndarray, why: str) -> None:
    self.is_used &= ~chosen
    if chosen.any():
      logging.warning(
        '%s: %d of %d rows are left out for their %s.',
        self._table.path,
        chosen.sum(),
        len(chosen),
        why,
      )

  def deal(
    self,
    encoding: table_encoding.TableEncoding,
    y: np.ndarray,
    *,
    test_fraction: Optional[float],
    **options: Any,
  ) -> federated_dataset.FederatedDataset:
    """Returns the rows' positions, or what is made of them, by client.

    Args:
      y: What models learn, `[rows]`.
      **options: Further ones of `FederatedDataset.from_arrays`.
    """
    parts = {'': self.is_used}
    if encoding.columns.split in self._table.cells:
      errors.expect(
        test_fraction is None,
        'test_fraction',
        'unset with a split column, which says what rows are tested on',
        test_fraction,
      )
      is_test = encoding.columns.is_test(self._table)
      parts = {'': self.is_used & ~is_test, '_test': self.is_used & is_test}
    elif test_fraction is None:
      test_fraction = _TEST_FRACTION
    fields = {
      f'{name}{suffix}': values[is_chosen]
      for name, values in (
        ('x', np.arange(self._table.num_rows)),
        ('y', y),
        ('domain', self.rows.domain),
        ('keys', self.keys),
      )
      for suffix, is_chosen in parts.items()
      if values is not None
    }
    data = federated_dataset.FederatedDataset.from_arrays(
      **fields,
      **options,
      test_fraction=test_fraction or 0,
      num_classes=len(encoding.classes) or None,
      domain_names=encoding.domains or None,
    )
    data.encoding = encoding
    return data

  def deal_inputs(
    self, encoding: table_encoding.TableEncoding, **options: Any
  ) -> federated_dataset.FederatedDataset:
    """Returns examples by client; see `deal`."""
    # With their option came tables so wide; others keep their runs' checksum.
    is_wide = encoding.columns.min_category_count is not None
    inputs = (_ManyInputs if is_wide else _Inputs)(encoding, self.rows)
    y = encoding.target(self.labels)
    return self.deal(encoding, y, transform=inputs, **options)


def to_clients(
  table: csv_files.Table,
  columns: table_columns.Columns,
  num_clients: int,
  partition: partitioning.Partitioner,
  seed: int,
  *,
  name: str,
  test_fraction: Optional[float],
) -> federated_dataset.FederatedDataset:
  """Returns a table's rows, dealt to clients and standardized by them.

  Arguments and errors are those of `load_tabular`.
  """
  table = columns.with_names(table)
  encoding = table_encoding.fit(table, columns)
  keys = None
  options: dict[str, Any] = dict(
    test_fraction=test_fraction, name=name, seed=seed
  )
  if isinstance(partition, natural.Natural):
    errors.expect(
      columns.client is not None,
      'client_column',
      f'given for the partition {partition.name}',
      None,
    )
    keys = np.array(columns.owned(table, columns.client))
  else:
    options.update(num_clients=num_clients, partition=partition)
  rows = _EncodedTable(table, encoding, keys)
  if keys is not None:
    chosen = natural.choose_clients(
      np.unique(keys[rows.is_used]),
      num_clients,
      f'different {columns.client}',
      seed,
    )
    rows.is_used &= np.isin(keys, chosen)
  # Once to see who has which rows, and once with the inputs that these give.
  clients = rows.deal(encoding, rows.labels, **options)
  values = rows.rows.numbers
  if not encoding.classes:
    values = np.column_stack([values, rows.labels])
  means, deviations = standardization.federated_moments(
    [values[clients.train(c).x] for c in clients.client_ids]
  )
  encoding = dataclasses.replace(
    encoding, means=means.tolist(), deviations=deviations.tolist()
  )
  data = rows.deal_inputs(encoding, **options)
  if columns.min_category_count is not None:
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
  """Returns rows that come later, encoded as those of the training were.

  Whose they are says the client column; in a file without it all are those of
  one client. A split column, where there is one, says what is tested on.

  Args:
    encoding: That of the training.
    path: A CSV file with the training's columns.
    seed: Decides the test rows.
    test_fraction: See `load_tabular`.

  Raises:
    ValueError: The file is missing, damaged or lacks a column, or has a label,
      a domain or a cell that the encoding cannot take.
  """
  table = encoding.read(path, with_labels=True)
  keys = np.full(table.num_rows, 'client')
  if encoding.columns.client in table.cells:
    keys = np.array(encoding.columns.owned(table, encoding.columns.client))
  return _EncodedTable(table, encoding, keys).deal_inputs(
    encoding,
    test_fraction=test_fraction,
    name=os.path.basename(path),
    seed=seed,
  )


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
  drop_columns: Sequence[str] = (),
  categorical_columns: Sequence[str] = (),
  zero_is_missing_columns: Sequence[str] = (),
  missing_markers: Sequence[str] = csv_files.MISSING_MARKERS,
  task: str = 'classification',
  label_above: Optional[float] = None,
  label_values: Sequence[str] = (),
  domain_bounds: Sequence[int] = (),
  missing_domain: str = 'error',
  missing_indicators: bool = False,
  min_category_count: Optional[int] = None,
  test_fraction: Optional[float] = None,
) -> federated_dataset.FederatedDataset:
  """Returns the rows of a table, by client or dealt to clients.

  Args:
    partition: Natural for the clients of `client_column`, or a rule that deals
      all rows.
    data_dir: The CSV file, its folder if that holds no other, or the parent of
      its folder `tabular`.
    label_column: The column of labels: words or whole numbers, which are
      classes in their sorted order, unless `task`, `label_above` or
      `label_values` says otherwise. For multilabel several, separated by
      commas.
    domain_column: The column that says which domain a row is of; None for data
      without domains.
    client_column: The column that says whose row it is; it is no input.
    split_column: The column that says which rows are for training and which
      for testing, by the words train and test; None to draw the test rows.
    drop_columns: Columns that are not inputs, such as row numbers.
    categorical_columns: Columns whose numbers stand for categories.
    zero_is_missing_columns: Columns of numbers in which 0 means a missing
      value.
    missing_markers: What stands for a missing value, besides an empty cell.
    task: 'classification'; 'multilabel' for several labels, each of the same
      two classes, the second of which says that the label applies; or
      'regression' for labels that are numbers to be predicted: these are
      standardized for training, and so are the reported errors, in standard
      deviations.
    label_above: Class 1 is a label above this number, class 0 any other; None
      where labels are classes already.
    label_values: The words of the label column that are classes, in their
      order, or WORD:CLASS to rename words or give several the same class (in
      the order of the classes where these are numbers). Rows of other labels,
      and without one, are left out.
    domain_bounds: Ascending numbers that divide the domain column's numbers
      into groups; a bound belongs to the group above it. Empty where every
      value is a domain of its own.
    missing_domain: What happens to rows without a domain, and with the
      partition natural to those without a client: 'error', 'drop' leaves them
      out, 'value' makes them one more domain (or client).
    missing_indicators: Whether a column with missing values gets a second input
      that marks them.
    min_category_count: Words that occur less often in their column share one
      input, so that a column may have any number of words; None for at most
      1000 words, each with an input.
    test_fraction: Fraction of a client's rows in its test set, in [0, 1),
      stratified by domain and class; None for 0.2, or for a split column.

  Returns:
    Dataset with `x` float32 `[inputs]` and `y` int32, for multilabel
    `[labels]`, for regression float32, and with its `encoding`.
  """
  files.expect_given(data_dir, 'a CSV file, or a folder that holds one')
  path = files.find_file('tabular', data_dir, _PATTERNS)
  columns = table_columns.Columns(
    label=label_column,
    domain=domain_column,
    client=client_column,
    split=split_column,
    drop=drop_columns,
    categorical=categorical_columns,
    zero_is_missing=zero_is_missing_columns,
    missing_markers=missing_markers,
    task=task,
    label_above=label_above,
    label_values=label_values,
    domain_bounds=domain_bounds,
    missing_domain=missing_domain,
    missing_indicators=missing_indicators,
    min_category_count=min_category_count,
  )
  return to_clients(
    csv_files.read_table(path, missing_markers),
    columns,
    num_clients,
    partition,
    seed,
    name='tabular',
    test_fraction=test_fraction,
  )
