r"""Measures the speed of rounds, on workloads of known size.

    python -m binaries.benchmark --workload=w1,w2 --reference

Data come from a seeded generator. Every workload has a first round (tracing and
compilation), given separately, and then --rounds rounds with a fresh cohort
each, whose results are waited for.

With --reference the plain loop that a TFF user writes today runs in turns with
the library, round by round and with the same cohorts, on TFF's C++ worker:
`tff.learning.algorithms` for FedAvg, and for FedRep and Per-FedAvg a loop over
the dataset like those in TFF's tutorials. `speedup` is the ratio of the
medians; memory is then that of both.

The workload `scale` runs with a durable store, on two populations in turns: the
cost of a round does not depend on the population's size.
"""

import json

from absl import flags

from binaries import program, runtime_flags
from binaries.benchmark import measurement, workloads
from tff_pfl import errors

_ALL = 'all'

_WORKLOAD = flags.DEFINE_list(
  'workload',
  ['w1'],
  f'Workloads to measure, or {_ALL}. '
  + '; '.join(
    f'{w.name}: {w.description}' for w in workloads.WORKLOADS.values()
  )
  + '.',
)
_ROUNDS = flags.DEFINE_integer(
  'rounds',
  None,
  'Rounds after the first one (default: by the workload, '
  + ', '.join(f'{w.name} {w.num_rounds}' for w in workloads.WORKLOADS.values())
  + ').',
  lower_bound=1,
)
_REFERENCE = flags.DEFINE_bool(
  'reference', False, 'Also run the plain loop of a TFF user, in turns.'
)
_JSON = flags.DEFINE_bool(
  'json', False, 'Print a line of JSON for each workload instead of a table.'
)
_OUTPUT = flags.DEFINE_string(
  'output', None, 'A file to which a line of JSON is added for each workload.'
)
_SMALL = flags.DEFINE_bool(
  'small', False, 'Tiny sizes, to try in seconds that everything runs.'
)
flags.adopt_module_key_flags(program)
flags.adopt_module_key_flags(runtime_flags)


def _selected_workloads():
  names = _WORKLOAD.value
  errors.expect(names, 'workload', 'at least one name', names)
  if names == [_ALL]:
    names = list(workloads.WORKLOADS)
  selected = [workloads.get_workload(name) for name in names]
  return [w.scaled_down() if _SMALL.value else w for w in selected]


def _append(line):
  if _OUTPUT.value is not None:
    with open(_OUTPUT.value, 'a') as file:
      file.write(line)


def main() -> None:
  """Measures the workloads one after another."""
  selected = _selected_workloads()
  _append('')  # A file that cannot be written to is known before the work.
  records = []
  for workload in selected:
    record = measurement.measure(
      workload,
      runtime=runtime_flags.selected_runtime(),
      runtime_options=runtime_flags.options(),
      num_rounds=_ROUNDS.value,
      with_reference=_REFERENCE.value,
    )
    line = json.dumps(record)
    _append(f'{line}\n')
    if _JSON.value:
      print(line, flush=True)
    records.append(record)
  if not _JSON.value:
    print(measurement.format_records(records))


if __name__ == '__main__':
  program.run(main)
