"""A simulated population as the data source of TFF's programs.

`tff.learning.programs.train_model` copies and stores the iterator of its data
source in every round, so that a restarted program continues with the same
cohorts. This iterator stores only a checksum of the data, a seed and a number
of rounds. TFF's own `DatasetDataSource` stores all data in every round, and its
datasets cannot be copied.
"""

from __future__ import annotations

import json
import weakref
from typing import Optional

import tensorflow as tf

from tff_pfl import datasets, errors, fields
from tff_pfl import tff_api as tff
from tff_pfl.core import client_sampling
from tff_pfl.models import domains

# The sources of this process, one of which a stored iterator belongs to.
_SOURCES = weakref.WeakSet()


class ClientDataSource(tff.program.FederatedDataSource):
  """Training data of cohorts, which the seed and the round determine.

  `pfl.run` draws the same cohorts with this seed, from the clients that have
  joined by that round.
  """

  @fields.checked_call
  def __init__(self, data: datasets.FederatedDataset, seed: fields.Seed = 0):
    """Makes a data source, which reads examples only when they are needed.

    Args:
      data: The clients.
      seed: Seed of the cohorts, at least 0.
    """
    self.client_ids = data.client_ids
    self.seed = seed
    self.train = data.train
    self.join_rounds = client_sampling.join_rounds_of(data)
    self.key = f'{data.fingerprint}, seed {seed}'
    element = domains.batched_spec(data.element_spec)
    self._federated_type = tff.FederatedType(
      tff.SequenceType(tff.types.tensorflow_to_type(element)), tff.CLIENTS
    )
    _SOURCES.add(self)

  @property
  def federated_type(self) -> tff.FederatedType:
    """The type of a cohort's data."""
    return self._federated_type

  def iterator(self) -> ClientDataIterator:
    """Returns an iterator that begins with the first round's cohort."""
    return ClientDataIterator(self)


class ClientDataIterator(tff.program.FederatedDataSourceIterator):
  """Iterator over the cohorts' training data, round by round."""

  def __init__(self, source: ClientDataSource, num_rounds: int = 0):
    """Makes an iterator that continues after `num_rounds` cohorts."""
    self._source = source
    self._num_rounds = num_rounds

  @classmethod
  def from_bytes(cls, buffer: bytes) -> ClientDataIterator:
    """Restores an iterator from the bytes of `to_bytes`.

    Raises:
      RunError: If no source of the same clients was made in this process.
    """
    stored = json.loads(buffer)
    source = next((s for s in _SOURCES if s.key == stored['key']), None)
    if source is None:
      raise errors.RunError(
        'The stored program drew its cohorts from other clients or with '
        'another seed. Make a ClientDataSource of the same data and seed '
        'before you resume it.'
      )
    return cls(source, stored['num_rounds'])

  def to_bytes(self) -> bytes:
    """The iterator's state: the source's key and the number of cohorts."""
    return json.dumps(
      {'key': self._source.key, 'num_rounds': self._num_rounds}
    ).encode()

  @property
  def federated_type(self) -> tff.FederatedType:
    """The type of a cohort's data."""
    return self._source.federated_type

  def select(self, k: Optional[int] = None) -> list:
    """Returns the training data of the next round's cohort of `k` clients.

    Raises:
      ValueError: If `k` is not between 1 and the number of clients.
    """
    source, ids = self._source, self._source.client_ids
    sampler = client_sampling.CohortSampler(
      len(ids), k or 0, source.seed, join_rounds=source.join_rounds
    )
    self._num_rounds += 1
    cohort = sampler.sample(self._num_rounds)
    return [
      tf.data.Dataset.from_tensors(source.train(ids[index]).as_dict())
      for index in cohort
    ]

  def __deepcopy__(self, unused_memo) -> ClientDataIterator:
    return ClientDataIterator(self._source, self._num_rounds)

  def __eq__(self, other: object) -> bool:
    return (
      isinstance(other, ClientDataIterator)
      and self.to_bytes() == other.to_bytes()
    )
