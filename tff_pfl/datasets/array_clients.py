"""Clients of central arrays, for `FederatedDataset.from_arrays`."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
import tree
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import partitioning
from tff_pfl.datasets.partitioning import natural

Transform = Callable[[Any], Any]


class ArrayClients:
  """A loader of clients that are index arrays into central arrays."""

  def __init__(
    self,
    pool: partitioning.Pool,
    parts: partitioning.Partition,
    client_ids: Sequence[str],
    transform: Optional[Transform],
  ):
    """Takes examples and their clients.

    Args:
      pool: The examples.
      parts: The examples of each client.
      client_ids: Ids of the clients, in the order of `parts`.
      transform: Function of a client's inputs `[k, ...]`, example by example,
        so that `x` can be stored in a compact form. It is applied on demand,
        to training and test inputs alike, once for all rounds; for random
        changes see `models.augmentation`. None for unchanged inputs. A
        transform that reads files has a method `content` that yields the bytes
        of the files of inputs `[k, ...]`.
    """
    self._arrays = {
      'train': (pool.x, pool.y, pool.domain, pool.weight),
      'test': (pool.x_test, pool.y_test, pool.domain_test, pool.weight_test),
    }
    self._indices = {
      split: dict(zip(client_ids, indices))
      for split, indices in zip(self._arrays, parts)
    }
    self._transform = transform

  def __call__(self, client_id: str, split: str) -> examples_lib.Examples:
    """Slices the client's examples; inputs are transformed on first use."""
    x, y, domain, weight = self._arrays[split]
    indices = self._indices[split][client_id]
    content = None
    if hasattr(self._transform, 'content'):
      content = functools.partial(self._transform.content, x[indices])
    return examples_lib.Examples(
      lambda: self._inputs(x, indices),
      y[indices],
      None if domain is None else domain[indices],
      content,
      None if weight is None else weight[indices],
    )

  def _inputs(self, x: Any, indices: np.ndarray) -> Any:
    x = tree.map_structure(lambda array: array[indices], x)
    if self._transform is not None:
      x = tree.map_structure(np.asarray, self._transform(x))
      for array in tree.flatten(x):
        errors.expect(
          array.shape[:1] == (len(indices),),
          'transform(x)',
          f'{len(indices)} examples, as many as it was given',
          array.shape,
        )
    return x


def clients_of(
  pool: partitioning.Pool,
  *,
  num_clients: Optional[int],
  partition: Union[str, partitioning.Partitioner, None],
  transform: Optional[Transform],
  name: str,
  seed: int,
  test_fraction: float = 0.2,
  keys: Any = None,
  keys_test: Any = None,
  client_ids: Optional[Iterable[str]] = None,
  num_overlapping: int = 0,
) -> dict[str, Any]:
  """Returns the arguments of `FederatedDataset` for checked examples."""
  errors.expect_int('num_overlapping', num_overlapping, 0)
  errors.expect(len(pool.y), 'x', 'at least one example', 'none')
  parts, ids, rule = _divide(
    pool, num_clients, partition, keys, keys_test, seed
  )
  client_ids = ids if client_ids is None else list(client_ids)
  errors.expect(
    len(client_ids) == len(ids),
    'client_ids',
    f'{len(ids)} ids, one per client',
    len(client_ids),
  )
  if pool.x_test is None:
    errors.expect(
      num_overlapping == 0,
      'num_overlapping',
      '0 where test sets are drawn at random, without `x_test` or by'
      ' `test_fraction`',
      num_overlapping,
    )
    errors.expect_share('test_fraction', test_fraction, '[0, 1)')
    parts = partitioning.hold_out(
      parts.train_indices, pool.y, test_fraction, seed, pool.domain
    )
    pool = dataclasses.replace(
      pool,
      x_test=pool.x,
      y_test=pool.y,
      domain_test=pool.domain,
      client_test=pool.client,
      weight_test=pool.weight,
    )
  _warn_of_gaps(pool, parts, name)
  sample = tree.map_structure(lambda array: array[:1], pool.x)
  if transform is not None:
    sample = tree.map_structure(np.asarray, transform(sample))
  return dict(
    name=name,
    client_ids=client_ids,
    partition=rule,
    element_spec=examples_lib.element_spec(
      tree.map_structure(
        lambda array: tf.TensorSpec(array.shape[1:], array.dtype), sample
      ),
      tf.TensorSpec(pool.y.shape[1:], pool.y.dtype),
      has_domain=pool.domain is not None,
      has_weight=pool.weight is not None,
    ),
    num_classes=pool.num_classes,
    load=ArrayClients(pool, parts, client_ids, transform),
    domain_names=pool.domain_names,
    in_memory=True,
    num_overlapping=num_overlapping,
  )


def _divide(
  pool: partitioning.Pool,
  num_clients: Optional[int],
  partition: Union[str, partitioning.Partitioner, None],
  keys: Any,
  keys_test: Any,
  seed: int,
) -> tuple[partitioning.Partition, list[str], str]:
  """Divides examples; returns parts, client ids and the rule's text."""
  if keys is None:
    errors.expect(keys_test is None, 'keys', 'given with `keys_test`', keys)
    rule = partitioning.make_partitioner(
      'iid' if partition is None else partition
    )
    is_natural = isinstance(rule, natural.Natural)
    errors.expect(
      num_clients is not None or is_natural,
      'num_clients',
      'given, or else the client of each example (`keys` of `from_arrays`, else'
      ' `client`)',
      num_clients,
    )
    if num_clients is not None:
      errors.expect_int('num_clients', num_clients, 1)
    if is_natural:
      return (*natural.own_clients(pool, num_clients, seed), rule.spec)
    if pool.client is not None:
      logging.warning(
        'The clients that the examples name are left aside, as %s deals the'
        ' examples; the partition natural keeps them.',
        rule.spec,
      )
    with rule.naming():
      parts = rule.partition(pool, num_clients, seed)
    return parts, partitioning.numbered_client_ids(num_clients), rule.spec
  parts, ids = partitioning.by_key(pool, keys, keys_test)
  errors.expect(
    partition is None and num_clients in (None, len(ids)),
    'keys',
    'given without `partition` and another `num_clients`',
    f'{len(ids)} distinct ones',
  )
  return parts, ids, natural.Natural.name


def _warn_of_gaps(
  pool: partitioning.Pool, parts: partitioning.Partition, name: str
) -> None:
  """Warns of clients, classes and domains without training examples."""
  gaps = []
  num_without = sum(not len(indices) for indices in parts.train_indices)
  if num_without:
    gaps.append(
      f'{num_without} of {len(parts.train_indices)} clients have no training'
      ' examples'
    )
  trained, tested = map(np.concatenate, parts)
  if pool.num_classes is not None:
    labels = pool.y_test[tested]
    untrained = np.setdiff1d(labels, pool.y[trained])
    if len(untrained):
      gaps.append(
        f'{np.isin(labels, untrained).sum()} test examples have the labels'
        f' {untrained.tolist()}, which no training example has: are they right?'
        ' (Numbers to predict are floats.)'
      )
  if pool.domain is not None:
    there = set(pool.domain[trained].tolist())
    missing = [n for i, n in enumerate(pool.domain_names) if i not in there]
    if missing:
      gaps.append(
        f'there is no training example of the domains {missing}: nothing that'
        ' belongs to one domain alone, such as its head, is ever trained for'
        ' these'
      )
  for gap in gaps:
    logging.warning('Dataset %r: %s', name, gap)
