"""From central arrays to clients: what `FederatedDataset.from_arrays` does."""

import collections
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets import array_checks, partitioning
from tff_pfl.datasets import examples as examples_lib


def make_rule(
  partition: Union[str, partitioning.Partitioner, None],
  keys: Any,
  keys_test: Any,
  has_test: bool,
  num_clients: Optional[int],
) -> partitioning.Partitioner:
  """Returns the partitioner that the arguments of `from_arrays` ask for."""
  if keys is not None:
    errors.expect(
      partition is None,
      'partition',
      'unset where `keys` are given',
      partition,
    )
    errors.expect(
      has_test == (keys_test is not None),
      'keys_test',
      'given if and only if `x_test` is',
      type(keys_test).__name__,
    )
    return partitioning.ByKey(keys, keys_test)
  errors.expect(
    keys_test is None, 'keys_test', 'given together with `keys`', 'no `keys`'
  )
  if partition is None:
    partition = partitioning.Iid()
  if isinstance(partition, str):
    partition = partitioning.make_partitioner(partition)
  errors.expect_type(
    partition,
    partitioning.Partitioner,
    'partition',
    'a partitioner or its specification such as shards:2',
  )
  errors.expect(
    num_clients is not None or isinstance(partition, partitioning.ByKey),
    'num_clients',
    'given unless `keys` are',
    num_clients,
  )
  return partition


def divide(
  arrays: array_checks.CheckedArrays,
  rule: partitioning.Partitioner,
  num_clients: Optional[int],
  test_fraction: float,
  num_overlapping: int,
  seed: int,
) -> tuple[array_checks.CheckedArrays, partitioning.Partition]:
  """Divides the examples among clients, and holds test examples out if needed.

  Returns:
    The examples, among them those that test indices are of, and the partition.
  """
  seed = partitioning.check_seed(seed)
  errors.expect_int('num_overlapping', num_overlapping, 0)
  errors.expect(len(arrays.x), 'x', 'at least one example', 'none')
  if arrays.x_test is None:
    errors.expect(
      num_overlapping == 0,
      'num_overlapping',
      '0 where there is no `x_test`, as the test set then is drawn at random',
      num_overlapping,
    )
    errors.expect(
      isinstance(test_fraction, (int, float)) and 0 <= test_fraction < 1,
      'test_fraction',
      'a number in [0, 1)',
      test_fraction,
    )
  parts = rule.partition(
    partitioning.Pool(
      arrays.y,
      arrays.y_test,
      arrays.num_classes,
      arrays.domain,
      arrays.domain_test,
      None if arrays.domain is None else len(arrays.domain_names),
    ),
    num_clients,
    seed,
  )
  if arrays.x_test is None:
    parts = partitioning.hold_out(
      parts.train_indices, arrays.y, test_fraction, seed, arrays.domain
    )
    arrays = arrays._replace(
      x_test=arrays.x, y_test=arrays.y, domain_test=arrays.domain
    )
  return arrays, parts


def warn_of_gaps(
  arrays: array_checks.CheckedArrays, parts: partitioning.Partition, name: str
) -> None:
  """Logs which clients, classes and domains have nothing to train on."""
  num_clients = len(parts.train_indices)
  num_without = sum(not len(indices) for indices in parts.train_indices)
  if num_without:
    logging.warning(
      'Dataset %r: %d of %d clients have no training examples.',
      name,
      num_without,
      num_clients,
    )
  trained, tested = map(np.concatenate, parts)
  if arrays.num_classes is not None:
    counts, test_counts = (
      np.bincount(labels.ravel(), minlength=arrays.num_classes)
      for labels in (arrays.y[trained], arrays.y_test[tested])
    )
    untrained = np.flatnonzero((counts == 0) & (test_counts > 0))
    if len(untrained):
      logging.warning(
        'Dataset %r has %d test examples of the classes %s, of which there is'
        ' no training example: are the labels right?',
        name,
        test_counts[untrained].sum(),
        untrained.tolist(),
      )
  if arrays.domain is not None:
    names = arrays.domain_names
    counts = np.bincount(arrays.domain[trained], minlength=len(names))
    if not counts.all():
      logging.warning(
        'Dataset %r has no training example of the domains %s: nothing that'
        ' belongs to one domain alone, such as its head, is ever trained for'
        ' these.',
        name,
        [names[i] for i in np.flatnonzero(counts == 0)],
      )


def sources(
  arrays: array_checks.CheckedArrays,
  parts: partitioning.Partition,
  transform: Optional[examples_lib.Transform],
  num_overlapping: int,
) -> tuple[
  'collections.OrderedDict[str, tf.TensorSpec]',
  examples_lib.ArraySource,
  examples_lib.ArraySource,
]:
  """Returns the spec of one example, and the training and test examples."""
  sample = arrays.x[:1]
  if transform is not None:
    sample = np.asarray(transform(sample))
  spec = examples_lib.element_spec(
    tf.TensorSpec(sample.shape[1:], sample.dtype),
    tf.TensorSpec(arrays.y.shape[1:], arrays.y.dtype),
    has_domain=arrays.domain is not None,
  )
  train, test = (
    examples_lib.ArraySource(*fields, transform, num_overlapping)
    for fields in (
      (arrays.x, arrays.y, parts.train_indices, arrays.domain),
      (arrays.x_test, arrays.y_test, parts.test_indices, arrays.domain_test),
    )
  )
  return spec, train, test
