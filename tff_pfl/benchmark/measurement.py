"""Measures a workload: rounds, beside a reference if asked for, as a record."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tqdm

from tff_pfl import errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.benchmark import (
  library_rounds,
  reference,
  scale,
  timing,
  workloads,
)
from tff_pfl.client import training_loop
from tff_pfl.runtime import base
from tff_pfl.simulation import summary
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
    workload: What to measure.
    runtime: A key of `runtime.RUNTIMES`.
    runtime_options: The runtime's own arguments, as JSON types.
    num_rounds: Rounds after the first one, at least 1; by default the
      workload's.
    with_reference: Whether to run also the plain loop of `reference` on TFF's
      native runtime, in turns with the library, round by round and with the
      same cohorts. A workload about the population's size has none.
    show_progress: Whether to draw a progress bar on stderr.

  Returns:
    A record of JSON types, with None for what was not measured:

    * `workload`, `description`, `num_clients`, `cohort_size`,
      `examples_per_client`, `runtime`, `runtime_options`, `num_rounds`;
    * `build_seconds`: for model, process, start of the runtime, initial states;
    * `first_round_seconds`, which includes tracing and compilation;
    * `seconds_per_round`: `median`, `min` and `max` of the rounds after it;
      `round_seconds`: all of these;
    * `reference_first_round_seconds`, `reference_round_seconds`,
      `reference_seconds_per_round` (their median), and `speedup`, the
      reference's median divided by the library's;
    * `mb_moved_per_round`: `sent` to the processes in which clients compute and
      `received` from them, a mean over all rounds; None where it is not known;
    * `phases`: how each phase of local training is computed by a client that
      runs alone, by the number of weights that it trains;
    * `peak_rss_mb`: of this process and its children, so with a reference what
      both take;
    * `population` and `smaller_population`: see `scale.measure`;
    * `num_cores`, `versions`.

  Raises:
    ValueError: If an argument is out of its range.
    RunError: If the runtime fails.
  """
  if num_rounds is None:
    num_rounds = workload.num_rounds
  errors.expect(num_rounds >= 1, 'num_rounds', 'at least 1', num_rounds)
  runtime_options = dict(runtime_options or {})
  with_reference = with_reference and workload.smaller_num_clients is None
  with machine.PeakMemory() as memory:
    measured = _measure_rounds(
      workload,
      runtime,
      runtime_options,
      num_rounds,
      with_reference,
      show_progress,
    )
  return {
    'workload': workload.name,
    'description': workload.description,
    'num_clients': workload.num_clients,
    'cohort_size': workload.cohort_size,
    'examples_per_client': workload.examples_per_client,
    'runtime': runtime,
    'runtime_options': runtime_options,
    'num_rounds': num_rounds,
    'build_seconds': measured.build_seconds,
    **_library_record(measured),
    **_reference_record(measured),
    'mb_moved_per_round': _mb_moved(measured),
    'phases': measured.phases,
    'peak_rss_mb': memory.peak_mb,
    'population': measured.populations.get('population'),
    'smaller_population': measured.populations.get('smaller_population'),
    'num_cores': cores.num_usable_cores(),
    'versions': machine.versions(),
  }


class _Measured(NamedTuple):
  """What was measured; seconds of rounds start with the first round's."""

  build_seconds: float
  seconds: Sequence[float]
  reference_seconds: Optional[Sequence[float]] = None
  populations: Mapping[str, Any] = {}
  bytes_moved: Optional[tuple[float, float]] = None
  phases: Mapping[str, str] = {}


