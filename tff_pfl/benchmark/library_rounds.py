"""Rounds of the library's processes, with everything in memory."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tff_pfl.benchmark import timing, workloads
from tff_pfl.core import client_examples, personalized_process
from tff_pfl.datasets import examples
from tff_pfl.runtime import base


def client_tensors(
  workload: workloads.Workload, cohorts: Iterable[Sequence[int]]
) -> Mapping[int, Mapping[str, tf.Tensor]]:
  """Generates the training examples of all clients of some cohorts.

  Args:
    cohorts: Client indices of each round.

  Returns:
    Client index to its `OrderedDict(x=..., y=...)`, which datasets of several
    forms can share.
  """
  data = workload.make_data()
  # Datasets hold their data in the host's memory.
  with tf.device('CPU'):
    return {
      index: collections.OrderedDict(
        (name, tf.constant(value))
        for name, value in data.train(data.client_ids[index]).as_dict().items()
      )
      for index in sorted(set().union(*cohorts))
    }


class LibraryRounds:
  """Rounds of a process; call it with a cohort.

  A client passes the same dataset object in each of its rounds, as simulations
  do that hold their data in memory.

  Attributes:
    state: The server's state.
    client_states: The clients' states, by their indices.
  """

  def __init__(
    self,
    runtime: base.Runtime,
    process: personalized_process.PersonalizedProcess,
    tensors: Mapping[int, Mapping[str, tf.Tensor]],
  ):
    """Makes the initial states.

    Args:
      runtime: What executes.
      tensors: A client's `x` and `y` by its index.
    """
    self._runtime = runtime
    self._process = process
    (self._datasets,) = runtime.share(
      {
        index: client_examples.padded(examples.Examples(**value))
        for index, value in tensors.items()
      }
    )
    self.state = runtime.run(process.initialize)
    self.client_states = dict(
      zip(tensors, runtime.run(process.initialize_client_states, [*tensors]))
    )

  def __call__(self, cohort: Sequence[int]) -> None:
    """Runs a round with these clients, to its very end."""
    output = self._runtime.run(
      self._process.next,
      self.state,
      [self.client_states[index] for index in cohort],
      [self._datasets[index] for index in cohort],
    )
    timing.force(output)
    self.state = output.state
    self.client_states.update(zip(cohort, output.client_states))
