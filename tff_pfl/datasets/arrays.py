"""Central examples, before they are divided among clients."""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tree
from sklearn import preprocessing

from tff_pfl import errors
from tff_pfl.datasets import (
  array_checks,
  array_clients,
  federated_dataset,
  partitioning,
)

# Examples that are transformed at once.
_EXAMPLES_AT_ONCE = 1024
# Fields of the training examples, one entry for each.
_OF_EACH = ('x', 'y', 'domain', 'client', 'weight')


class _Normalization(NamedTuple):
  """A transform after another one, if any.

  Of several inputs `mean` and `scale` are dicts, too.
  """

  before: Optional[array_clients.Transform]
  mean: Any
  scale: Any

  def __call__(self, x):
    x = x if self.before is None else self.before(x)
    return tree.map_structure(
      lambda x, mean, scale: (x - mean) / scale, x, self.mean, self.scale
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Arrays(partitioning.Pool):
  """All training and test examples of a data set.

  The constructor checks them. It copies inputs only if they are floats of
  another precision; do not modify them.

  Attributes:
    name: Name of the data set.
    transform: Function from compact inputs `[k, ...]`, such as uint8, to the
      float32 inputs of models; None if `x` and `x_test` are these.
    num_overlapping: See `FederatedDataset`; only with test examples.
  """

  name: str
  transform: Optional[array_clients.Transform] = None
  num_overlapping: int = 0

  def __post_init__(self):
    for name, value in array_checks.checked_fields(self).items():
      object.__setattr__(self, name, value)
    if self.client is not None or self.client_test is not None:
      partitioning.by_key(self, self.client, self.client_test, 'client')

  def class_subset(self, classes: Iterable[int]) -> 'Arrays':
    """Returns only the examples of some classes, in their order.

    Labels, `num_classes` and domains stay unchanged, so that a model of all
    classes fits these examples too.

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
    chosen = {}
    for suffix in ('', '_test'):
      is_chosen = np.isin(getattr(self, f'y{suffix}'), classes)
      for field in _OF_EACH:
        name = f'{field}{suffix}'
        if getattr(self, name) is not None:
          chosen[name] = tree.map_structure(
            lambda array, mask=is_chosen: array[mask], getattr(self, name)
          )
    return dataclasses.replace(self, **chosen)

  def normalized(self) -> 'Arrays':
    """Returns the examples with training inputs of mean 0 and deviation 1.

    Images (`[n, height, width]`, `[n, height, width, channels]`) are normalized
    by channel, other inputs (`[n, columns]`) by column, over all training
    examples; constant ones become 0. Test examples are shifted and scaled by
    the same numbers.
    """
    errors.expect(
      self.transform is not None
      or all(array.dtype.kind == 'f' for array in tree.flatten(self.x)),
      'normalize',
      f'false for {self.name!r}, whose inputs are no images or columns of '
      'numbers',
      True,
    )
    scalers = tree.map_structure(
      lambda _: preprocessing.StandardScaler(), self.x
    )

    def fit(scaler, part):
      part = np.asarray(part, np.float64)
      # Images without channels have one.
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
        lambda of, name=name: np.float32(getattr(of, name)), scalers
      )
      for name in ('mean_', 'scale_')
    )
    return dataclasses.replace(
      self, transform=_Normalization(self.transform, mean, scale)
    )

  def to_clients(
    self,
    num_clients: Optional[int] = None,
    partition: Union[str, partitioning.Partitioner, None] = None,
    *,
    seed: int = 0,
    test_fraction: Optional[float] = None,
  ) -> federated_dataset.FederatedDataset:
    """Divides the examples among clients.

    Args:
      num_clients: Number of clients, at least 1; None for all clients that the
        examples name, with the partition natural.
      partition: A partitioner or its specification. None for natural if the
        examples name their clients, or else `shards:2`.
      seed: Seed of the partition and the test set, non-negative.
      test_fraction: Fraction in [0, 1): training and test examples are pooled
        and divided among the clients, and this part of each client's becomes
        its test set, stratified by domain and class. None to divide training
        and test examples separately.
    """
    pool, options = self, {'num_overlapping': self.num_overlapping}
    if test_fraction is not None:
      both = {
        name: tree.map_structure(
          lambda *arrays: np.concatenate(arrays),
          *[part for part in parts if part is not None],
        )
        for name in _OF_EACH
        if (parts := (getattr(self, name), getattr(self, f'{name}_test')))
        and parts[0] is not None
      }
      pool = partitioning.Pool(
        **both, num_classes=self.num_classes, domain_names=self.domain_names
      )
      options['test_fraction'] = test_fraction
    return federated_dataset.FederatedDataset(
      **array_clients.clients_of(
        pool,
        num_clients=num_clients,
        partition=partitioning.rule_or_default(
          partition, self.client is not None
        ),
        transform=self.transform,
        name=self.name,
        seed=seed,
        **options,
      )
    )
