"""The pathological partition: a few shards of one class each per client."""

import dataclasses
from typing import ClassVar

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import dealing, weighted


@dataclasses.dataclass(frozen=True)
class Shards(weighted.WeightedPartitioner):
  """Single-class shards of equal size, the same number for every client.

  Each class is cut into equal shards, and each client gets shards of
  `shards_per_client` distinct classes: the pathological partition of McMahan et
  al., in FedRep's variant where no shard straddles two classes. The classes get
  as many shards as makes shard sizes most nearly equal (the method of equal
  proportions): the same number for classes of the same size, where
  `num_clients * shards_per_client` is a multiple of their number.

  Attributes:
    shards_per_client: Shards, and distinct classes, of each client; from 1 to
      the number of classes.

  References:
    McMahan et al., Communication-Efficient Learning of Deep Networks from
      Decentralized Data, AISTATS 2017, section 3.
    Collins et al., Exploiting Shared Representations for Personalized Federated
      Learning, ICML 2021, section 5.
    Huntington, The Mathematical Theory of the Apportionment of Representatives,
      PNAS 7(4), 1921.
  """

  shards_per_client: int = 2

  name: ClassVar[str] = 'shards'
  summary: ClassVar[str] = (
    'equal shards of one class each, as many distinct classes per client as'
    ' it has shards (McMahan et al. 2017, FedRep)'
  )

  def __post_init__(self):
    errors.expect_int('shards_per_client', self.shards_per_client, 1)

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    per_client = self.shards_per_client
    present = weighted.classes_present(
      class_counts, per_client, 'shards_per_client'
    )
    remaining = _shards_by_class(
      class_counts[present], num_clients * per_client, num_clients, rng
    )
    weights = np.zeros((num_clients, len(class_counts)))
    for client in range(num_clients):
      with np.errstate(divide='ignore'):
        # Gumbel noise on log counts draws without replacement in proportion
        # to the shards that remain.
        priority = np.log(remaining) + rng.gumbel(size=len(present))
      # A class with a shard for every client still to come cannot wait.
      priority[remaining == num_clients - client] = np.inf
      chosen = np.argpartition(-priority, per_client - 1)[:per_client]
      remaining[chosen] -= 1
      weights[client, present[chosen]] = 1
    return weights[rng.permutation(num_clients)]


def _shards_by_class(
  class_counts: np.ndarray,
  num_shards: int,
  max_shards: int,
  rng: np.random.Generator,
) -> np.ndarray:
  """Returns shards per class, sizes as equal as possible, `[num_classes]`.

  The next shard goes to the class whose shards are largest, measured by the
  geometric mean of their size without and with it; every class gets its first
  shard before any gets a second.

  Args:
    class_counts: Positive, `[num_classes]`.
    num_shards: At most `max_shards * num_classes`.
    max_shards: Most shards of one class.
    rng: Decides between classes of equal size.
  """
  order = np.argsort(rng.permutation(len(class_counts)))
  counts = class_counts[order]
  shards = np.zeros(len(counts), np.int64)
  shards[np.argsort(-counts, kind='stable')[:num_shards]] = 1
  for _ in range(num_shards - shards.sum()):
    sizes = counts / np.maximum(shards * (shards + 1), 1) ** 0.5
    sizes[shards == max_shards] = -1
    shards[np.argmax(sizes)] += 1
  by_class = np.zeros_like(shards)
  by_class[order] = shards
  return by_class
