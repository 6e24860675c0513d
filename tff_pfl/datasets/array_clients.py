"""Central arrays of examples, with clients as indices into them."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tree
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import array_checks, partitioning
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets.partitioning import natural

Transform = Callable[[Any], Any]
# Fields with an entry for each example.
OF_EACH = ('x', 'y', 'domain', 'client', 'weight')


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CheckedPool(partitioning.Pool):
  """Training and test examples, which the constructor checks and converts.

  Do not modify the inputs: only floats of another precision are copied.

  Attributes:
    name: Name of the dataset.
    transform: Function that converts inputs `[k, ...]` example by example, so
      that `x` can be stored in a compact form such as uint8. It is applied on
      demand to training and test inputs, once for all rounds. Floats of the
      result become float32. For random changes, see `models.augmentation`. None
      if `x` and `x_test` are model inputs. A transform that reads files has a
      method `content` that yields the bytes of the files of inputs `[k, ...]`.
    num_overlapping: See `FederatedDataset`. Only with test examples.
  """

  name: str
  transform: Optional[Transform] = None
  num_overlapping: int = 0

  def __post_init__(self):
    for name, value in array_checks.checked_fields(self).items():
      object.__setattr__(self, name, value)
    errors.expect_int('num_overlapping', self.num_overlapping, 0)
    for name in ('client', 'client_test'):
      if isinstance(value := getattr(self, name), (list, tuple)):
        object.__setattr__(self, name, np.asarray(value, object))
    if self.client is not None or self.client_test is not None:
      partitioning.by_key(self, self.client, self.client_test, 'client')

  def split(self, suffix: str) -> dict[str, Any]:
    """Returns the fields of the training ('') or test examples ('_test')."""
    fields = {name: getattr(self, f'{name}{suffix}') for name in OF_EACH}
    return {name: value for name, value in fields.items() if value is not None}

  def clients(
    self,
    num_clients: Optional[int],
    partition: Union[str, partitioning.Partitioner, None],
    seed: int,
    test_fraction: Optional[float],
    client_ids: Optional[Iterable[str]] = None,
  ) -> dict[str, Any]:
    """Returns the arguments of `FederatedDataset`; see `Arrays.to_clients`.

    The default partition is natural if the examples name their clients, and
    otherwise iid.
    """
    if partition is None:
      partition = 'iid' if self.client is None else 'natural'
    errors.expect(len(self.y), 'x', 'at least one example', 'none')
    train, test = self.split(''), self.split('_test')
    pool = self
    if test and test_fraction is not None:
      train = {
        name: tree.map_structure(
          lambda *arrays: np.concatenate(arrays), part, test[name]
        )
        for name, part in train.items()
      }
      test = {}
      pool = partitioning.Pool(
        **train, num_classes=self.num_classes, domain_names=self.domain_names
      )
    rule = partitioning.make_partitioner(partition)
    parts, ids = _divide(pool, num_clients, rule, seed)
    if self.num_overlapping:
      # Examples that overlap are near in the data, and stay so for a client.
      parts = partitioning.Partition(*([*map(np.sort, p)] for p in parts))
    client_ids = ids if client_ids is None else list(client_ids)
    errors.expect(
      len(client_ids) == len(ids),
      'client_ids',
      f'{len(ids)} ids, one per client',
      len(client_ids),
    )
    if not test:
      errors.expect(
        self.num_overlapping == 0,
        'num_overlapping',
        '0 if test sets are drawn at random, without `x_test` or by'
        ' `test_fraction`',
        self.num_overlapping,
      )
      fraction = 0.2 if test_fraction is None else test_fraction
      parts = partitioning.hold_out(
        parts.train_indices, pool.y, fraction, seed, pool.domain
      )
      test = train
    self._warn_of_gaps(train, test, parts)
    sample = tree.map_structure(lambda array: array[:1], self.x)
    if self.transform is not None:
      sample = _arrays(self.transform(sample))
    return dict(
      name=self.name,
      client_ids=client_ids,
      element_spec=examples_lib.element_spec(
        tree.map_structure(
          lambda array: tf.TensorSpec(array.shape[1:], array.dtype), sample
        ),
        tf.TensorSpec(self.y.shape[1:], self.y.dtype),
        has_domain=self.domain is not None,
        has_weight=self.weight is not None,
      ),
      num_classes=self.num_classes,
      load=_ArrayClients(
        {
          split: examples_lib.Examples(
            **{name: part[name] for name in part if name != 'client'}
          )
          for split, part in (('train', train), ('test', test))
        },
        {
          split: dict(zip(client_ids, indices))
          for split, indices in zip(('train', 'test'), parts)
        },
        self.transform,
      ),
      class_names=self.class_names,
      domain_names=self.domain_names,
      partition=rule.spec,
      in_memory=True,
      num_overlapping=self.num_overlapping,
    )

  def _warn_of_gaps(self, train, test, parts):
    """Warns of test labels and domains that no training example has."""
    trained, tested = map(np.concatenate, parts)
    for field in ('y', 'domain'):
      if field in train and train[field].dtype == np.int32:
        untrained = np.setdiff1d(test[field][tested], train[field][trained])
        if len(untrained):
          logging.warning(
            'Dataset %r: test examples have `%s` %s, which no training example'
            ' has. (Regression targets must be floats.)',
            self.name,
            field,
            untrained.tolist(),
          )


@dataclasses.dataclass(frozen=True)
class _ArrayClients:
  """Loads clients from all examples of a split and each client's indices."""

  splits: dict[str, examples_lib.Examples]
  indices: dict[str, dict[str, np.ndarray]]
  transform: Optional[Transform]

  def __call__(self, client_id: str, split: str) -> examples_lib.Examples:
    """Selects the client's examples and transforms inputs on first use."""
    part = self.splits[split].select(self.indices[split][client_id])
    if self.transform is None:
      return part
    content = None
    if hasattr(self.transform, 'content'):
      content = lambda: self.transform.content(part.x)  # noqa: E731
    return examples_lib.Examples(
      lambda: self._transformed(part.x),
      part.y,
      part.domain,
      content,
      part.weight,
    )

  def _transformed(self, x: Any) -> Any:
    num_examples = len(tree.flatten(x)[0])
    x = _arrays(self.transform(x))
    for array in tree.flatten(x):
      errors.expect(
        array.shape[:1] == (num_examples,),
        'transform(x)',
        f'{num_examples} examples, as many as it was given',
        array.shape,
      )
    return x


def _arrays(x: Any) -> Any:
  """Returns the arrays of a transform's result, with floats as float32."""

  def array(part):
    part = np.asarray(part)
    is_float = part.dtype.kind == 'f'
    return part.astype(np.float32, copy=False) if is_float else part

  return tree.map_structure(array, x)


def _divide(
  pool: partitioning.Pool,
  num_clients: Optional[int],
  rule: partitioning.Partitioner,
  seed: int,
) -> tuple[partitioning.Partition, list[str]]:
  """Divides examples and returns the partition and the clients' ids."""
  if isinstance(rule, natural.Natural):
    return natural.own_clients(pool, num_clients, seed)
  errors.expect(
    num_clients is not None,
    'num_clients',
    'given for a rule that deals examples; to name the client of each example'
    ' instead, give `keys` (`from_arrays`) or `client`, and no `partition`',
    num_clients,
  )
  if pool.client is not None:
    logging.warning(
      'The clients that the examples name are left aside, as %s deals the'
      ' examples; the partition natural keeps them.',
      rule.spec,
    )
  with rule.naming():
    parts = rule.partition(pool, num_clients, seed)
  return parts, partitioning.numbered_client_ids(num_clients)
