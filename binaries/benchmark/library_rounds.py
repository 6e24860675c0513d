"""Rounds of the library's processes, with all data in memory."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from binaries.benchmark import timing, workloads
from tff_pfl.core import client_examples, personalized_process
from tff_pfl.datasets import examples
from tff_pfl.runtime import base


def client_tensors(
  workload: workloads.Workload, cohorts: Iterable[Sequence[int]]
) -> Mapping[int, Mapping[str, tf.Tensor]]:
  """Generates the training examples of all clients of some cohorts.

  Args:
    workload: The workload.
    cohorts: Client indices of each round.

  Returns:
    Client index to `OrderedDict(x=..., y=...)`, which datasets of several forms
    can share.
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

  A client has the same dataset object in each of its rounds, as in simulations
  with data in memory.

  Attributes:
    state: State of the server.
    client_states: Client index to state.
  """

  def __init__(
    self,
    runtime: base.Runtime,
    process: personalized_process.PersonalizedProcess,
    tensors: Mapping[int, Mapping[str, tf.Tensor]],
  ):
    """Makes the initial states.

    Args:
      runtime: The runtime.
      process: The method.
      tensors: Client index to its `x` and `y`.
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
    """Runs a round with these clients and waits for all results."""
    output = self._runtime.run(
      self._process.next,
      self.state,
      [self.client_states[index] for index in cohort],
      [self._datasets[index] for index in cohort],
    )
    timing.force(output)
    self.state = output.state
    self.client_states.update(zip(cohort, output.client_states))
