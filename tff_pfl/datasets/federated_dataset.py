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
import tensorflow_federated as tff

from tff_pfl import errors, fields
from tff_pfl.datasets import array_checks, array_clients, frames, partitioning
from tff_pfl.datasets import client_data as client_data_lib
from tff_pfl.datasets import examples as examples_lib

SPLITS = ('train', 'test')
# Function from a client's id and a split to its examples.
Load = Callable[[str, str], examples_lib.Examples]
# Clients that a fingerprint reads of a dataset that is not in memory.
_NUM_FINGERPRINTED = 20


def _unpadded(client_id):
  """An id without zeros before the whole number at its end."""
  return re.sub(r'(?<![\d.])0+(?=\d+$)', '', client_id)


def _load_again(
  load: Callable[[], 'FederatedDataset'], fingerprint: str
) -> 'FederatedDataset':
  data = load()
  if data.fingerprint != fingerprint:
    raise errors.RunError(
      f'The data of {data.name} are not the same on all machines: their '
      f'checksum is {fingerprint} where the run was started, and '
      f'{data.fingerprint} on one that computes.'
    )
  return data


def _load_joining(
  load: Callable[[], 'FederatedDataset'], join_round: Mapping[str, int]
) -> 'FederatedDataset':
  return load().joining(join_round)


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class FederatedDataset:
  """Training and test examples of every client, read when asked for.

  `train` and `test` slice, convert, read or generate a client's examples and do
  not keep them. Most users call `from_frame`, `from_arrays` or
  `from_client_data`, or `load_dataset` for a dataset by name.

  Attributes:
    name: Name of the dataset in tables and files.
    client_ids: Ids of all clients, unique, at least one, in a stable order.
    element_spec: `tf.TensorSpec`s of one example, without a batch dimension:
      ordered `x` and `y`, then `weight` (float32 scalar) if examples have
      training weights, and `domain` (int32 scalar) if there are domains.
    num_classes: Number of classes; labels are in `[0, num_classes)`. None for
      regression.
    load: Function from a client's id and 'train' or 'test' to its examples,
      possibly none; the same each time.
    domain_names: Distinct names of the domains; an example's domain id is a
      position among them. None for a dataset without domains.
    partition: Text of the rule that made the clients, 'natural' for clients
      that come with the data; None if that is not known.
    in_memory: True if reading all examples takes seconds at most.
    num_overlapping: Number of examples before a training example, and as many
      after it, that may share content with it, as windows on a text do. If it
      is above 0, a client's examples have to be divided in their order, with so
      many left out between the parts.
    encoding: The `frames.FrameEncoding` of a frame's rows; None for other data.
    join_round: Client id to the first round that a run may draw it for, for
      clients that are not there from round 1 on; see `joining`.
    load_again: Function that returns an equal dataset on any machine; it is
      pickled in place of the content. None to pickle the content.
  """

  name: str
  client_ids: Iterable[str]
  element_spec: 'collections.OrderedDict[str, tf.TensorSpec]'
  num_classes: Optional[int]
  load: Load
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
      0 < len(self._known) == len(self.client_ids),
      'client_ids',
      'distinct, at least one',
      self.client_ids,
    )
    # Of these clients, in their order, those after the first round.
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
    """Number of domains; 0 for a dataset without domains."""
    return len(self.domain_names or ())

  @functools.cached_property
  def fingerprint(self) -> str:
    """A checksum of the clients, their examples and the rounds they join in.

    It covers all examples of a dataset in memory. A dataset whose clients are
    read or generated on demand, such as one of `from_client_data`, stays lazy:
    the checksum covers all client ids and the examples of 20 clients, evenly
    spaced.
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
    """Returns the id of a client, which may be given without padding.

    `client_3` stands for `client_03`, if that alone is a client.

    Raises:
      ValueError: If there is no such client, or several.
    """
    client_id = str(client_id)
    if client_id in self._known:
      return client_id
    plain = _unpadded(client_id)
    found = [known for known in self.client_ids if _unpadded(known) == plain]
    errors.expect(
      len(found) == 1,
      'client_id',
      f'a client of {self.name!r}, such as {(found or self.client_ids)[0]!r}',
      client_id,
    )
    return found[0]

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

    Reads no inputs if the source can do without.

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
    """Counts each client's ids in [0, num_ids); keeps the result."""
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
      client_ids: At least one id, distinct.
    """
    client_ids = list(client_ids)
    for client_id in client_ids:
      self._check_client(client_id)
    return self.replaced(client_ids=client_ids)

  def replaced(self, **fields: Any) -> 'FederatedDataset':
    """Returns the dataset with other attributes."""
    return dataclasses.replace(self, **{'load_again': None, **fields})

  @fields.checked_call
  def joining(self, join_round: Mapping[str, int]) -> 'FederatedDataset':
    """Returns a view in which some clients join a run later.

    Before its round a client is neither drawn for a cohort nor scored.

    Args:
      join_round: Client id to the first round that it takes part in, at least
        1. The other clients keep theirs.
    """
    for client_id, round_number in join_round.items():
      self._check_client(client_id)
      errors.expect_int('join_round', round_number, 1)
    data = self.replaced(join_round={**self.join_round, **join_round})
    if self.load_again is not None:
      data.load_again = functools.partial(
        _load_joining, self.load_again, data.join_round
      )
    return data

  def to_client_data(
    self, split: str = 'train'
  ) -> tff.simulation.datasets.ClientData:
    """Converts one split for TFF; see `client_data.to_client_data`.

    Args:
      split: 'train' or 'test'.

    Returns:
      A `ClientData` with elements `OrderedDict(x=…, y=…)`, with `weight` and
      `domain` if the dataset has them.
    """
    return client_data_lib.to_client_data(
      self.client_ids,
      self.element_spec,
      lambda client_id: self._read(client_id, split),
    )

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
    """Makes clients from arrays; do not modify these, most are not copied.

    Each example has a key, and every distinct key is a client (`keys`), or else
    a rule deals the examples to `num_clients` clients (`partition`).

    Args:
      x: Inputs, `[n, ...]`, or for models of several inputs a dict of such
        arrays. Floats become float32; integers stay as they are.
      y: Labels, `[n, ...]`, integers or whole floats, become int32; or
        regression targets, floats with `num_classes=None`, become float32.
      x_test: Test inputs, `[m, ...]`. None to divide each client's examples
        into train and test.
      y_test: Test labels; given if and only if `x_test` is.
      num_clients: At least 1; with `keys` so many of these clients, drawn at
        random, or None for all.
      partition: A rule or its text, see `partitioning`; None for `'natural'`
        with `keys`, or else `'iid'`.
      keys: The client of each example, integers or strings `[n]`.
      keys_test: `[m]`; given if and only if `keys` and `x_test` are.
      client_ids: Ids of the clients; None for the keys, or else `client_0`, ….
      test_fraction: Fraction of a client's examples in its test set, in [0, 1),
        if there is no `x_test`; stratified by domain and class.
      num_classes: Number of classes; None for the largest label plus 1.
      transform: See `array_clients.CheckedPool`.
      num_overlapping: See the class. Only with `x_test`, as a random test set
        would share content with the training examples.
      seed: Seed of the partition and the test set, non-negative.
      domain: Domain of each example, integers `[n]` from 0 on.
      domain_test: `[m]`; given if and only if `domain` and `x_test` are.
      domain_names: Distinct names; None for `domain_0`, … up to the largest id.
        A domain without training examples is never learned.
      weight: Factors of the examples' training losses, non-negative `[n]`, as
        `sample_weight` in Keras's `fit`. Scores do not use them, and clients
        are weighed by their numbers of examples.
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
    # It is not for test examples that are given.
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
    """Makes clients of a pandas data frame, whose rows are examples.

    Numbers, booleans and dates become one standardized input each, strings and
    categories one input for each value, see `frames`. A run stores this
    encoding, `encoding`, and applies it to new rows.

    Args:
      frame: A row for each example. A string or category in each row of
        `client`, `domain` and `split`, no missing label.
      label: The column of labels; several for multilabel, of the same two
        values, the second of which means that the label applies.
      client: The column of clients, each value of which is a client; None
        without.
      domain: The column of domains, which is no input.
      split: The column of the words train and test; None to draw test rows.
      weight: The column of the rows' weights in the training loss, from 0 on.
      task: 'classification' or 'regression', whose labels are standardized for
        training; None for regression if labels are floats, or else for
        classification, in the sorted order of the values or of the categories.
      features: The columns that are inputs; None for all others.
      partition: A rule that deals the rows, see `partitioning`; None for the
        clients that the rows name, or `'iid'`.
      num_clients: Number of clients, which are drawn if the rows name more;
        None for all that they name.
      test_fraction: Fraction of a client's rows in its test set, in [0, 1),
        stratified by domain and class; None for 0.2, or with `split`.
      seed: Seed of the partition and the test set, non-negative.
      name: Name of the data set.
      encoding: The encoding of a run (`Run.encoding`), for clients with new
        rows, all of the client column, or a client called client without it.
        The frame has the columns that the encoding names, which no other
        argument does.

    Raises:
      ValueError: If a column cannot be read so; the message says what pandas
        can do about it.
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
    """Makes a dataset of TFF's, whose clients are read on demand.

    Clients are those of `train`, followed by those only in `test`; a client
    that is missing in one of them has no examples there.

    Args:
      train: Its elements are single examples `(x, y)` or `{'x': …, 'y': …}`,
        where `x` may be a dict of several inputs; a dictionary may also have a
        `domain`, an integer, and a `weight`, a float, see `from_arrays`.
        `ClientData.preprocess` brings others to this form. They must be the
        same each time they are read; some are read twice to check.
      test: Elements of the same form.
      num_classes: Number of classes; None for regression, with float `y`.
      domain_names: Distinct names of the domains; given if and only if elements
        have a domain.

    Raises:
      ValueError: If their elements have another form, or differ between two
        readings. Errors in a client's examples are raised on reading them.
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
    """Returns a number of examples, which are read once to count them."""
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
