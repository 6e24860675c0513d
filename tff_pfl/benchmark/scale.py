"""Rounds on populations of different sizes, with all that a run's round costs.

A round here samples its cohort, reads the clients' states from a run's durable
store, generates their data, computes, and commits everything that changed, as
`simulation.experiment` does between evaluations. A population is set up by
making its data set and its store.

Clients that take part for the first time are given an initial state, the others
one from the store; a larger population has more of the first kind in a round.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from typing import Any

from tff_pfl.benchmark import machine, timing, workloads
from tff_pfl.datasets import batches
from tff_pfl.runtime import base
from tff_pfl.simulation import client_population, run_store, value_codec
from tff_pfl.templates import personalized_process


class StoredRounds:
  """Rounds of a process with a durable store; call it with a round's number.

  Close it, or use it in a ``with`` block, for the store to be closed.
  """

  def __init__(
    self,
    workload: workloads.Workload,
    runtime: base.Runtime,
    process: personalized_process.PersonalizedProcess,
    directory: str,
    num_clients: int,
  ):
    """Sets the population up.

    Args:
      workload: What is measured.
      runtime: What executes.
      process: The workload's.
      directory: An empty or missing folder for the store.
      num_clients: The population's size.
    """
    self._workload = workload
    self._runtime = runtime
    self._process = process
    self._data = workload.make_data(num_clients)
    self._train = batches.ClientBatches(self._data.train)
    self._state = runtime.run(process.initialize)
    self._store = run_store.RunStore.create(directory, {})
    self._store.commit_round(
      0,
      server_state=value_codec.encode(self._state),
      client_states={},
      metrics={},
    )
    self._population = client_population.ClientPopulation(
      process, runtime, self._store
    )

  def __enter__(self) -> StoredRounds:
    return self

  def __exit__(self, *unused_exception) -> None:
    self._store.close()

  @property
  def store(self) -> run_store.RunStore:
    """What is committed."""
    return self._store

  def __call__(self, round_number: int) -> None:
    """Runs the round of this number, from 0, and commits it."""
    cohort = self._workload.sample_cohort(round_number, self._data.num_clients)
    output = self._runtime.run(
      self._process.next,
      self._state,
      self._population.states(cohort),
      [self._train[self._data.client_ids[index]] for index in cohort],
    )
    self._state = output.state
    self._store.commit_round(
      # Round 0 of the store is the initial state.
      round_number + 1,
      server_state=value_codec.encode(output.state),
      client_states={
        int(index): value_codec.encode(client_state)
        for index, client_state in zip(cohort, output.client_states)
      },
      metrics=value_codec.to_json(output.metrics),
    )


def measure(
  workload: workloads.Workload,
  runtime: base.Runtime,
  process: personalized_process.PersonalizedProcess,
  num_rounds: int,
  bar: Any,
) -> dict:
  """Times a workload on its population and on the smaller one, in turns.

  Args:
    workload: With `smaller_num_clients`.
    runtime: What executes; it has started.
    process: The workload's.
    num_rounds: Rounds that are measured, at least 1.
    bar: A progress bar, updated after each round.

  Returns:
    `population` and `smaller_population`, each with `num_clients`,
    `set_up_seconds`, `set_up_mb` (growth of resident memory in setting up),
    `round_seconds` (of `1 + num_rounds` rounds) and `seconds_per_round`
    (`median`, `min`, `max` of those after the first).
  """
  # The larger one is first: what is done only once is in its figures.
  sizes = {
    'population': workload.num_clients,
    'smaller_population': workload.smaller_num_clients,
  }
  with contextlib.ExitStack() as stack:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    contestants, measured = {}, {}
    for name, num_clients in sizes.items():
      start, start_mb = time.perf_counter(), machine.rss_mb()
      contestants[name] = stack.enter_context(
        StoredRounds(
          workload,
          runtime,
          process,
          os.path.join(directory, name),
          num_clients,
        )
      )
      measured[name] = {
        'num_clients': num_clients,
        'set_up_seconds': time.perf_counter() - start,
        'set_up_mb': machine.rss_mb() - start_mb,
      }
    seconds = timing.time_in_turns(contestants, num_rounds, bar.update)
  return {
    name: {
      **measured[name],
      'round_seconds': seconds[name],
      'seconds_per_round': timing.summarize(seconds[name][1:]),
    }
    for name in sizes
  }
