"""Central examples, before they become clients."""

import dataclasses
from collections.abc import Iterable
from typing import Optional, Union

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets import array_checks, federated_dataset, partitioning
from tff_pfl.datasets import examples as examples_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
  """All training and test examples of a data set with classes.

  Making one checks them; the inputs are not copied, unless they are floats of
  another precision. Do not modify them.

  Attributes:
    name: What the data set is called.
    x: Training inputs, `[n, ...]`, in their compact form: uint8 in [0, 255]
      with a transform to [0, 1], or float32.
    y: Training labels, int32 `[n]`, in `[0, num_classes)`.
    x_test: Test inputs, `[m, ...]`, of the same kind.
    y_test: Test labels, int32 `[m]`.
    transform: What makes float32 inputs of `[k, ...]` compact ones; None where
      they are what they should be.
    domain: Domain ids of the training examples, int32 `[n]`, in
      `[0, len(domain_names))`; None for a data set without domains.
    domain_test: Domain ids of the test examples, int32 `[m]`.
    domain_names: What the domains are called, distinct; None for `domain_0`, …
      up to the largest id where there is `domain`. It may be a fixed vocabulary
      with domains that have no examples.
  """

  name: str
  x: np.ndarray
  y: np.ndarray
  x_test: np.ndarray
  y_test: np.ndarray
  num_classes: int
  transform: Optional[examples_lib.Transform] = None
  domain: Optional[np.ndarray] = None
  domain_test: Optional[np.ndarray] = None
  domain_names: Optional[tuple[str, ...]] = None

  def __post_init__(self):
    pool = array_checks.check_pool(partitioning.Pool(**self._central()))
    for name, value in pool._asdict().items():
      object.__setattr__(self, name, value)

  def _central(self) -> dict[str, object]:
    """Returns the fields but name and transform."""
    return {name: getattr(self, name) for name in partitioning.Pool._fields}

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
    central = self._central()
    if test_fraction is not None:
      for name in ('x', 'y', 'domain'):
        test_part = central.pop(f'{name}_test')
        if test_part is not None:
          central[name] = np.concatenate([central[name], test_part])
      central['test_fraction'] = test_fraction
    return federated_dataset.FederatedDataset.from_arrays(
      **central,
      num_clients=num_clients,
      partition=partition,
      transform=self.transform,
      name=self.name,
      seed=seed,
    )
