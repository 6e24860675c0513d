r"""Measures the speed of rounds, on workloads of known size.

    python -m binaries.benchmark --workload=w1,w2 --reference

The data come from a seeded generator. Each workload has a first round (tracing
and compilation), which is reported separately, and then --rounds rounds with a
fresh cohort each. A round ends when all its results are ready.

--reference also runs the plain loop that a TFF user writes today, in turns with
the library, round by round and with the same cohorts, on TFF's C++ worker. It
is `tff.learning.algorithms` for FedAvg, and for FedRep and Per-FedAvg a loop
over the dataset as in TFF's tutorials. `speedup` is the ratio of the medians.

The memory is the peak of this process so far, also in earlier workloads. TFF's
worker and Ray's actors do not count.

The workload `scale` runs with a durable store, on two populations in turns, to
show that the cost of a round does not depend on the population's size. Then it
makes a whole run of two rounds on the larger population, with evaluations and a
report.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import pandas as pd
import tqdm
from absl import flags

from tff_pfl import errors
from tff_pfl import runtime as runtime_lib
from tff_pfl.core import training_loop
from tff_pfl.runs import loop, run_store, stored_rounds, summary
from tff_pfl.system import cores, machine

from .. import program, runtime_flags
from . import workloads

_ALL = 'all'


def time_in_turns(
  contestants: Mapping[str, Callable[[int], None]],
  num_rounds: int,
  on_round: Callable[[], Any] = lambda: None,
) -> dict[str, list[float]]:
  """Times rounds of several contestants: A B A B and so on.

  They take turns so that a slow phase of the machine affects all of them.
  Garbage is collected before each round, outside the measured time. From the
  second round on, the collector ignores all objects of the first: a walk over
  TensorFlow's objects would empty the processor's caches, which no simulation
  does.

  Args:
    contestants: Functions by name. Each runs the round of a number, from 0 on,
      and waits for all results.
    num_rounds: Rounds of each contestant after the first one, at least 1.
    on_round: Called after each round of each contestant.

  Returns:
    The seconds of each contestant's `1 + num_rounds` rounds, by name. The first
    round includes tracing and compilation.
  """
  seconds = {name: [] for name in contestants}
  for round_number in range(num_rounds + 1):
    for name, run_round in contestants.items():
      gc.collect()
      if round_number == 1:
        gc.freeze()
      start = time.perf_counter()
      run_round(round_number)
      seconds[name].append(time.perf_counter() - start)
      on_round()
  return seconds


def _summarized(seconds):
  return {
    'median': statistics.median(seconds),
    'min': min(seconds),
    'max': max(seconds),
  }


def _round_times(seconds):
  first, *others = seconds
  return {
    'first_round_seconds': first,
    'seconds_per_round': _summarized(others),
    'round_seconds': others,
  }


def measure(
  workload: workloads.Workload,
  runtime: str,
  runtime_options: Mapping[str, Any],
  num_rounds: Optional[int] = None,
  with_reference: bool = False,
) -> dict[str, Any]:
  """Measures a workload.

  Args:
    workload: The workload.
    runtime: A key of `runtime.RUNTIMES`.
    runtime_options: The runtime's own arguments, as JSON types.
    num_rounds: Rounds after the first one, at least 1. None uses the workload's
      number.
    with_reference: True to also run the plain loop of a TFF user on TFF's
      native runtime, in turns and with the same cohorts. A workload about the
      population's size has no such loop.

  Returns:
    A record of JSON types, among them:

    * `build_seconds`: for model, process, start of the runtime, initial states.
    * `seconds_per_round`: median, minimum and maximum after the first round.
    * `speedup`: the reference's median divided by the library's.
    * `phases`: the form of each phase of local training for a client that runs
      alone, by the phase's number of trained weights.
    * `peak_rss_mb`: peak memory of this process so far, without TFF's worker
      and Ray's actors.
    * `population` and `smaller_population`: `set_up_mb` is the growth of
      resident memory during set-up.
    * `run_seconds`: for a whole run on the population, without making its data
      and process.
  """
  num_rounds = num_rounds or workload.num_rounds
  compares_populations = workload.smaller_num_clients is not None
  with_reference = with_reference and not compares_populations
  num_contestants = 1 + (with_reference or compares_populations)
  with contextlib.ExitStack() as stack:
    phases = stack.enter_context(training_loop.noting_forms())
    created = stack.enter_context(
      runtime_lib.create_runtime(runtime, **runtime_options)
    )
    bar = stack.enter_context(
      tqdm.tqdm(
        total=num_contestants * (num_rounds + 1),
        desc=workload.name,
        unit='round',
        mininterval=0.1 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
      )
    )
    measured = (
      _measure_populations(workload, created, num_rounds, bar)
      if compares_populations
      else _measure_in_memory(
        workload, created, with_reference, num_rounds, bar
      )
    )
    if compares_populations:
      measured['run_seconds'] = _time_whole_run(
        workload, runtime, runtime_options
      )
  return {
    'workload': workload.name,
    'description': workload.description,
    'num_clients': workload.num_clients,
    'cohort_size': workload.cohort_size,
    'examples_per_client': workload.examples_per_client,
    'runtime': runtime,
    'runtime_options': dict(runtime_options),
    'num_rounds': num_rounds,
    **measured,
    'phases': dict(phases),
    # Linux counts in KiB.
    'peak_rss_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    'num_cores': cores.num_usable_cores(),
    'versions': machine.versions(),
  }


def _measure_in_memory(workload, runtime, with_reference, num_rounds, bar):
  """Measures rounds whose data and client states are in memory."""
  cohorts = [workload.sample_cohort(r).tolist() for r in range(num_rounds + 1)]
  tensors = workloads.client_tensors(workload, cohorts)
  start = time.perf_counter()
  model = workload.build_model()
  contestants = {
    'library': workloads.LibraryRounds(
      runtime, workload.build_process(model), tensors
    )
  }
  build_seconds = time.perf_counter() - start
  with contextlib.ExitStack() as stack:
    if with_reference:
      contestants['reference'] = workloads.PLAIN_LOOPS[workload.algorithm](
        workload,
        stack.enter_context(runtime_lib.create_runtime('native')),
        tensors,
        list(model.initial_weights.values()),
      )
    seconds = time_in_turns(
      {
        name: lambda number, run=run: run(cohorts[number])
        for name, run in contestants.items()
      },
      num_rounds,
      bar.update,
    )
  measured = {
    'build_seconds': build_seconds,
    **_round_times(seconds['library']),
  }
  if with_reference:
    first, *others = seconds['reference']
    median = statistics.median(others)
    measured |= {
      'reference_first_round_seconds': first,
      'reference_seconds_per_round': median,
      'reference_round_seconds': others,
      'speedup': median / measured['seconds_per_round']['median'],
    }
  return measured


def _measure_populations(workload, runtime, num_rounds, bar):
  """Times a workload on its population and on the smaller one, in turns.

  A round samples its cohort, reads the clients' states from a run's durable
  store, generates their data, computes, and commits all changes. The set-up of
  a population makes its dataset and its store.

  Clients that train for the first time get an initial state, the others a state
  from the store. A larger population has more first-time clients in a round.
  """
  start = time.perf_counter()
  process = workload.build_process(workload.build_model())
  # Starts the runtime, whose cost does not depend on the population.
  runtime.run(process.initialize)
  build_seconds = time.perf_counter() - start
  # The larger population is first: its figures include all work done only once.
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
    seconds = time_in_turns(contestants, num_rounds, bar.update)
  for name, population in populations.items():
    population['round_seconds'] = seconds[name]
    population['seconds_per_round'] = _summarized(seconds[name][1:])
  return {
    'build_seconds': build_seconds,
    **_round_times(seconds['population']),
    **populations,
  }


def _time_whole_run(workload, runtime, runtime_options):
  """Returns the seconds of a run of two rounds, on data and a process."""
  data = workload.make_data()
  process = workload.build_process(workload.build_model())
  with tempfile.TemporaryDirectory() as directory:
    start = time.perf_counter()
    loop.run(
      process,
      data,
      os.path.join(directory, 'run'),
      num_rounds=2,
      cohort_size=workload.cohort_size,
      runtime=runtime,
      runtime_options=runtime_options,
      show_progress=False,
    )
    return time.perf_counter() - start


def _run_and_commit(workload, rounds, num_clients, round_number):
  cohort = workload.sample_cohort(round_number, num_clients)
  rounds.commit(rounds.run_round(cohort))


def format_records(records: Sequence[Mapping[str, Any]]) -> str:
  """Formats a table of the numbers of `measure`, with a column a record."""
  table = pd.json_normalize(records).set_index('workload').T
  is_list = table.map(lambda value: isinstance(value, list)).any(axis=1)
  is_text = table.index.str.match('description|runtime_options|versions')
  table = table[~(is_list | is_text)].dropna(how='all')
  return summary.format_table(table.reset_index(names=''))


def _append(line):
  if flags.FLAGS.output is not None:
    with open(flags.FLAGS.output, 'a') as file:
      file.write(line)


def _define_flags():
  """Defines the flags, which must not happen when the tests import this."""
  flags.DEFINE_list(
    'workload',
    ['w1'],
    f'Workloads to measure, or {_ALL}. '
    + '; '.join(
      f'{w.name}: {w.description}' for w in workloads.WORKLOADS.values()
    )
    + '.',
  )
  flags.DEFINE_integer(
    'rounds',
    None,
    'Rounds after the first one (default by workload: '
    + ', '.join(
      f'{w.name} {w.num_rounds}' for w in workloads.WORKLOADS.values()
    )
    + ').',
    lower_bound=1,
  )
  flags.DEFINE_bool(
    'reference', False, 'Also run the plain loop of a TFF user, in turns.'
  )
  flags.DEFINE_bool(
    'json', False, 'Print a line of JSON for each workload instead of a table.'
  )
  flags.DEFINE_string(
    'output', None, 'File that gets another line of JSON for each workload.'
  )
  flags.DEFINE_bool(
    'small', False, 'Use tiny sizes, to check in seconds that everything runs.'
  )
  flags.adopt_module_key_flags(program)
  flags.adopt_module_key_flags(runtime_flags)


def main() -> None:
  """Measures the workloads one after another."""
  names = flags.FLAGS.workload
  if names == [_ALL]:
    names = list(workloads.WORKLOADS)
  errors.expect(names, '--workload', 'at least one', 'none')
  for name in names:
    errors.expect_one_of('workload', name, workloads.WORKLOADS)
  _append('')  # Fails before the work if the file cannot be written.
  records = []
  for name in names:
    workload = workloads.WORKLOADS[name]
    record = measure(
      workload.scaled_down() if flags.FLAGS.small else workload,
      runtime_flags.selected_runtime(),
      runtime_flags.options(),
      flags.FLAGS.rounds,
      flags.FLAGS.reference,
    )
    line = json.dumps(record)
    _append(f'{line}\n')
    if flags.FLAGS.json:
      print(line, flush=True)
    records.append(record)
  if not flags.FLAGS.json:
    print(format_records(records))


if __name__ == '__main__':
  _define_flags()
  program.run_program(main)
