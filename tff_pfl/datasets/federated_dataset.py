"""`FederatedDataset`: the clients and their examples."""

import collections
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np
import pandas as pd
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl import tff_api as tff
from tff_pfl.datasets import array_checks, array_clients, frames, partitioning
from tff_pfl.datasets import client_data as client_data_lib
from tff_pfl.datasets import examples as examples_lib

SPLITS = ('train', 'test')
# Function of a client id and a split that returns the client's examples.
Load = Callable[[str, str], examples_lib.Examples]
# Number of clients that a fingerprint reads if the data are not in memory.
_NUM_FINGERPRINTED = 20


def _unpadded(client_id):
  """Removes leading zeros from the whole number at the end of an id."""
  return re.sub(r'(?<![\d.])0+(?=\d+$)', '', client_id)


def _load_again(
  load: Callable[[], 'FederatedDataset'], fingerprint: str
) -> 'FederatedDataset':
  data = load()
  if data.fingerprint != fingerprint:
    raise errors.RunError(
      f'The data of {data.name} differ between machines: the checksum is '
      f'{fingerprint} where the run was started, and '
      f'{data.fingerprint} on a worker.'
    )
  return data


def _load_view(
  load: Callable[[], 'FederatedDataset'], method: str, argument: Any
) -> 'FederatedDataset':
  return getattr(load(), method)(argument)


