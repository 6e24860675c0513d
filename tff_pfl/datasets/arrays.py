"""Central examples, before they are divided among clients."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Optional, Union

import numpy as np
import tree
from sklearn import preprocessing

from tff_pfl import errors, fields
from tff_pfl.datasets import array_clients, federated_dataset, partitioning

# Number of examples that are transformed at once.
_EXAMPLES_AT_ONCE = 1024


def _normalize(x, *, before, mean, scale):
  """Applies a transform, if any, and normalizes; see `Arrays.normalized`."""
  return tree.map_structure(
    lambda part, mean, scale: (part - mean) / scale,
    x if before is None else before(x),
    mean,
    scale,
  )


class Arrays(array_clients.CheckedPool):
  """All training and test examples of a dataset; see the base class."""

  def class_subset(self, classes: Iterable[int]) -> 'Arrays':
    """Returns only the examples of some classes, in their order.

    Labels, `num_classes` and domains stay unchanged, so a model of all classes
    also fits these examples.

    Args:
      classes: At least one class, each in `[0, num_classes)`.
    """
    classes = list(classes)
    errors.expect(
      classes and set(classes) <= set(range(self.num_classes or 0)),
      'classes',
      f'integers in [0, {self.num_classes}), at least one',
      classes,
    )
    errors.expect(
      self.y.ndim == 1,
      'classes',
      'unset for examples with several labels each',
      classes,
    )
    chosen = {}
    for suffix in ('', '_test'):
      for name, values in self.split(suffix).items():
        mask = np.isin(getattr(self, f'y{suffix}'), classes)
        chosen[f'{name}{suffix}'] = tree.map_structure(
          lambda array, mask=mask: array[mask], values
        )
    return dataclasses.replace(self, **chosen)

  def normalized(self) -> 'Arrays':
    """Scales inputs so that the training inputs have mean 0 and deviation 1.

    Images (`[n, height, width]`, `[n, height, width, channels]`) are normalized
    per channel, other inputs (`[n, columns]`) per column, over all training
    examples. Constant channels and columns become 0. Test examples are shifted
    and scaled by the same numbers.
    """
    errors.expect(
      self.transform is not None
      or all(array.dtype.kind == 'f' for array in tree.flatten(self.x)),
      'normalize',
      f'false for {self.name!r}, whose inputs are not images or columns of '
      'numbers',
      True,
    )
    scalers = tree.map_structure(
      lambda _: preprocessing.StandardScaler(), self.x
    )

    def fit(scaler, part):
      part = np.asarray(part, np.float64)
      # Images without a channel dimension have one channel.
      columns = part.shape[-1] if part.ndim in (2, 4) else 1
      scaler.partial_fit(part.reshape(-1, columns))

    for start in range(0, len(self.y), _EXAMPLES_AT_ONCE):
      part = tree.map_structure(
        lambda array, start=start: array[start : start + _EXAMPLES_AT_ONCE],
        self.x,
      )
      if self.transform is not None:
        part = self.transform(part)
      tree.map_structure(fit, scalers, part)
    mean, scale = (
      tree.map_structure(
        lambda scaler, name=name: np.float32(getattr(scaler, name)), scalers
      )
      for name in ('mean_', 'scale_')
    )
    transform = functools.partial(
      _normalize, before=self.transform, mean=mean, scale=scale
    )
    return dataclasses.replace(self, transform=transform)

  @fields.checked_call
  def to_clients(
    self,
    num_clients: Optional[fields.Count] = None,
    partition: Union[str, partitioning.Partitioner, None] = None,
    *,
    seed: fields.Seed = 0,
    test_fraction: Optional[fields.ShareBelowOne] = None,
  ) -> federated_dataset.FederatedDataset:
    """Divides the examples among clients.

    Args:
      num_clients: Number of clients, at least 1. None means all clients that
        the examples name with the partition natural, and otherwise 30.
      partition: A partitioner or its specification. None means natural if the
        examples name their clients, and otherwise `shards:2`.
      seed: Seed of the partition and the test set, non-negative.
      test_fraction: Fraction of a client's examples in its test set, in [0, 1),
        stratified by domain and class. Training and test examples are pooled
        before they are divided among the clients. None divides them separately,
        or means 0.2 if there are no test examples.
    """
    has_clients = self.client is not None
    _, rule = partitioning.defaults(num_clients, partition, has_clients)
    return federated_dataset.FederatedDataset(
      **self.clients(num_clients, rule, seed, test_fraction)
    )
