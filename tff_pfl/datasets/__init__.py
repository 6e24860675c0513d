"""Federated datasets: clients and their examples.

`load_dataset` loads a dataset by name. `load_arrays` loads its examples before
they are divided among clients. `FederatedDataset.from_frame` makes a dataset
from a pandas frame, `from_arrays` from arrays, and `from_client_data` from
TFF's `ClientData`. `partitioning` has the rules that divide examples among
clients, and `sources` has the datasets themselves.
"""

from tff_pfl.datasets.arrays import Arrays
from tff_pfl.datasets.examples import Examples
from tff_pfl.datasets.federated_dataset import FederatedDataset
from tff_pfl.datasets.partitioning import (
  PARTITIONERS,
  DomainMixture,
  Partition,
  Partitioner,
  describe_partitioners,
  make_partitioner,
)
from tff_pfl.datasets.registry import (
  COMMON_ARGUMENTS,
  DATASETS,
  dataset,
  describe_datasets,
  load_arrays,
  load_dataset,
)
from tff_pfl.datasets.sources.synthetic import make_synthetic

__all__ = [
  'COMMON_ARGUMENTS',
  'DATASETS',
  'PARTITIONERS',
  'Arrays',
  'DomainMixture',
  'Examples',
  'FederatedDataset',
  'Partition',
  'Partitioner',
  'dataset',
  'describe_datasets',
  'describe_partitioners',
  'load_arrays',
  'load_dataset',
  'make_partitioner',
  'make_synthetic',
]
