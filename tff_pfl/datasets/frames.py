"""Pandas frames as clients' examples, and the encoding of their rows.

A row is an example. Columns give its label (or several labels), client, domain,
split and weight. The other columns are inputs, encoded by dtype:

* Numbers, booleans, dates (days since 1970) and durations (days) become one
  input each, standardized by the training rows of the clients that take part.
  A missing number becomes the mean.
* Strings and categories become one input per value, which is 1 for the row's
  value. All of them are 0 for a missing value and for a value that only new
  rows have.

A column's values come from the whole frame, because clients must agree on them
beforehand. Users clean their data in pandas: an error names the unclear column
and suggests a fix.
"""

import collections
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import pandas as pd
import tensorflow as tf
from absl import logging
from pandas.api import types
from sklearn import preprocessing

from tff_pfl import errors
from tff_pfl.datasets import array_clients, partitioning
from tff_pfl.datasets import columns as columns_lib
from tff_pfl.datasets import examples as examples_lib

TASKS = ('classification', 'regression')
_SPLITS = ('train', 'test')
# Client of all rows if there is no client column.
_ONE_CLIENT = 'client'
# More numeric classes than this may be meant for regression.
_MANY_CLASSES = 20
# Name of the index column that pandas writes.
_ROW_NUMBERS = 'Unnamed: 0'


class Rows(NamedTuple):
  """Encoded rows in a compact form.

  Attributes:
    numbers: float64 `[rows, columns]`, NaN where missing.
    positions: Position of each category column's value, int32 `[rows,
      columns]`. Negative for missing and unknown values.
  """

  numbers: np.ndarray
  positions: np.ndarray

  def select(self, chosen: Union[slice, np.ndarray]) -> 'Rows':
    """Returns some of the rows."""
    return Rows(*(field[chosen] for field in self))


