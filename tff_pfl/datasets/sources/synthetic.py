"""Synthetic classes: prototypes plus noise, generated on demand.

Sizes: any number of clients. A client's examples depend only on the seed and
the client's position, so 100,000 clients need no memory or time until they are
used.
"""

import dataclasses
from collections.abc import Mapping
from typing import Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors, fields
from tff_pfl.datasets import examples as examples_lib
from tff_pfl.datasets import federated_dataset, partitioning

# Independent random streams of one seed.
_PROTOTYPES, _CLASSES, _LABELS, _NOISE = range(4)
# Euclidean length of a prototype. With unit noise and 784 elements, a linear
# model of all ten classes needs thousands of examples for an accuracy of 96%. A
# model of a client's two classes reaches 97% with a hundred.
_PROTOTYPE_NORM = 4.0


@dataclasses.dataclass(frozen=True, eq=False)
class _Clients:
  """Generates the examples of a client."""

  prototypes: np.ndarray
  num_examples: Mapping[str, int]
  classes_per_client: int
  noise: float
  seed: int

  def __call__(self, client_id: str, split: str) -> examples_lib.Examples:
    position = int(client_id.rpartition('_')[2])
    stream = list(self.num_examples).index(split)

    def make_rng(purpose, stream):
      return np.random.default_rng([self.seed, purpose, position, stream])

    # Not seeded by the split, as both splits have the same classes.
    classes = make_rng(_CLASSES, 0).permutation(len(self.prototypes))
    classes = classes[: self.classes_per_client]
    labels = np.resize(classes, self.num_examples[split]).astype(np.int32)
    labels = make_rng(_LABELS, stream).permutation(labels)

    def inputs():
      noise = make_rng(_NOISE, stream).standard_normal(
        (len(labels), *self.prototypes.shape[1:]), np.float32
      )
      return self.prototypes[labels] + np.float32(self.noise) * noise

    return examples_lib.Examples(inputs, labels)


@fields.checked_call
def make_synthetic(
  num_clients: partitioning.NumClients,
  examples_per_client: fields.CountOrZero = 100,
  test_examples_per_client: fields.CountOrZero = 20,
  shape: fields.Counts = (28, 28, 1),
  num_classes: fields.Count = 10,
  classes_per_client: fields.Count = 2,
  noise: fields.NonNegative = 1.0,
  seed: fields.Seed = 0,
) -> federated_dataset.FederatedDataset:
  """Makes clients whose examples are noisy prototypes of some classes.

  A class has one prototype, a random direction of length 4. A client draws its
  classes at random and has an equal number of examples of each (up to one). An
  example is its class's prototype plus independent Gaussian noise. Test
  examples have the same classes.

  Args:
    num_clients: Number of clients, from 1 to 100 million.
    examples_per_client: Training examples of each client, at least 0.
    test_examples_per_client: Test examples of each client, at least 0.
    shape: Shape of `x`, at least one dimension, all positive.
    num_classes: Number of classes, at least 1.
    classes_per_client: Classes of each client, from 1 to `num_classes`.
    noise: Standard deviation, at least 0. 0 makes a class's examples equal.
    seed: Non-negative.

  Returns:
    Dataset with `x` float32 of `shape` and `y` int32.
  """
  errors.expect(
    classes_per_client <= num_classes,
    'classes_per_client',
    f'at most {num_classes}, the number of classes',
    classes_per_client,
  )
  prototypes = np.random.default_rng([seed, _PROTOTYPES, 0, 0]).standard_normal(
    (num_classes, *shape)
  )
  norms = np.sqrt((prototypes.reshape(num_classes, -1) ** 2).sum(axis=1))
  prototypes *= _PROTOTYPE_NORM / norms.reshape(-1, *[1] * len(shape))
  prototypes = prototypes.astype(np.float32)
  sizes = {'train': examples_per_client, 'test': test_examples_per_client}
  return federated_dataset.FederatedDataset(
    name='synthetic',
    client_ids=partitioning.numbered_client_ids(num_clients),
    element_spec=examples_lib.element_spec(tf.TensorSpec(shape, tf.float32)),
    num_classes=num_classes,
    load=_Clients(prototypes, sizes, classes_per_client, noise, seed),
  )


@fields.checked_call
def load_synthetic(
  num_clients: Optional[int],
  partition: Optional[partitioning.Partitioner],
  *,
  seed: fields.Seed = 0,
) -> federated_dataset.FederatedDataset:
  """Prototypes of 10 classes, 28x28, plus noise, for any number of clients.

  Args:
    num_clients: Number of clients, at least 1. None means 30.
    partition: Iid, classes_per_client or shards, the rules that fix a client's
      number of classes. There is no pool for other rules to deal from.
    seed: Non-negative.
  """
  num_clients, partition = partitioning.defaults(num_clients, partition, False)
  num_classes = 10
  if isinstance(partition, partitioning.Shards):
    classes_per_client = partition.shards_per_client
  elif isinstance(partition, partitioning.ClassesPerClient):
    classes_per_client = partition.num_classes_per_client
  else:
    errors.expect(
      isinstance(partition, partitioning.Iid),
      'partition',
      'iid, classes_per_client:<k> or shards:<k> for the synthetic dataset',
      partition.spec,
    )
    classes_per_client = num_classes
  return make_synthetic(
    num_clients,
    num_classes=num_classes,
    classes_per_client=classes_per_client,
    seed=seed,
  )
