"""Measurement of a workload: rounds, optionally beside a reference.

A record has JSON types, with None for values that were not measured:

* `workload`, `description`, `num_clients`, `cohort_size`,
  `examples_per_client`, `runtime`, `runtime_options`, `num_rounds`;
* `build_seconds`: for model, process, start of the runtime, initial states;
* `first_round_seconds`, which includes tracing and compilation;
* `seconds_per_round`: `median`, `min` and `max` of the rounds after the first;
  `round_seconds`: the seconds of each of these;
* `reference_first_round_seconds`, `reference_round_seconds`,
  `reference_seconds_per_round` (their median), and `speedup`, the
  reference's median divided by the library's;
* `mb_moved_per_round`: `sent` to the processes in which clients compute and
  `received` from them, a mean over all rounds; None if it is not known;
* `phases`: number of trained weights of each phase of local training to its
  form for a client that runs alone;
* `peak_rss_mb`: peak memory of this process and its children, so with a
  reference the sum of both;
* `population` and `smaller_population`, for a workload about the size of the
  population: `num_clients`, `set_up_seconds`, `set_up_mb` (growth of resident
  memory during set-up), `round_seconds` (with the first one) and
  `seconds_per_round` (without it);
* `num_cores`, `versions`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tqdm

from binaries.benchmark import library_rounds, reference, timing, workloads
from tff_pfl import errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import training_loop
from tff_pfl.runs import run_store, stored_rounds, summary
from tff_pfl.runtime import base
from tff_pfl.system import cores, machine


def measure(
  workload: workloads.Workload,
  *,
  runtime: str,
  runtime_options: Optional[Mapping[str, Any]] = None,
  num_rounds: Optional[int] = None,
  with_reference: bool = False,
  show_progress: bool = True,
) -> dict:
  """Measures a workload.

  Args:
    workload: The workload.
    runtime: A key of `runtime.RUNTIMES`.
    runtime_options: The runtime's own arguments, as JSON types.
    num_rounds: Rounds after the first one, at least 1; None for the workload's.
    with_reference: True to run also the plain loop of `reference` on TFF's
      native runtime, in turns with the library, round by round and with the
      same cohorts. A workload about the population's size has none.
    show_progress: True to draw a progress bar on stderr.

  Returns:
    A record, as at the top of this module.

  Raises:
    ValueError: If an argument is out of its range.
    RunError: If the runtime fails.
  """
  if num_rounds is None:
    num_rounds = workload.num_rounds
  errors.expect(num_rounds >= 1, 'num_rounds', 'at least 1', num_rounds)
  runtime_options = dict(runtime_options or {})
  compares_populations = workload.smaller_num_clients is not None
  with_reference = with_reference and not compares_populations
  num_contestants = 1 + (with_reference or compares_populations)
  with contextlib.ExitStack() as stack:
    memory = stack.enter_context(machine.PeakMemory())
    phases = stack.enter_context(training_loop.noting_forms())
    created = stack.enter_context(
      runtime_lib.create_runtime(runtime, **runtime_options)
    )
    bar = stack.enter_context(
      tqdm.tqdm(
        total=num_contestants * (num_rounds + 1),
        desc=workload.name,
        unit='round',
        disable=not show_progress,
        mininterval=0.1 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
      )
    )
    if compares_populations:
      measured = _measure_populations(workload, created, num_rounds, bar)
    else:
      measured = _measure_in_memory(
        workload, created, with_reference, num_rounds, bar
      )
    moved = None
    if created.bytes_moved is not None:
      num_moves = (1 + compares_populations) * (num_rounds + 1)
      sent, received = (n / num_moves / 1e6 for n in created.bytes_moved)
      moved = {'sent': sent, 'received': received}
  return {
    'workload': workload.name,
    'description': workload.description,
    'num_clients': workload.num_clients,
    'cohort_size': workload.cohort_size,
    'examples_per_client': workload.examples_per_client,
    'runtime': runtime,
    'runtime_options': runtime_options,
    'num_rounds': num_rounds,
    **_NOT_MEASURED,
    **measured,
    'mb_moved_per_round': moved,
    'phases': dict(phases),
    'peak_rss_mb': memory.peak_mb,
    'num_cores': cores.num_usable_cores(),
    'versions': machine.versions(),
  }


# Values that only some workloads and options have.
_NOT_MEASURED = dict.fromkeys(
  (
    'reference_first_round_seconds',
    'reference_seconds_per_round',
    'reference_round_seconds',
    'speedup',
    'population',
    'smaller_population',
  )
)


def _measure_in_memory(
  workload: workloads.Workload,
  runtime: base.Runtime,
  with_reference: bool,
  num_rounds: int,
  bar: tqdm.tqdm,
) -> dict:
  """Measures rounds whose data and client states are in memory."""
  cohorts = [workload.sample_cohort(r).tolist() for r in range(num_rounds + 1)]
  tensors = library_rounds.client_tensors(workload, cohorts)
  start = time.perf_counter()
  model = workload.build_model()
  process = workload.build_process(model)
  ours = library_rounds.LibraryRounds(runtime, process, tensors)
  build_seconds = time.perf_counter() - start
  contestants = {'library': lambda round_number: ours(cohorts[round_number])}
  with contextlib.ExitStack() as stack:
    if with_reference:
      plain = reference.build_reference(
        workload,
        stack.enter_context(runtime_lib.create_runtime('native')),
        tensors,
        list(model.initial_weights.values()),
      )
      contestants['reference'] = lambda round_number: plain(
        cohorts[round_number]
      )
    seconds = timing.time_in_turns(contestants, num_rounds, bar.update)
  measured = {
    'build_seconds': build_seconds,
    **_round_times(seconds['library']),
  }
  if with_reference:
    first, *others = seconds['reference']
    median = timing.summarize(others)['median']
    measured |= {
      'reference_first_round_seconds': first,
      'reference_seconds_per_round': median,
      'reference_round_seconds': others,
      'speedup': median / measured['seconds_per_round']['median'],
    }
  return measured


def _measure_populations(
  workload: workloads.Workload,
  runtime: base.Runtime,
  num_rounds: int,
  bar: tqdm.tqdm,
) -> dict:
  """Times a workload on its population and on the smaller one, in turns.

  A round samples its cohort, reads the clients' states from a run's durable
  store, generates their data, computes, and commits all changes. The set-up of
  a population makes its data set and its store.

  Clients that take part for the first time get an initial state, the others one
  from the store; a larger population has more first-time clients in a round.
  """
  start = time.perf_counter()
  process = workload.build_process(workload.build_model())
  # Starts the runtime, which is no cost of a population.
  runtime.run(process.initialize)
  build_seconds = time.perf_counter() - start
  # The larger one is first: work that is done only once is in its figures.
  sizes = {
    'population': workload.num_clients,
    'smaller_population': workload.smaller_num_clients,
  }
  contestants, populations = {}, {}
  with contextlib.ExitStack() as stack:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    for name, num_clients in sizes.items():
      start, start_mb = time.perf_counter(), machine.resident_mb()
      store = stack.enter_context(
        run_store.RunStore.open(os.path.join(directory, name), {})
      )
      rounds = stored_rounds.StoredRounds(
        process, runtime, workload.make_data(num_clients), store
      )
      contestants[name] = functools.partial(
        _run_and_commit, workload, rounds, num_clients
      )
      populations[name] = {
        'num_clients': num_clients,
        'set_up_seconds': time.perf_counter() - start,
        'set_up_mb': machine.resident_mb() - start_mb,
      }
    seconds = timing.time_in_turns(contestants, num_rounds, bar.update)
  for name, population in populations.items():
    population['round_seconds'] = seconds[name]
    population['seconds_per_round'] = timing.summarize(seconds[name][1:])
  return {
    'build_seconds': build_seconds,
    **_round_times(seconds['population']),
    **populations,
  }


def _run_and_commit(workload, rounds, num_clients, round_number):
  cohort = workload.sample_cohort(round_number, num_clients)
  rounds.commit(rounds.run_round(cohort))


def _round_times(seconds: Sequence[float]) -> dict:
  first, *others = seconds
  return {
    'first_round_seconds': first,
    'seconds_per_round': timing.summarize(others),
    'round_seconds': others,
  }


def format_records(records: Sequence[Mapping[str, Any]]) -> str:
  """Formats a table with a column for each record of `measure`."""
  rows = [
    ('runtime', 'runtime'),
    ('clients', 'num_clients'),
    ('clients in a round', 'cohort_size'),
    ('rounds measured', 'num_rounds'),
    ('build, s', 'build_seconds'),
    ('first round, s', 'first_round_seconds'),
    ('round, s: median', 'seconds_per_round', 'median'),
    ('round, s: min', 'seconds_per_round', 'min'),
    ('round, s: max', 'seconds_per_round', 'max'),
    ('reference round, s: median', 'reference_seconds_per_round'),
    ('speedup over the reference', 'speedup'),
    ('peak memory, MB', 'peak_rss_mb'),
  ]
  for name in sorted({name for record in records for name in record['phases']}):
    rows.append((f'training of {name}', 'phases', name))
  if any(record['mb_moved_per_round'] is not None for record in records):
    rows += [
      ('to clients a round, MB', 'mb_moved_per_round', 'sent'),
      ('from clients a round, MB', 'mb_moved_per_round', 'received'),
    ]
  populations = ('population', 'smaller_population')
  if any(record['population'] is not None for record in records):
    for name in populations:
      rows += [
        (f'{name.replace("_", " ")}: clients', name, 'num_clients'),
        ('  set-up, s', name, 'set_up_seconds'),
        ('  set-up, MB', name, 'set_up_mb'),
        ('  round, s: median', name, 'seconds_per_round', 'median'),
      ]

  def cell(record, path):
    for key in path:
      record = record.get(key) if record is not None else None
    return record

  return summary.format_table(
    [
      [label, *(cell(record, path) for record in records)]
      for label, *path in rows
    ],
    ['', *(record['workload'] for record in records)],
  )