@dataclasses.dataclass(frozen=True)
class FrameEncoding:
  """The encoding of a frame's rows as examples, with fields of JSON types.

  Attributes:
    label: Columns of labels, several for multilabel.
    client: Column of clients. None if rows name no clients.
    domain: Column of domains. None without domains.
    split: Column of the words train and test. None if test rows are drawn.
    weight: Column of weights in the training loss. None means equal weights.
    numbers: Kind of each number column: 'numbers', 'dates' or 'durations'.
    categories: Values of each category column. Each value is an input.
    classes: Label values in the order of the classes. Several labels have the
      same two values. Empty for regression.
    domains: Names of the domains. Empty without domains.
    means: Means of the number columns, then of the label for regression.
    deviations: Standard deviations in the same order.
    read: Options with which pandas reads a file of new rows.
  """

  label: Sequence[str]
  client: Optional[str] = None
  domain: Optional[str] = None
  split: Optional[str] = None
  weight: Optional[str] = None
  numbers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  categories: Mapping[str, Sequence[Any]] = dataclasses.field(
    default_factory=dict
  )
  classes: Sequence[Any] = ()
  domains: Sequence[str] = ()
  means: Sequence[float] = ()
  deviations: Sequence[float] = ()
  read: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def text(self) -> str:
    """The encoding as one line of JSON."""
    return json.dumps(dataclasses.asdict(self))

  @property
  def input_names(self) -> list[str]:
    """Names of the inputs, such as `age` and `blood=AB`."""
    names = [*self.numbers]
    for name, values in self.categories.items():
      names += [f'{name}={value}' for value in values]
    return names

  def rows(self, frame: pd.DataFrame) -> Rows:
    """Encodes rows of a frame, which may have other columns, in any order.

    Raises:
      ValueError: If an input column is missing or has another kind.
    """
    frame = _with_names(frame, [*self.numbers, *self.categories])
    numbers = [
      columns_lib.numbers_of(frame[name], 'as in the training data', kind)
      for name, kind in self.numbers.items()
    ]
    positions = []
    for name, values in self.categories.items():
      places = columns_lib.positions(frame[name], values)
      if (is_unknown := places == columns_lib.UNKNOWN).any():
        logging.warning(
          'Column %r has %d values, such as %r, that the training data did not'
          ' have; all of its inputs are 0 there.',
          name,
          is_unknown.sum(),
          frame[name].iloc[np.argmax(is_unknown)],
        )
      positions.append(places)
    return Rows(
      np.array(numbers, np.float64).reshape(len(numbers), len(frame)).T,
      np.array(positions, np.int32).reshape(len(positions), len(frame)).T,
    )

  def inputs(self, rows: Rows) -> np.ndarray:
    """Returns a model's inputs, float32 `[rows, inputs]`."""
    numbers, positions = rows
    x = np.zeros((len(numbers), len(self.input_names)), np.float32)
    end = len(self.numbers)
    x[:, :end] = np.nan_to_num(
      (numbers - self.means[:end]) / self.deviations[:end]
    )
    for values, places in zip(self.categories.values(), positions.T):
      (known,) = np.nonzero(places >= 0)
      x[known, end + places[known]] = 1
      end += len(values)
    return x

  def domain_ids(self, frame: pd.DataFrame) -> Optional[np.ndarray]:
    """Returns the rows' domain ids, int32 `[rows]`, or None without domains."""
    if not self.domains:
      return None
    frame = _with_names(frame, [self.domain])
    return columns_lib.known_positions(frame[self.domain], self.domains)

  def labels(self, frame: pd.DataFrame) -> np.ndarray:
    """Returns the rows' labels.

    Returns:
      Classes, int32 `[rows]`, or `[rows, labels]` for several labels. Float64
      numbers `[rows]` for regression.
    """
    frame = _with_names(frame, self.label)
    if not self.classes:
      column = columns_lib.complete(frame[self.label[0]])
      return columns_lib.numbers_of(column, 'for the task regression')
    labels = [
      columns_lib.known_positions(frame[name], self.classes)
      for name in self.label
    ]
    return np.stack(labels, axis=1) if len(labels) > 1 else labels[0]

  def targets(self, labels: np.ndarray) -> np.ndarray:
    """Returns training targets: classes or standardized float32 numbers."""
    if self.classes:
      return labels
    return ((labels - self.means[-1]) / self.deviations[-1]).astype(np.float32)

  def predictions(
    self, outputs: np.ndarray, index: Optional[pd.Index] = None
  ) -> pd.DataFrame:
    """Converts a model's outputs to the label's values and unit.

    Args:
      outputs: Probabilities `[rows, classes]`, `[rows, labels, 2]` for several
        labels, or standardized numbers `[rows, 1]` for regression.
      index: Index of the rows. None numbers them.

    Returns:
      Columns `prediction` and, for classes, `probability_CLASS`. Several labels
      have `prediction_LABEL` and `probability_LABEL`.
    """
    if not self.classes:
      numbers = np.asarray(outputs, np.float64).reshape(len(outputs))
      numbers = numbers * self.deviations[-1] + self.means[-1]
      return pd.DataFrame({'prediction': numbers}, index)
    predicted = np.array(self.classes)[np.argmax(outputs, axis=-1)]
    if len(self.label) == 1:
      columns = {'prediction': predicted}
      for value, column in zip(self.classes, outputs.T):
        columns[f'probability_{value}'] = column
      return pd.DataFrame(columns, index)
    columns = {}
    for name, label, column in zip(self.label, predicted.T, outputs[..., 1].T):
      columns[f'prediction_{name}'] = label
      columns[f'probability_{name}'] = column
    return pd.DataFrame(columns, index)

  def pool(
    self,
    frame: pd.DataFrame,
    labels: np.ndarray,
    name: str,
    owners: Optional[np.ndarray] = None,
  ) -> array_clients.CheckedPool:
    """Returns examples whose inputs are the rows' positions.

    Args:
      frame: The rows.
      labels: The result of `labels` for these rows, which becomes `y`.
      name: Name of the dataset.
      owners: The rows' clients. None uses the client column, if any.
    """
    frame = _with_names(frame)
    fields = {
      'x': np.arange(len(frame)),
      'y': labels,
      'domain': self.domain_ids(frame),
      'client': owners,
    }
    if owners is None and self.client is not None:
      fields['client'] = columns_lib.owners(frame[self.client])
    if self.weight is not None:
      # New rows may lack this column.
      weight = frame.get(self.weight, pd.Series(1.0, frame.index))
      fields['weight'] = columns_lib.numbers_of(
        columns_lib.complete(weight), 'which are weights'
      )
    parts = {'': slice(None)}
    if self.split in frame:
      split = columns_lib.complete(frame[self.split]).astype(str).str.lower()
      is_test = columns_lib.known_positions(split, _SPLITS) > 0
      parts = {'': ~is_test, '_test': is_test}
    return array_clients.CheckedPool(
      name=name,
      num_classes=len(self.classes) or None,
      class_names=[*map(str, self.classes)] or None,
      domain_names=self.domains or None,
      **{
        f'{field}{suffix}': values[chosen]
        for field, values in fields.items()
        for suffix, chosen in parts.items()
        if values is not None
      },
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Encoded:
  """Turns a loader of row positions into a loader of encoded examples."""

  load: Callable[[str, str], examples_lib.Examples]
  encoding: FrameEncoding
  rows: Rows
  targets: np.ndarray

  def __call__(self, client_id: str, split: str) -> examples_lib.Examples:
    """Slices the client's rows and makes inputs on first use."""
    examples = self.load(client_id, split)
    return examples_lib.Examples(
      lambda: self.encoding.inputs(self.rows.select(examples.x)),
      self.targets[examples.x],
      examples.domain,
      weight=examples.weight,
    )


def _encoded(
  clients: dict[str, Any],
  encoding: FrameEncoding,
  rows: Rows,
  labels: np.ndarray,
) -> dict[str, Any]:
  """Returns the arguments of `FederatedDataset` for encoded examples.

  Args:
    clients: The arguments with row positions as inputs.
    encoding: The complete encoding.
    rows: The encoding's `rows` of the frame.
    labels: The encoding's `labels` of the frame.
  """
  y = clients['element_spec']['y']
  dtype = tf.int32 if encoding.classes else tf.float32
  spec = collections.OrderedDict(
    clients['element_spec'],
    x=tf.TensorSpec([len(encoding.input_names)], tf.float32),
    y=tf.TensorSpec(y.shape, dtype),
  )
  load = _Encoded(clients['load'], encoding, rows, encoding.targets(labels))
  return {**clients, 'element_spec': spec, 'load': load, 'encoding': encoding}


def _with_names(
  frame: pd.DataFrame, required: Sequence[str] = ()
) -> pd.DataFrame:
  """Returns the frame with strings as column names, some of them required."""
  errors.expect_type(frame, pd.DataFrame, 'frame', 'a pandas DataFrame')
  names = pd.Index([str(name) for name in frame.columns])
  errors.expect(
    names.is_unique,
    'frame',
    'one whose columns have different names',
    names[names.duplicated()].tolist(),
  )
  missing = [name for name in required if name not in names]
  errors.expect(
    not missing,
    'frame',
    f'one with the columns {", ".join(missing)}',
    names.tolist(),
  )
  return frame.set_axis(names, axis=1)


def _listed(names: Union[str, int, Sequence[str]]) -> Sequence[str]:
  return [names] if isinstance(names, (str, int)) else names


def _is_index(column: pd.Series) -> bool:
  return column.is_unique and types.is_integer_dtype(column.dtype)


def _expect_roles(
  frame: pd.DataFrame, labels: Sequence[str], others: Mapping[str, str]
) -> None:
  """Raises `ValueError` unless the named columns exist."""
  names = frame.columns
  for role, name in [*(('label', label) for label in labels), *others.items()]:
    known = [n for n in names if role == 'label' or n not in labels]
    remedy = ''
    if name in frame.index.names:
      remedy = ', which `frame.reset_index()` makes of the index'
    errors.expect(
      name in known,
      role,
      f'one of the columns ({", ".join(known)}){remedy}',
      name,
    )


def _classes(
  frame: pd.DataFrame, labels: Sequence[str], task: Optional[str]
) -> list[Any]:
  """Returns the class values in order, or [] for regression."""
  errors.expect(labels, 'label', 'the name of a column', labels)
  columns = [
    columns_lib.inferred(columns_lib.complete(frame[name])) for name in labels
  ]
  if task is None and len(labels) == 1:
    # Before the inference, which makes integers of whole floats.
    kind = types.infer_dtype(frame[labels[0]])
    task = TASKS[kind in ('floating', 'mixed-integer-float')]
  if task == 'regression':
    errors.expect(len(labels) == 1, 'label', f'one column for {task}', labels)
    return []
  for column in columns:
    columns_lib.expect_different(column)
    if columns_lib.kind(column) in ('dates', 'durations'):
      remedy = '`COLUMN.dt.year` and similar attributes make numbers'
      raise columns_lib.error(column, 'classes or numbers', remedy)
  first, *others = map(columns_lib.values, columns)
  errors.expect(
    not others or (len(first) == 2 and all(v == first for v in others)),
    'label',
    'columns of the same two values, such as False and True',
    {name: values[:3] for name, values in zip(labels, [first, *others])},
  )
  if len(first) < 2:
    remedy = 'add rows of another class'
    raise columns_lib.error(columns[0], 'two or more classes', remedy)
  return first


def _domains(column: pd.Series) -> list[str]:
  columns_lib.expect_names(column)
  if columns_lib.is_category(column):
    names = column.cat.categories
  else:
    names = np.sort(column.unique())
  return [str(columns_lib.json_value(name)) for name in names]


@functools.cache
def _announce(line: str) -> None:
  """Prints a line once, even if the data are loaded several times."""
  print(line, file=sys.stderr)


def _announcement(frame: pd.DataFrame, encoding: FrameEncoding) -> str:
  """Describes the task that was inferred from the label's dtype."""
  labels = ', '.join(encoding.label)
  if not encoding.classes:
    column = frame[labels]
    line = f'regression of {labels} ({column.dtype})'
    if not (columns_lib.numbers(column) % 1).any():
      line += "; task='classification' takes its whole numbers as classes"
    return line
  classes = ', '.join(map(str, encoding.classes[:5]))
  if len(encoding.classes) > 5:
    classes += f' and so on, {len(encoding.classes)} classes'
  line = f'classification of {labels}: {classes}'
  is_number = not isinstance(encoding.classes[0], str)
  if len(encoding.classes) > _MANY_CLASSES and is_number:
    line += "; task='regression' takes them as numbers"
  return line


def fit(
  frame: pd.DataFrame,
  roles: FrameEncoding,
  task: Optional[str] = None,
  features: Optional[Sequence[str]] = None,
  name: str = 'frame',
) -> FrameEncoding:
  """Fits the encoding of a frame, without means and deviations.

  Args:
    frame: The frame.
    roles: An encoding with only the names of the columns that are not inputs.
    task: See `FederatedDataset.from_frame`, also for the other arguments.
  """
  if features is not None:
    features = [str(feature) for feature in _listed(features)]
  frame = _with_names(frame, features or ())
  errors.expect(len(frame), 'frame', 'one with rows', 'none')
  labels = [str(label) for label in _listed(roles.label)]
  others = {
    role: str(getattr(roles, role))
    for role in ('client', 'domain', 'split', 'weight')
    if getattr(roles, role) is not None
  }
  _expect_roles(frame, labels, others)
  for column in others.values():
    columns_lib.complete(frame[column])
  if features is None:
    features = [n for n in frame if n not in {*labels, *others.values()}]
    if _ROW_NUMBERS in features and _is_index(frame[_ROW_NUMBERS]):
      logging.warning('Row numbers in a column without a name are not inputs.')
      features.remove(_ROW_NUMBERS)
  errors.expect(
    not {*features} & {*labels}, 'features', 'columns without labels', features
  )
  numbers: dict[str, str] = {}
  categories: dict[str, list[Any]] = {}
  for feature in features:
    column = frame[feature]
    if column.isna().all():
      remedy = f'`frame.drop(columns=[{feature!r}])` leaves it out'
      raise columns_lib.error(column, 'a value in some row', remedy)
    column = columns_lib.inferred(column)
    kind = columns_lib.kind(column)
    if kind == 'words':
      categories[feature] = columns_lib.values(column)
    else:
      numbers[feature] = kind
  encoding = FrameEncoding(
    label=labels,
    **others,
    numbers=numbers,
    categories=categories,
    classes=_classes(frame, labels, task),
    domains=_domains(frame[others['domain']]) if 'domain' in others else [],
  )
  if task is None:
    _announce(f'{name}: {_announcement(frame, encoding)}.')
  return encoding


def _standardized(
  encoding: FrameEncoding, values: np.ndarray, clients: Mapping[str, Any]
) -> FrameEncoding:
  """Adds the means and deviations of the clients' training rows.

  Args:
    encoding: The encoding.
    values: Number columns, `[rows, columns]`. For regression, the label is the
      last.
    clients: Arguments of `FederatedDataset` with row positions as inputs.
  """
  if not values.shape[1]:
    return encoding
  trained = [clients['load'](c, 'train').x for c in clients['client_ids']]
  with np.errstate(invalid='ignore'):
    scaler = preprocessing.StandardScaler().fit(values[np.concatenate(trained)])
  # A column may have no value among these rows.
  scale = np.where(np.isfinite(scaler.scale_), scaler.scale_, 1)
  return dataclasses.replace(
    encoding,
    means=np.nan_to_num(scaler.mean_).tolist(),
    deviations=scale.tolist(),
  )


def clients(
  frame: pd.DataFrame,
  encoding: FrameEncoding,
  num_clients: Optional[int],
  partition: Union[str, partitioning.Partitioner, None],
  seed: int,
  test_fraction: Optional[float],
  name: str,
) -> dict[str, Any]:
  """Deals a frame's rows to clients and standardizes them.

  Args:
    frame: The rows that the encoding was fitted to.
    encoding: The encoding, without means and deviations.
    num_clients: See `FederatedDataset.from_frame`, also for other arguments.

  Returns:
    The arguments of `FederatedDataset`.
  """
  errors.expect(
    encoding.split is None or test_fraction is None,
    'test_fraction',
    'unset with a split column, which gives the test rows',
    test_fraction,
  )
  errors.expect(
    encoding.input_names,
    'features',
    'one or more columns that have no other role',
    [],
  )
  labels, rows = encoding.labels(frame), encoding.rows(frame)
  pool = encoding.pool(frame, labels, name)
  dealt = pool.clients(num_clients, partition, seed, test_fraction)
  values = rows.numbers
  if not encoding.classes:
    values = np.column_stack([values, labels])
  encoding = _standardized(encoding, values, dealt)
  return _encoded(dealt, encoding, rows, labels)


def new_clients(
  frame: pd.DataFrame,
  encoding: FrameEncoding,
  seed: int,
  test_fraction: Optional[float],
  name: str,
) -> dict[str, Any]:
  """Makes clients from new rows; see `FederatedDataset.from_frame`.

  Returns:
    The arguments of `FederatedDataset`.
  """
  frame = _with_names(frame)
  owners = None
  if encoding.client not in frame:
    owners = np.full(len(frame), _ONE_CLIENT)
    if encoding.client is not None:
      logging.warning(
        'All rows are of one client, as there is no column %s.', encoding.client
      )
  labels = encoding.labels(frame)
  pool = encoding.pool(frame, labels, name, owners)
  dealt = pool.clients(None, None, seed, test_fraction)
  return _encoded(dealt, encoding, encoding.rows(frame), labels)