def _measure_rounds(
  workload: workloads.Workload,
  runtime: str,
  runtime_options: Mapping[str, Any],
  num_rounds: int,
  with_reference: bool,
  show_progress: bool,
) -> _Measured:
  """Starts what runs the rounds, and a progress bar, and measures them."""
  compares_populations = workload.smaller_num_clients is not None
  with contextlib.ExitStack() as stack:
    phases = stack.enter_context(training_loop.noting_forms())
    library_runtime = stack.enter_context(
      runtime_lib.create_runtime(runtime, **runtime_options)
    )
    reference_runtime = None
    if with_reference:
      reference_runtime = stack.enter_context(
        runtime_lib.create_runtime('native')
      )
    bar = stack.enter_context(
      tqdm.tqdm(
        total=(1 + (with_reference or compares_populations)) * (num_rounds + 1),
        desc=workload.name,
        unit='round',
        disable=not show_progress,
        mininterval=0.1 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
      )
    )
    if compares_populations:
      measured = _measure_populations(
        workload, library_runtime, num_rounds, bar
      )
    else:
      measured = _measure_in_memory(
        workload, library_runtime, reference_runtime, num_rounds, bar
      )
    if library_runtime.bytes_moved is not None:
      num_all = (1 + compares_populations) * (num_rounds + 1)
      measured = measured._replace(
        bytes_moved=tuple(n / num_all for n in library_runtime.bytes_moved)
      )
    return measured._replace(phases=dict(phases))


def _measure_in_memory(
  workload: workloads.Workload,
  library_runtime: base.Runtime,
  reference_runtime: Optional[base.Runtime],
  num_rounds: int,
  bar: tqdm.tqdm,
) -> _Measured:
  """Measures rounds whose data and client states are in memory."""
  cohorts = [workload.sample_cohort(r).tolist() for r in range(num_rounds + 1)]
  tensors = library_rounds.client_tensors(workload, cohorts)
  start = time.perf_counter()
  model = workload.build_model()
  process = workload.build_process(model)
  ours = library_rounds.LibraryRounds(library_runtime, process, tensors)
  build_seconds = time.perf_counter() - start
  contestants = {'library': lambda round_number: ours(cohorts[round_number])}
  if reference_runtime is not None:
    plain = reference.build_reference(
      workload,
      reference_runtime,
      tensors,
      list(model.initial_weights.values()),
    )
    contestants['reference'] = lambda round_number: plain(cohorts[round_number])
  seconds = timing.time_in_turns(contestants, num_rounds, bar.update)
  return _Measured(build_seconds, seconds['library'], seconds.get('reference'))


def _measure_populations(
  workload: workloads.Workload,
  runtime: base.Runtime,
  num_rounds: int,
  bar: tqdm.tqdm,
) -> _Measured:
  """Measures rounds with a durable store, on both populations."""
  start = time.perf_counter()
  model = workload.build_model()
  process = workload.build_process(model)
  # Starts the runtime, which is no cost of a population.
  runtime.run(process.initialize)
  build_seconds = time.perf_counter() - start
  populations = scale.measure(workload, runtime, process, num_rounds, bar)
  return _Measured(
    build_seconds,
    populations['population']['round_seconds'],
    populations=populations,
  )


def _mb_moved(measured: _Measured) -> Optional[dict]:
  if measured.bytes_moved is None:
    return None
  sent, received = measured.bytes_moved
  return {'sent': sent / 1e6, 'received': received / 1e6}


def _library_record(measured: _Measured) -> dict:
  first, *others = measured.seconds
  return {
    'first_round_seconds': first,
    'seconds_per_round': timing.summarize(others),
    'round_seconds': others,
  }


def _reference_record(measured: _Measured) -> dict:
  first = others = median = speedup = None
  if measured.reference_seconds is not None:
    first, *others = measured.reference_seconds
    median = timing.summarize(others)['median']
    speedup = median / timing.summarize(measured.seconds[1:])['median']
  return {
    'reference_first_round_seconds': first,
    'reference_seconds_per_round': median,
    'reference_round_seconds': others,
    'speedup': speedup,
  }


def format_records(records: Sequence[Mapping[str, Any]]) -> str:
  """A table for the screen: a column for each record of `measure`."""
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
