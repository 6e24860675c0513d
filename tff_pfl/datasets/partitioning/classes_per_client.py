"""So many classes per client, drawn at random."""

import dataclasses
from typing import ClassVar

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import dealing, weighted


@dataclasses.dataclass(frozen=True)
class ClassesPerClient(weighted.WeightedPartitioner):
  """Distinct classes drawn at random, each shared evenly by its owners.

  Unlike with `Shards` a class may have many owners or few, so that sizes vary.
  Every class has an owner if the clients can own that many classes.

  Attributes:
    num_classes_per_client: From 1 to the number of classes.
  """

  num_classes_per_client: int

  name: ClassVar[str] = 'classes_per_client'
  summary: ClassVar[str] = (
    'this many distinct classes drawn at random for each client, each class'
    ' divided evenly among its owners; sizes vary'
  )

  def __post_init__(self):
    errors.expect_int('num_classes_per_client', self.num_classes_per_client, 1)

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    per_client = self.num_classes_per_client
    present = weighted.classes_present(
      class_counts, per_client, 'num_classes_per_client'
    )
    order = rng.random((num_clients, len(present)))
    # First one owner for each class, in turn; the rest is drawn freely.
    covered = rng.permutation(len(present))[: num_clients * per_client]
    owners = rng.permutation(num_clients)
    order[owners[np.arange(len(covered)) % num_clients], covered] = -1
    chosen = np.argpartition(order, per_client - 1, axis=1)[:, :per_client]
    weights = np.zeros((num_clients, len(class_counts)))
    weights[np.arange(num_clients)[:, np.newaxis], present[chosen]] = 1
    return weights
