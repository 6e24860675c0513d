"""`FederatedDataset`: who the clients are, and what each of them holds."""

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.datasets import array_checks, array_clients, partitioning
from tff_pfl.datasets import client_data as client_data_lib
from tff_pfl.datasets import examples as examples_lib

# Of a dataset that is not in memory, how many clients a fingerprint reads.
_NUM_FINGERPRINTED = 20


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


class FederatedDataset:
  """Training and test examples of every client, read when asked for.

  Slicing, conversion to float, reading or generating happens in `train` and
  `test`, and their results are not kept. Most users call `from_arrays` or
  `from_client_data`, or `load_dataset` for a dataset by name.

  Attributes:
    name: What the dataset is called in tables and files.
    num_classes: Number of classes, labels being in `[0, num_classes)`; None for
      regression.
    client_ids: All clients, unique, in a stable order.
    element_spec: Ordered `x` and `y`, and `domain`, an int32 scalar, where the
      dataset has domains: `tf.TensorSpec`s of one example, without a batch
      dimension.
    domain_names: What the domains are called, distinct, which an example's
      domain id is a position in; None for a dataset without domains.
    encoding: What made the examples of a table's rows, of data sets that are
      tables; None for others.
    load_again: Returns an equal dataset wherever it is called; it is pickled in
      place of the content. None where that is to be pickled.
  """

  def __init__(
    self,
    *,
    name: str,
    client_ids: Iterable[str],
    element_spec: 'collections.OrderedDict[str, tf.TensorSpec]',
    num_classes: Optional[int],
    train: examples_lib.ExampleSource,
    test: examples_lib.ExampleSource,
    positions: Optional[Sequence[int]] = None,
    domain_names: Optional[Iterable[str]] = None,
  ):
    """Makes a dataset on two sources; see also the class's attributes.

    Args:
      client_ids: At least one.
      positions: Each client's position in the sources; None for 0, 1, ….

    Raises:
      ValueError: There is no client, an id occurs twice, or `element_spec` has
        a domain and there are no `domain_names`, or the reverse.
    """
    self.name = name
    self.num_classes = array_checks.check_num_classes(num_classes)
    self.client_ids = tuple(client_ids)
    self.element_spec = element_spec
    self.domain_names = None
    if domain_names is not None:
      self.domain_names = array_checks.check_domain_names(domain_names)
    errors.expect(
      element_spec.get('domain')
      == (self.domain_names and tf.TensorSpec((), tf.int32)),
      'element_spec',
      'with an int32 scalar `domain` if and only if there are `domain_names`',
      dict(element_spec),
    )
    self._train = train
    self._test = test
    errors.expect(self.client_ids, 'client_ids', 'at least one id', 'none')
    if positions is None:
      positions = range(len(self.client_ids))
    self._positions = dict(zip(self.client_ids, positions))
    if len(self._positions) < len(self.client_ids):
      counts = collections.Counter(self.client_ids)
      errors.expect(False, 'client_ids', 'unique', counts.most_common(1)[0][0])
    self._counts: dict[tuple[str, str], np.ndarray] = {}
    self.encoding: Any = None
    self.load_again: Optional[Callable[[], FederatedDataset]] = None

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
      f' num_classes={self.num_classes},'
      f' x={shapes}{domains})'
    )

  @property
  def num_clients(self) -> int:
    """Number of clients."""
    return len(self.client_ids)

  @property
  def num_domains(self) -> int:
    """Number of domains; 0 for a dataset without."""
    return len(self.domain_names or ())

  @property
  def num_overlapping(self) -> int:
    """Neighbors of a training example, to either side, that overlap with it.

    See `examples.ExampleSource`; 0 except for examples cut out of one text.
    """
    return self._train.num_overlapping

  @property
  def in_memory(self) -> bool:
    """Whether reading all examples takes seconds."""
    return self._train.in_memory and self._test.in_memory

  @functools.cached_property
  def fingerprint(self) -> str:
    """A checksum of the clients and their examples.

    It covers all examples of a dataset that is made of arrays, as those that
    are read from files are. One whose clients are read or generated when they
    are asked for, such as that of `from_client_data`, stays lazy: of it, all
    client ids are covered, and the examples of 20 clients, evenly spaced.
    """
    checksum = hashlib.sha256(repr(self.client_ids).encode())
    positions = list(self._positions.values())
    if not self.in_memory:
      chosen = np.linspace(0, len(positions) - 1, _NUM_FINGERPRINTED, dtype=int)
      positions = [positions[i] for i in np.unique(chosen)]
    for position in positions:
      for source in (self._train, self._test):
        for part in source.content(position):
          checksum.update(b'%d:' % len(part))
          checksum.update(part)
    return checksum.hexdigest()[:16]

  def train_content(self, client_id: str) -> Iterator[bytes]:
    """Yields the content of a client's training examples, for a checksum."""
    return self._train.content(self._position(client_id))

  def train(self, client_id: str) -> examples_lib.Examples:
    """Returns a client's training examples, possibly none."""
    return self._train.examples(self._position(client_id))

  def test(self, client_id: str) -> examples_lib.Examples:
    """Returns a client's test examples, possibly none; see `train`."""
    return self._test.examples(self._position(client_id))

  def num_train_examples(self, client_id: str) -> int:
    """Returns the number of training examples; see `class_counts`."""
    return self._train.num_examples(self._position(client_id))

  def num_test_examples(self, client_id: str) -> int:
    """Returns the number of test examples; see `class_counts`."""
    return self._test.num_examples(self._position(client_id))

  def train_domains(self, client_id: str) -> np.ndarray:
    """Returns the domain ids of a client's training examples, int32 `[n]`.

    Inputs are not read, unless the source cannot do without.
    """
    self._expect_domains()
    return self._train.domains(self._position(client_id))

  def class_counts(self, split: str = 'train') -> np.ndarray:
    """Counts a split's labels by client and class.

    Inputs are not read, unless the source cannot do without.

    Returns:
      int64 array `[num_clients, num_classes]`, read-only.

    Raises:
      ValueError: The split is unknown, or this is a regression dataset.
    """
    source = self._source(split)
    errors.expect(
      self.num_classes is not None,
      'num_classes',
      'known in order to count classes (this is a regression dataset)',
      self.num_classes,
    )
    return self._counted(source.labels, ('y', split), self.num_classes)

  def domain_counts(self, split: str = 'train') -> np.ndarray:
    """Counts examples by client and domain; see `class_counts`.

    Returns:
      int64 array `[num_clients, num_domains]`, read-only.
    """
    source = self._source(split)
    self._expect_domains()
    return self._counted(source.domains, ('domain', split), self.num_domains)

  def _counted(
    self, read: Callable[[int], np.ndarray], key: tuple[str, str], num_ids: int
  ) -> np.ndarray:
    """Counts the ids in [0, num_ids) of each client, once."""
    if key not in self._counts:
      counts = np.zeros((self.num_clients, num_ids), np.int64)
      for row, position in zip(counts, self._positions.values()):
        row[:] = np.bincount(read(position).ravel(), minlength=num_ids)
      counts.setflags(write=False)
      self._counts[key] = counts
    return self._counts[key]

  def subset(self, client_ids: Iterable[str]) -> 'FederatedDataset':
    """Returns a view on some clients, in the order given.

    Args:
      client_ids: Some of `client_ids`, at least one.

    Raises:
      ValueError: A client is unknown or named twice, or none is named.
    """
    client_ids = list(client_ids)
    data = FederatedDataset(
      name=self.name,
      client_ids=client_ids,
      element_spec=self.element_spec,
      num_classes=self.num_classes,
      train=self._train,
      test=self._test,
      positions=[self._position(client_id) for client_id in client_ids],
      domain_names=self.domain_names,
    )
    data.encoding = self.encoding
    return data

  def to_client_data(
    self, split: str = 'train'
  ) -> tff.simulation.datasets.ClientData:
    """Returns one split, 'train' or 'test', for use with TFF.

    Returns:
      A `ClientData` with elements `OrderedDict(x=…, y=…)`, and `domain=…` where
      there are domains; see `client_data.to_client_data`.
    """
    source = self._source(split)
    return client_data_lib.to_client_data(
      self.client_ids,
      self.element_spec,
      lambda client_id: source.examples(self._position(client_id)),
    )

  @classmethod
  def from_arrays(
    cls,
    x: Any,
    y: Any,
    *,
    x_test: Any = None,
    y_test: Any = None,
    num_clients: Optional[int] = None,
    partition: Union[str, partitioning.Partitioner, None] = None,
    keys: Any = None,
    keys_test: Any = None,
    client_ids: Optional[Iterable[str]] = None,
    test_fraction: float = 0.2,
    num_classes: Optional[int] = None,
    transform: Optional[examples_lib.Transform] = None,
    num_overlapping: int = 0,
    name: str = 'arrays',
    seed: int = 0,
    domain: Any = None,
    domain_test: Any = None,
    domain_names: Optional[Iterable[str]] = None,
  ) -> 'FederatedDataset':
    """Makes clients from arrays; do not modify these, most are not copied.

    Either a rule deals the examples to `num_clients` clients (`partition`), or
    each example has a key, and every distinct key is a client (`keys`).

    Args:
      x: Inputs, `[n, ...]`, or for models of several inputs a dict of such
        arrays. Floats become float32; integers stay as they are.
      y: Labels, `[n, ...]`, integers or whole floats, become int32; or
        regression targets, floats with `num_classes=None`, become float32.
      x_test: Test inputs, `[m, ...]`. None to divide each client's examples
        into train and test.
      y_test: Test labels; given if and only if `x_test` is.
      num_clients: At least 1; not given with `keys`.
      partition: See `partitioning`; None for `'iid'`.
      keys: Integers or strings, `[n]`, that say whose example it is.
      keys_test: `[m]`; given if and only if `keys` and `x_test` are.
      client_ids: The clients' ids; None for the keys, or else `client_0`, ….
      test_fraction: What part of a client's examples becomes its test set, in
        [0, 1), without `x_test`; stratified by domain and class.
      num_classes: None for the largest label plus 1.
      transform: See `examples.ArraySource`.
      num_overlapping: See `examples.ExampleSource`; only with `x_test`, as a
        division at random would test on what was trained on.
      seed: Decides the partition and the test set, non-negative.
      domain: Integers, `[n]`, that say which domain an example is of.
      domain_test: `[m]`; given if and only if `domain` and `x_test` are.
      domain_names: Distinct; None for `domain_0`, … up to the largest id.
        Nothing is ever learned of a domain without any training example.

    Raises:
      ValueError: Lengths differ, an input is not finite, a label or a domain id
        is out of range, or the partition is impossible; the message says which.
    """
    pool = partitioning.Pool(
      y, y_test, num_classes, domain, domain_test, domain_names, x, x_test
    )
    return cls(
      **array_clients.clients_of(
        dataclasses.replace(pool, **array_checks.checked_fields(pool)),
        partition=partition,
        keys=keys,
        keys_test=keys_test,
        num_clients=num_clients,
        client_ids=client_ids,
        test_fraction=test_fraction,
        transform=transform,
        num_overlapping=num_overlapping,
        name=name,
        seed=seed,
      )
    )

  @classmethod
  def from_client_data(
    cls,
    train: tff.simulation.datasets.ClientData,
    test: tff.simulation.datasets.ClientData,
    *,
    num_classes: Optional[int],
    name: str = 'client_data',
    domain_names: Optional[Iterable[str]] = None,
  ) -> 'FederatedDataset':
    """Makes a dataset on TFF's, whose clients are read when they are asked for.

    Clients are those of `train` followed by those only in `test`; a client that
    one of the two lacks has no examples there.

    Args:
      train: Elements are single examples `(x, y)` or `{'x': …, 'y': …}`, or
        with domains `{'x': …, 'y': …, 'domain': …}`, where `x` may be a dict of
        several inputs; use `ClientData.preprocess` to get there. They are the
        same each time they are read: some are read twice at once, to see.
      test: Elements of the same kind.
      num_classes: Number of classes; None for regression, with float `y`.
      domain_names: What the domains are called, distinct; given if and only if
        elements have a domain.

    Raises:
      TypeError: `train` or `test` is not a `ClientData`.
      ValueError: Their elements are of another form, or differ, also from one
        reading to the next. What is wrong with a client's examples is raised
        when they are read.
    """
    num_domains = 0
    if domain_names is not None:
      domain_names = array_checks.check_domain_names(domain_names)
      num_domains = len(domain_names)
    for part, part_name in ((train, 'train'), (test, 'test')):
      errors.expect_type(
        part,
        tff.simulation.datasets.ClientData,
        part_name,
        'a tff.simulation.datasets.ClientData',
      )
    client_ids = list(dict.fromkeys([*train.client_ids, *test.client_ids]))
    train, test = (
      client_data_lib.ClientDataSource(
        part, client_ids, num_classes, part_name, num_domains
      )
      for part, part_name in ((train, 'train'), (test, 'test'))
    )
    errors.expect(
      train.specs == test.specs,
      'test',
      f'of {dict(train.specs)}',
      dict(test.specs),
    )
    for source in (train, test):
      source.expect_repeatable()
    return cls(
      name=name,
      client_ids=client_ids,
      element_spec=train.specs,
      num_classes=num_classes,
      train=train,
      test=test,
      domain_names=domain_names,
    )

  def _expect_domains(self) -> None:
    errors.expect(
      self.domain_names is not None,
      'data',
      'a dataset with domains',
      f'dataset {self.name!r} without',
    )

  def _position(self, client_id: str) -> int:
    try:
      return self._positions[client_id]
    except (KeyError, TypeError):
      raise ValueError(
        errors.message(
          'client_id',
          f'one of the {self.num_clients} clients of {self.name!r} (such as'
          f' {self.client_ids[0]!r})',
          client_id,
        )
      ) from None

  def _source(self, split: str) -> examples_lib.ExampleSource:
    errors.expect(
      split in ('train', 'test'), 'split', "'train' or 'test'", split
    )
    return self._train if split == 'train' else self._test
