"""`FederatedDataset`: who the clients are, and what each of them holds."""

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.datasets import array_checks, array_clients, partitioning
from tff_pfl.datasets import client_data as client_data_lib
from tff_pfl.datasets import examples as examples_lib

SPLITS = ('train', 'test')
# From a client's id and a split to its examples.
Load = Callable[[str, str], examples_lib.Examples]
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


def _load_joining(
  load: Callable[[], 'FederatedDataset'], join_round: Mapping[str, int]
) -> 'FederatedDataset':
  return load().joining(join_round)


def _later(
  join_round: Mapping[str, int], client_ids: Iterable[str]
) -> dict[str, int]:
  """The rounds after the first, in the order of the clients."""
  rounds = {name: int(join_round.get(name, 1)) for name in client_ids}
  return {name: number for name, number in rounds.items() if number > 1}


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
    element_spec: Ordered `x` and `y`, `weight`, a float32 scalar, where
      examples have weights in training, and `domain`, an int32 scalar, where
      the dataset has domains: `tf.TensorSpec`s of one example, without a batch
      dimension.
    domain_names: What the domains are called, distinct, which an example's
      domain id is a position in; None for a dataset without domains.
    in_memory: Whether reading all examples takes seconds.
    num_overlapping: Up to how many examples before it, and as many after it,
      may share content with a training example of the same client, as windows
      on a text do. Where it is above 0, a client's examples are to be divided
      in their order, and so many left out between the parts.
    encoding: What made the examples of a table's rows, of data sets that are
      tables; None for others.
    load_again: Returns an equal dataset wherever it is called; it is pickled in
      place of the content. None where that is to be pickled.
    join_round: By client id the first round that a run may draw it for, of the
      clients that are not there from round 1 on; see `joining`.
  """

  def __init__(
    self,
    *,
    name: str,
    client_ids: Iterable[str],
    element_spec: 'collections.OrderedDict[str, tf.TensorSpec]',
    num_classes: Optional[int],
    load: Load,
    domain_names: Optional[Iterable[str]] = None,
    in_memory: bool = False,
    num_overlapping: int = 0,
  ):
    """Makes a dataset; see also the class's attributes.

    Args:
      client_ids: At least one.
      load: From a client's id and 'train' or 'test' to its examples, possibly
        none; the same each time.

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
    errors.expect(self.client_ids, 'client_ids', 'at least one id', 'none')
    self._known = frozenset(self.client_ids)
    if len(self._known) < len(self.client_ids):
      counts = collections.Counter(self.client_ids)
      errors.expect(False, 'client_ids', 'unique', counts.most_common(1)[0][0])
    self.in_memory = in_memory
    self.num_overlapping = num_overlapping
    self._load = load
    self._sizes: dict[tuple[str, str], int] = {}
    self._counts: dict[tuple[str, str], np.ndarray] = {}
    self.encoding: Any = None
    self.load_again: Optional[Callable[[], FederatedDataset]] = None
    self.join_round: dict[str, int] = {}

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

  @functools.cached_property
  def fingerprint(self) -> str:
    """A checksum of the clients, their examples and when they join.

    It covers all examples of a dataset that is made of arrays, as those that
    are read from files are. One whose clients are read or generated when they
    are asked for, such as that of `from_client_data`, stays lazy: of it, all
    client ids are covered, and the examples of 20 clients, evenly spaced.
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

  def train(self, client_id: str) -> examples_lib.Examples:
    """Returns a client's training examples, possibly none."""
    return self._read(client_id, 'train')

  def test(self, client_id: str) -> examples_lib.Examples:
    """Returns a client's test examples, possibly none; see `train`."""
    return self._read(client_id, 'test')

  def num_train_examples(self, client_id: str) -> int:
    """Returns the number of training examples; see `class_counts`."""
    return self._size(client_id, 'train')

  def num_test_examples(self, client_id: str) -> int:
    """Returns the number of test examples; see `class_counts`."""
    return self._size(client_id, 'test')

  def class_counts(self, split: str = 'train') -> np.ndarray:
    """Counts a split's labels by client and class.

    Inputs are not read, unless the source cannot do without.

    Returns:
      int64 array `[num_clients, num_classes]`, read-only.

    Raises:
      ValueError: The split is unknown, or this is a regression dataset.
    """
    errors.expect(
      self.num_classes is not None,
      'num_classes',
      'known in order to count classes (this is a regression dataset)',
      self.num_classes,
    )
    return self._counted('y', split, self.num_classes)

  def domain_counts(self, split: str = 'train') -> np.ndarray:
    """Counts examples by client and domain; see `class_counts`.

    Returns:
      int64 array `[num_clients, num_domains]`, read-only.
    """
    errors.expect(
      self.domain_names is not None,
      'data',
      'a dataset with domains',
      f'dataset {self.name!r} without',
    )
    return self._counted('domain', split, self.num_domains)

  def _counted(self, field: str, split: str, num_ids: int) -> np.ndarray:
    """Counts the ids in [0, num_ids) of each client, once."""
    _check_split(split)
    if (field, split) not in self._counts:
      counts = np.zeros((self.num_clients, num_ids), np.int64)
      for row, client_id in zip(counts, self.client_ids):
        ids = getattr(self._read(client_id, split), field)
        row[:] = np.bincount(ids.ravel(), minlength=num_ids)
      counts.setflags(write=False)
      self._counts[field, split] = counts
    return self._counts[field, split]

  def subset(self, client_ids: Iterable[str]) -> 'FederatedDataset':
    """Returns a view on some clients, in the order given.

    Args:
      client_ids: Some of `client_ids`, at least one.

    Raises:
      ValueError: A client is unknown or named twice, or none is named.
    """
    client_ids = list(client_ids)
    for client_id in client_ids:
      self._check_client(client_id)
    return self.replaced(client_ids=client_ids)

  def replaced(self, **fields: Any) -> 'FederatedDataset':
    """Returns the dataset with other arguments of its construction."""
    data = FederatedDataset(
      **{
        'name': self.name,
        'client_ids': self.client_ids,
        'element_spec': self.element_spec,
        'num_classes': self.num_classes,
        'load': self._load,
        'domain_names': self.domain_names,
        'in_memory': self.in_memory,
        'num_overlapping': self.num_overlapping,
        **fields,
      }
    )
    data.encoding = self.encoding
    data.join_round = _later(self.join_round, data.client_ids)
    return data

  def joining(self, join_round: Mapping[str, int]) -> 'FederatedDataset':
    """Returns a view of which some clients join a run later.

    Before its round a client is neither drawn for a cohort nor scored.

    Args:
      join_round: By client id the first round that it takes part in, at least
        1; the others join as they did before.

    Raises:
      ValueError: A client is unknown, or a round is not a positive integer.
    """
    errors.expect_type(
      join_round, Mapping, 'join_round', 'a dict from client id to round'
    )
    for client_id, round_number in join_round.items():
      self._check_client(client_id)
      errors.expect_int('join_round', round_number, 1)
    data = self.replaced()
    data.join_round = _later({**self.join_round, **join_round}, self.client_ids)
    if self.load_again is not None:
      data.load_again = functools.partial(
        _load_joining, self.load_again, data.join_round
      )
    return data

  def to_client_data(
    self, split: str = 'train'
  ) -> tff.simulation.datasets.ClientData:
    """Returns one split, 'train' or 'test', for use with TFF.

    Returns:
      A `ClientData` with elements `OrderedDict(x=…, y=…)`, `weight=…` and
      `domain=…` where there are such; see `client_data.to_client_data`.
    """
    _check_split(split)
    return client_data_lib.to_client_data(
      self.client_ids,
      self.element_spec,
      lambda client_id: self._read(client_id, split),
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
    transform: Optional[array_clients.Transform] = None,
    num_overlapping: int = 0,
    name: str = 'arrays',
    seed: int = 0,
    domain: Any = None,
    domain_test: Any = None,
    domain_names: Optional[Iterable[str]] = None,
    weight: Any = None,
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
      transform: See `array_clients.ArrayClients`.
      num_overlapping: See the class; only with `x_test`, as a division at
        random would test on what was trained on.
      seed: Decides the partition and the test set, non-negative.
      domain: Integers, `[n]`, that say which domain an example is of.
      domain_test: `[m]`; given if and only if `domain` and `x_test` are.
      domain_names: Distinct; None for `domain_0`, … up to the largest id.
        Nothing is ever learned of a domain without any training example.
      weight: Numbers, `[n]`, not negative: the factors of the examples' losses
        in training, as `sample_weight` of Keras's `fit`. Scores are without,
        and clients count by their numbers of examples.

    Raises:
      ValueError: Lengths differ, an input is not finite, a label or a domain id
        is out of range, or the partition is impossible; the message says which.
    """
    pool = partitioning.Pool(
      y,
      y_test,
      num_classes,
      domain,
      domain_test,
      domain_names,
      x,
      x_test,
      weight=weight,
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
        several inputs; a dictionary may have a `weight`, a float, see
        `from_arrays`. Use `ClientData.preprocess` to get there. They are the
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
    load = client_data_lib.ClientDataSource(
      {'train': train, 'test': test}, num_classes, num_domains
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
    examples = self._load(client_id, split)
    self._sizes[client_id, split] = len(examples)
    return examples

  def _size(self, client_id: str, split: str) -> int:
    """Returns a number of examples, which are read to count them once."""
    self._check_client(client_id)
    if (client_id, split) not in self._sizes:
      self._read(client_id, split)
    return self._sizes[client_id, split]

  def _check_client(self, client_id: str) -> None:
    if not isinstance(client_id, str) or client_id not in self._known:
      raise ValueError(
        errors.message(
          'client_id',
          f'one of the {self.num_clients} clients of {self.name!r} (such as'
          f' {self.client_ids[0]!r})',
          client_id,
        )
      )


def _check_split(split: str) -> None:
  errors.expect(split in SPLITS, 'split', "'train' or 'test'", split)
