"""Rounds on populations of different sizes, with all that a run's round costs.

A round here samples its cohort, reads the clients' states from a run's durable
store, generates their data, computes, and commits everything that changed. A
population is set up by making its data set and its store.

Clients that take part for the first time are given an initial state, the others
one from the store; a larger population has more of the first kind in a round.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from typing import Any

from tff_pfl.benchmark import timing, workloads
from tff_pfl.runtime import base
from tff_pfl.simulation import run_store, stored_rounds
from tff_pfl.system import memory
from tff_pfl.templates import personalized_process


def _committed_rounds(workload, runtime, process, num_clients, store):
  """Sets a population up; returns what runs and commits a round, from 0."""
  rounds = stored_rounds.StoredRounds(
    process, runtime, workload.make_data(num_clients), store
  )

  def run_round(round_number):
    cohort = workload.sample_cohort(round_number, num_clients)
    rounds.commit(rounds.run_round(cohort))

  return run_round


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
      start, start_mb = time.perf_counter(), memory.resident_mb()
      store = stack.enter_context(
        run_store.RunStore.open(os.path.join(directory, name), {})
      )
      contestants[name] = _committed_rounds(
        workload, runtime, process, num_clients, store
      )
      measured[name] = {
        'num_clients': num_clients,
        'set_up_seconds': time.perf_counter() - start,
        'set_up_mb': memory.resident_mb() - start_mb,
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