@dataclasses.dataclass(frozen=True, eq=False)
class _Renumbered:
  """Turns a loader into a loader of examples with other class numbers."""

  load: Load
  numbers: np.ndarray

  def __call__(self, client_id: str, split: str) -> examples_lib.Examples:
    examples = self.load(client_id, split)
    return examples.with_labels(self.numbers[examples.y])


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class FederatedDataset:
  """Training and test examples of every client, read on demand.

  `train` and `test` slice, convert, read or generate a client's examples on
  each call and do not keep them. Most users call `from_frame`, `from_arrays`,
  `from_client_data`, or `load_dataset`.

  Attributes:
    name: Name of the dataset in tables and files.
    client_ids: Unique ids of all clients, at least one, in a stable order.
    element_spec: `tf.TensorSpec`s of one example, without a batch dimension:
      ordered `x` and `y`, then `weight` (float32 scalar) if examples have
      training weights, and `domain` (int32 scalar) if there are domains.
    num_classes: Number of classes. Labels are in `[0, num_classes)`. None means
      regression.
    load: Function of a client id and 'train' or 'test' that returns the
      client's examples, possibly none. Every call returns the same examples.
    class_names: Names of the classes, by label. None if labels have no names.
    domain_names: Distinct names of the domains. A domain id is a position in
      this list. None means no domains.
    partition: Specification of the rule that made the clients, or 'natural' if
      they come with the data. None means unknown.
    in_memory: True if reading all examples takes a few seconds at most.
    num_overlapping: Number of neighbors on each side of an example that may
      share content with it, like overlapping windows of a text. If positive, a
      client's examples must be divided in order, leaving out this many examples
      between the parts.
    encoding: The `frames.FrameEncoding` of a frame's rows. None for other data.
    join_round: First round of each client that joins after round 1, by client
      id. See `joining`.
    load_again: Function that loads an equal dataset on any machine. It is
      pickled instead of the content. None pickles the content.
  """

  name: str
  client_ids: Iterable[str]
  element_spec: 'collections.OrderedDict[str, tf.TensorSpec]'
  num_classes: Optional[int]
  load: Load
  class_names: Optional[Iterable[str]] = None
  domain_names: Optional[Iterable[str]] = None
  partition: Optional[str] = None
  in_memory: bool = False
  num_overlapping: int = 0
  encoding: Any = None
  join_round: Mapping[str, int] = dataclasses.field(default_factory=dict)
  load_again: Optional[Callable[[], 'FederatedDataset']] = None

  def __post_init__(self):
    if self.num_classes is not None:
      errors.expect_int('num_classes', self.num_classes, 1)
      self.num_classes = int(self.num_classes)
    self.client_ids = tuple(self.client_ids)
    if self.class_names is not None:
      self.class_names = tuple(map(str, self.class_names))
    if self.domain_names is not None:
      self.domain_names = array_checks.check_domain_names(self.domain_names)
    errors.expect(
      self.element_spec.get('domain')
      == (self.domain_names and tf.TensorSpec((), tf.int32)),
      'element_spec',
      'with an int32 scalar `domain` if and only if there are `domain_names`',
      dict(self.element_spec),
    )
    self._known = frozenset(self.client_ids)
    errors.expect(
      0 < len(self._known) == len(self.client_ids)
      and all(isinstance(client_id, str) for client_id in self.client_ids),
      'client_ids',
      'distinct, at least one, all strings',
      self.client_ids,
    )
    # Clients of this dataset that join after round 1, in order.
    self.join_round = {
      client_id: int(self.join_round[client_id])
      for client_id in (self.client_ids if self.join_round else ())
      if self.join_round.get(client_id, 1) > 1
    }
    self._sizes: dict[tuple[str, str], int] = {}
    self._counts: dict[tuple[str, str], np.ndarray] = {}

  def __reduce__(self) -> Any:
    if self.load_again is None:
      return super().__reduce__()
    return _load_again, (self.load_again, self.fingerprint)

  def __repr__(self) -> str:
    domains = ''
    if self.domain_names is not None:
      domains = f', domain_names={self.domain_names}'
    x = self.element_spec['x']
    shapes = tf.nest.map_structure(
      lambda spec: spec.shape.as_list(), dict(x) if isinstance(x, dict) else x
    )
    return (
      f'FederatedDataset(name={self.name!r}, num_clients={self.num_clients},'
      f' num_classes={self.num_classes}, x={shapes}{domains})'
    )

  @property
  def num_clients(self) -> int:
    """Number of clients."""
    return len(self.client_ids)

  @property
  def num_domains(self) -> int:
    """Number of domains, which is 0 for a dataset without domains."""
    return len(self.domain_names or ())

  @functools.cached_property
  def fingerprint(self) -> str:
    """A checksum of the clients, their examples and the rounds they join in.

    It covers all examples of a dataset in memory. If clients are read or
    generated on demand, as with `from_client_data`, it covers all client ids
    and the examples of 20 evenly spaced clients.
    """
    checksum = hashlib.sha256(repr(self.client_ids).encode())
    positions = range(self.num_clients)
    if not self.in_memory:
      positions = np.unique(
        np.linspace(0, positions[-1], _NUM_FINGERPRINTED, dtype=int)
      )
    for position in positions:
      for split in SPLITS:
        for part in self._read(self.client_ids[position], split).content():
          checksum.update(b'%d:' % len(part))
          checksum.update(part)
    if self.join_round:
      checksum.update(repr(self.join_round).encode())
    return checksum.hexdigest()[:16]

  def find_client(self, client_id: Any) -> str:
    """Finds the id of a client, even if the argument lacks zero padding.

    `client_3` means `client_03` if no other client matches.

    Raises:
      ValueError: If no client or several clients match.
    """
    client_id = str(client_id)
    if client_id in self._known:
      return client_id
    plain = _unpadded(client_id)
    matches = [known for known in self.client_ids if _unpadded(known) == plain]
    errors.expect(
      len(matches) == 1,
      'client_id',
      f'a client of {self.name!r}, such as {(matches or self.client_ids)[0]!r}',
      client_id,
    )
    return matches[0]

  def train(self, client_id: str) -> examples_lib.Examples:
    """Returns a client's training examples, possibly none."""
    return self._read(client_id, 'train')

  def test(self, client_id: str) -> examples_lib.Examples:
    """Returns a client's test examples, possibly none."""
    return self._read(client_id, 'test')

  def num_train_examples(self, client_id: str) -> int:
    """Returns the number of a client's training examples."""
    return self._size(client_id, 'train')

  def num_test_examples(self, client_id: str) -> int:
    """Returns the number of a client's test examples."""
    return self._size(client_id, 'test')

  def class_counts(self, split: str = 'train') -> np.ndarray:
    """Counts a split's labels by client and class.

    Does not read inputs if the source can avoid it.

    Args:
      split: 'train' or 'test'.

    Returns:
      int64 array `[num_clients, num_classes]`, read-only.
    """
    return self._counted('y', split, self.num_classes)

  def domain_counts(self, split: str = 'train') -> np.ndarray:
    """Counts a split's examples by client and domain.

    Args:
      split: 'train' or 'test'.

    Returns:
      int64 array `[num_clients, num_domains]`, read-only.
    """
    return self._counted('domain', split, self.num_domains)

  def _counted(self, field: str, split: str, num_ids: int) -> np.ndarray:
    """Counts each client's ids in [0, num_ids) and caches the result."""
    errors.expect(
      num_ids,
      'data',
      f'a dataset with {"classes" if field == "y" else "domains"}',
      f'dataset {self.name!r} without',
    )
    if (field, split) not in self._counts:
      counts = np.zeros((self.num_clients, num_ids), np.int64)
      for row, client_id in zip(counts, self.client_ids):
        ids = getattr(self._read(client_id, split), field)
        row[:] = np.bincount(ids.ravel(), minlength=num_ids)
      counts.setflags(write=False)
      self._counts[field, split] = counts
    return self._counts[field, split]

  @fields.checked_call
  def subset(self, client_ids: Iterable[str]) -> 'FederatedDataset':
    """Returns a view of some clients, in the given order.

    Args:
      client_ids: Distinct ids, at least one.
    """
    client_ids = list(client_ids)
    for client_id in client_ids:
      self._check_client(client_id)
    return self._view('subset', client_ids, client_ids=client_ids)

  def replaced(self, **fields: Any) -> 'FederatedDataset':
    """Returns a copy with some attributes replaced."""
    return dataclasses.replace(self, **{'load_again': None, **fields})

  @fields.checked_call
  def joining(self, join_round: Mapping[str, int]) -> 'FederatedDataset':
    """Returns a view in which some clients join a run later.

    Before its round, a client is neither drawn for a cohort nor scored.

    Args:
      join_round: First round of each client, at least 1, by client id. The
        first rounds of other clients do not change.
    """
    for client_id, round_number in join_round.items():
      self._check_client(client_id)
      errors.expect_int('join_round', round_number, 1)
    joined = {**self.join_round, **join_round}
    return self._view('joining', joined, join_round=joined)

  def with_class_names(self, class_names: Sequence[str]) -> 'FederatedDataset':
    """Returns a view whose labels are positions in other names.

    It has no encoding of a frame's rows.

    Args:
      class_names: Distinct names, among them all of this dataset's.
    """
    errors.expect(
      self.class_names, 'data', 'a dataset with names of classes', self.name
    )
    class_names = tuple(class_names)
    number_of = {name: number for number, name in enumerate(class_names)}
    errors.expect(
      {*self.class_names} <= {*number_of},
      'data',
      f'a dataset whose classes are among {", ".join(class_names)}',
      f'{", ".join(self.class_names)} in dataset {self.name!r}',
    )
    numbers = [number_of[name] for name in self.class_names]
    return self._view(
      'with_class_names',
      class_names,
      class_names=class_names,
      num_classes=len(class_names),
      encoding=None,
      load=_Renumbered(self.load, np.array(numbers, np.int32)),
    )

  def _view(
    self, method: str, argument: Any, **fields: Any
  ) -> 'FederatedDataset':
    """Returns a copy that is loaded again like `method(argument)` of this."""
    load_again = self.load_again and functools.partial(
      _load_view, self.load_again, method, argument
    )
    return self.replaced(load_again=load_again, **fields)

  @classmethod
  @fields.checked_call
  def from_arrays(
    cls,
    x: Any,
    y: Any,
    *,
    x_test: Any = None,
    y_test: Any = None,
    num_clients: Optional[fields.Count] = None,
    partition: Union[str, partitioning.Partitioner, None] = None,
    keys: Any = None,
    keys_test: Any = None,
    client_ids: Optional[Iterable[str]] = None,
    test_fraction: fields.ShareBelowOne = 0.2,
    num_classes: Optional[int] = None,
    transform: Optional[array_clients.Transform] = None,
    num_overlapping: int = 0,
    name: str = 'arrays',
    seed: fields.Seed = 0,
    domain: Any = None,
    domain_test: Any = None,
    domain_names: Optional[Iterable[str]] = None,
    weight: Any = None,
  ) -> 'FederatedDataset':
    """Makes clients from arrays.

    Do not modify the arrays, as most are not copied. Each distinct key is a
    client (`keys`), or a rule deals the examples to `num_clients` clients
    (`partition`).

    Args:
      x: Inputs, `[n, ...]`, or a dict of such arrays for models of several
        inputs. Floats become float32. Integers keep their dtype.
      y: Labels or targets, `[n, ...]`. Integers become int32 labels, and so do
        whole floats if `num_classes` is set. If it is None, floats become
        float32 regression targets.
      x_test: Test inputs, `[m, ...]`. None divides each client's examples into
        training and test examples.
      y_test: Test labels. Given if and only if `x_test` is.
      num_clients: Number of clients, at least 1. If `keys` are given, this many
        of their clients are drawn at random, and None means all of them.
      partition: A rule or its specification, see `partitioning`. None means
        `'natural'` with `keys` and `'iid'` without.
      keys: The client of each example, integers or strings `[n]`.
      keys_test: The client of each test example, `[m]`. Given if and only if
        `keys` and `x_test` are.
      client_ids: Ids of the clients. None uses the keys, or `client_0`, …
        without keys.
      test_fraction: Fraction of a client's examples in its test set, in [0, 1),
        stratified by domain and class. Not used if `x_test` is given.
      num_classes: Number of classes. None uses the largest label plus 1.
      transform: See `array_clients.CheckedPool`.
      num_overlapping: See the class. Only with `x_test`, as a random test set
        would share content with the training examples.
      seed: Seed of the partition and the test set, non-negative.
      domain: Domain id of each example, integers `[n]` starting at 0.
      domain_test: Domain id of each test example, `[m]`. Given if and only if
        `domain` and `x_test` are.
      domain_names: Distinct names. None uses `domain_0`, … up to the largest
        id. A domain without training examples is never learned.
      weight: Factors of the examples' training losses, non-negative `[n]`, like
        `sample_weight` in Keras's `fit`. Scores do not use them, and clients
        are weighted by their numbers of examples.
    """
    with errors.naming({'client': '`keys`', 'client_test': '`keys_test`'}):
      pool = array_clients.CheckedPool(
        name=name,
        x=x,
        y=y,
        x_test=x_test,
        y_test=y_test,
        num_classes=num_classes,
        domain=domain,
        domain_test=domain_test,
        domain_names=domain_names,
        client=keys,
        client_test=keys_test,
        weight=weight,
        transform=transform,
        num_overlapping=num_overlapping,
      )
    # Given test examples are not divided again.
    fraction = test_fraction if x_test is None else None
    return cls(
      **pool.clients(num_clients, partition, seed, fraction, client_ids)
    )

  @classmethod
  @fields.checked_call
  def from_frame(
    cls,
    frame: pd.DataFrame,
    *,
    label: Union[str, Sequence[str], None] = None,
    client: Optional[str] = None,
    domain: Optional[str] = None,
    split: Optional[str] = None,
    weight: Optional[str] = None,
    task: Optional[fields.one_of(frames.TASKS)] = None,
    features: Optional[Sequence[str]] = None,
    partition: Union[str, partitioning.Partitioner, None] = None,
    num_clients: Optional[fields.Count] = None,
    test_fraction: Optional[fields.ShareBelowOne] = None,
    seed: fields.Seed = 0,
    name: str = 'frame',
    encoding: Optional[frames.FrameEncoding] = None,
  ) -> 'FederatedDataset':
    """Makes clients from a pandas data frame whose rows are examples.

    Numbers, booleans and dates become one standardized input each. Strings and
    categories become one input per value. See `frames`. A run stores this
    encoding and applies it to new rows.

    Args:
      frame: A row for each example. No row may lack a label, or a value in the
        columns `client`, `domain`, `split` and `weight`.
      label: The column of labels. For multilabel, several columns with the same
        two values. The second value means that the label applies.
      client: The column of clients. Each distinct value is a client. None if
        there is no such column.
      domain: The column of domains, which is not an input.
      split: The column of the words train and test. None draws test rows.
      weight: The column of the rows' weights in the training loss, at least 0.
      task: 'classification' or 'regression'. None means regression for float
        labels, and classification otherwise. Classes are in the sorted order of
        the values or in the order of the categories. Regression labels are
        standardized for training.
      features: The columns that are inputs. None means all others.
      partition: A rule that deals the rows, see `partitioning`. None uses the
        clients that the rows name, or `'iid'` if they name none.
      num_clients: Number of clients. If the rows name more, this many are drawn
        at random. None means all that they name.
      test_fraction: Fraction of a client's rows in its test set, in [0, 1),
        stratified by domain and class. None means 0.2. Not allowed with
        `split`.
      seed: Seed of the partition and the test set, non-negative.
      name: Name of the dataset.
      encoding: The encoding of a run (`Run.encoding`), to make clients from new
        rows: all of the client column, or one called client without it. The
        encoding names the columns, so `label` to `num_clients` must be unset.

    Raises:
      ValueError: If a column cannot be used as requested. The message suggests
        a fix in pandas.
    """
    if encoding is not None:
      roles = label, client, domain, split, weight, task, features, partition
      errors.expect(
        not any((*roles, num_clients)),
        'encoding',
        'given without columns, `task`, `partition` and `num_clients`',
        roles,
      )
      return cls(
        **frames.new_clients(frame, encoding, seed, test_fraction, name)
      )
    errors.expect(label is not None, 'label', 'the name of a column', label)
    roles = frames.FrameEncoding(label, client, domain, split, weight)
    encoding = frames.fit(frame, roles, task, features, name)
    return cls(
      **frames.clients(
        frame, encoding, num_clients, partition, seed, test_fraction, name
      )
    )

  @classmethod
  @fields.checked_call
  def from_client_data(
    cls,
    train: tff.simulation.datasets.ClientData,
    test: tff.simulation.datasets.ClientData,
    *,
    num_classes: Optional[int],
    name: str = 'client_data',
    domain_names: Optional[Iterable[str]] = None,
  ) -> 'FederatedDataset':
    """Makes a dataset from TFF's `ClientData` and reads clients on demand.

    Clients of `train` come first, then clients that only `test` has. A client
    that one of them lacks has no examples there.

    Args:
      train: Its elements are single examples `(x, y)` or `{'x': …, 'y': …}`,
        where `x` may be a dict of several inputs. The dict may also have an
        integer `domain` and a float `weight`, see `from_arrays`.
        `ClientData.preprocess` converts other forms. Elements must be the same
        each time they are read. Some clients are read twice to check this.
      test: Elements of the same form.
      num_classes: Number of classes. None means regression, with float `y`.
      domain_names: Distinct names of the domains. Given if and only if elements
        have a domain.

    Raises:
      ValueError: If elements have another form, or differ between two readings.
        Errors in a client's examples are raised when they are read.
    """
    num_domains = None
    if domain_names is not None:
      domain_names = array_checks.check_domain_names(domain_names)
      num_domains = len(domain_names)
    load = client_data_lib.ClientDataSource(
      {'train': train, 'test': test}, num_classes, num_domains
    )
    errors.expect(
      num_classes is not None or load.spec['y'].dtype == tf.float32,
      'num_classes',
      'given for integer labels',
      num_classes,
    )
    client_ids = [*dict.fromkeys([*train.client_ids, *test.client_ids])]
    load.expect_repeatable(client_ids)
    return cls(
      name=name,
      client_ids=client_ids,
      element_spec=load.spec,
      num_classes=num_classes,
      load=load,
      domain_names=domain_names,
    )

  def _read(self, client_id: str, split: str) -> examples_lib.Examples:
    self._check_client(client_id)
    errors.expect(split in SPLITS, 'split', "'train' or 'test'", split)
    examples = self.load(client_id, split)
    self._sizes[client_id, split] = len(examples)
    return examples

  def _size(self, client_id: str, split: str) -> int:
    """Returns the number of examples, which are read at most once."""
    self._check_client(client_id)
    if (client_id, split) not in self._sizes:
      self._read(client_id, split)
    return self._sizes[client_id, split]

  def _check_client(self, client_id: str) -> None:
    errors.expect(
      isinstance(client_id, str) and client_id in self._known,
      'client_id',
      f'one of the {self.num_clients} clients of {self.name!r}',
      client_id,
    )
