"""Central examples, before they become clients."""

import dataclasses
from collections.abc import Iterable
from typing import Optional, Union

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import (
  array_checks,
  array_clients,
  federated_dataset,
  partitioning,
)
from tff_pfl.datasets import examples as examples_lib


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Arrays(partitioning.Pool):
  """All training and test examples of a data set with classes.

  Making one checks them; the inputs are not copied, unless they are floats of
  another precision. Do not modify them.

  Attributes:
    name: What the data set is called.
    transform: What makes float32 inputs of `[k, ...]` compact ones, which `x`
      and `x_test` are, such as uint8; None where these are what they should be.
  """

  name: str
  transform: Optional[examples_lib.Transform] = None

  def __post_init__(self):
    for name, value in array_checks.checked_fields(self).items():
      object.__setattr__(self, name, value)

  def of_classes(self, classes: Iterable[int]) -> 'Arrays':
    """Returns only the examples of some classes, in their order.

    Labels and `num_classes` stay as they are, and so do domains, so that a
    model of all classes fits these examples too.

    Args:
      classes: At least one, distinct, each in `[0, num_classes)`.
    """
    classes = list(classes)
    errors.expect(
      classes
      and len(set(classes)) == len(classes)
      and set(classes) <= set(range(self.num_classes)),
      'classes',
      f'distinct integers in [0, {self.num_classes}), at least one',
      classes,
    )
    chosen = {}
    for suffix in ('', '_test'):
      is_chosen = np.isin(getattr(self, f'y{suffix}'), classes)
      for name in (f'x{suffix}', f'y{suffix}', f'domain{suffix}'):
        if getattr(self, name) is not None:
          chosen[name] = getattr(self, name)[is_chosen]
    return dataclasses.replace(self, **chosen)

  def to_clients(
    self,
    num_clients: int,
    partition: Union[str, partitioning.Partitioner] = 'shards:2',
    *,
    seed: int = 0,
    test_fraction: Optional[float] = None,
  ) -> federated_dataset.FederatedDataset:
    """Divides the examples among clients, as `FederatedDataset.from_arrays`.

    Args:
      test_fraction: In [0, 1), to pool training and test examples, divide all
        of them among the clients, and hold this part of each client's out as
        its test set, stratified by domain and class. None to divide training
        and test examples each by themselves.
    """
    pool, options = self, {}
    if test_fraction is not None:
      both = {
        name: np.concatenate([part for part in parts if part is not None])
        for name in ('x', 'y', 'domain')
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
        partition=partition,
        transform=self.transform,
        name=self.name,
        seed=seed,
        **options,
      )
    )
