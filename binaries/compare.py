r"""Compares methods on the same data, over seeds and hyperparameters.

    python -m binaries.compare --algorithms=fed_rep,fed_avg,ditto \
      --seeds=0,1,2 --grid=learning_rate=0.01,0.1 \
      --grid=ditto.proximal_strength=0.1,1 --fine_tune_variants=all \
      --num_new_clients=10 --dataset=digits --partition=shards:2 \
      --num_clients=30 --cohort_size=10 --num_rounds=100 \
      --output_dir=runs/compare

All flags of `train` but --algorithm and --seed are those of every run. Where a
grid has several points for a method, each point is first run with the first
seed on a part of the clients' training examples, and the best
one on the rest of these is taken; test examples are not read for that. A value
in a grid goes before that of a flag, and a number of epochs in a grid before a
number of steps that is not: with --grid=num_epochs=1 every method with epochs
of one kind trains for one, per_fed_avg instead of its ten steps; those of head
and body (fed_rep, fed_dar) are --grid=num_body_epochs=1. With --search
instead of --grid Optuna proposes the points, one after the other:
--search=learning_rate=0.001:1:log.

Each run is a trial with a folder of its own in `trials/` of the output folder,
with the files that `train` writes and its log. The output folder gets
`comparison.html` (a page for the browser), `comparison.csv` (mean and standard
deviation over seeds), `per_client.csv`, for data with domains `per_domain.csv`,
and `comparison.json`. A trial that fails is reported and the others continue;
the exit status is then 1. `--resume` continues an interrupted comparison, and
takes further methods and seeds, too.
"""

import os

from absl import flags

from tff_pfl import errors
from tff_pfl.comparisons import comparison_runner as runner
from tff_pfl.comparisons import page, plan
from tff_pfl.methods import registry

from . import made_flags, program, published, run_flags, runtime_flags, small

_ALL = 'all'

_ALGORITHMS = flags.DEFINE_list(
  'algorithms',
  [_ALL],
  f'Methods to compare, or {_ALL} of --algorithm that fit the data (those for '
  'domains or classes where there are any).',
)
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds, each as --seed of a run.')
_GRID = flags.DEFINE_multi_string(
  'grid',
  [],
  'Values of a hyperparameter to choose from, '
  "'[method.]hyperparameter=value,value,...'; without a method, for all that "
  'have it. A number of epochs takes the place of a number of steps. May be '
  'given several times.',
)
_SEARCH = flags.DEFINE_multi_string(
  'search',
  [],
  'Instead of --grid, ranges or values that Optuna searches: '
  "'[method.]hyperparameter=low:high', '…=low:high:log' or "
  "'…=value,value,...'. May be given several times.",
)
_NUM_SEARCH_TRIALS = flags.DEFINE_integer(
  'num_search_trials',
  20,
  'Points that --search tries for each method.',
  lower_bound=1,
)
# By field of `plan.Comparison` its flag.
_FIELDS = {
  'fine_tune_variants': 'fine_tune_variants',
  'num_new_clients': 'num_new_clients',
  'num_folds': 'folds',
  'validation_fraction': 'validation_fraction',
  'tuning_rounds': 'tuning_rounds',
}
for _field, _flag in _FIELDS.items():
  made_flags.define_field(_flag, plan.Comparison, _field)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  None,
  'Runs at the same time (default: one on each usable CPU core); each takes '
  'most of a gigabyte of memory, or more, and GPUs are shared by all. 0: one '
  'after another in this process.',
  lower_bound=0,
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder of the comparison.', required=True
)
_RESUME = flags.DEFINE_bool(
  'resume', False, 'Continue the comparison in --output_dir, if any.'
)
runtime_flags.define_cluster()
for _name in run_flags.KEY_FLAGS:
  if _name not in ('algorithm', 'seed'):  # It has several of both.
    flags.declare_key_flag(_name)
flags.adopt_module_key_flags(runtime_flags)
flags.adopt_module_key_flags(small)
flags.adopt_module_key_flags(program)


def _algorithms(tunes):
  if _ALGORITHMS.value == [_ALL]:
    config = run_flags.settings_from_flags('fed_avg', has_variants=tunes)
    data = config.load_data()
    has_classes = data.num_classes and data.element_spec['y'].shape.rank == 0
    return tuple(
      name
      for name, algorithm in registry.ALGORITHMS.items()
      if (data.num_domains or not algorithm.needs_domains)
      and (has_classes or not algorithm.needs_classes)
    )
  with errors.naming({'algorithm': '--algorithms'}):
    for name in _ALGORITHMS.value:
      registry.get_algorithm(name)
  return tuple(_ALGORITHMS.value)


def _seeds():
  for text in _SEEDS.value:
    errors.expect(text.isdecimal(), '--seeds', 'non-negative integers', text)
  return tuple(int(text) for text in _SEEDS.value)


def _comparison():
  """The comparison that the flags ask for."""
  if _GRID.value and _SEARCH.value:
    raise ValueError('Expected one of --grid and --search, found both.')
  run_flags.refuse(['algorithm'], '--algorithms says what is compared')
  run_flags.refuse(['seed'], '--seeds has the seeds')
  given = made_flags.given(_FIELDS)
  tunes = bool({*given.get('fine_tune_variants', ())} & {'head', 'all'})
  algorithms = _algorithms(tunes)
  errors.expect(algorithms, '--algorithms', 'at least one', 'none')
  run_flags.check_selected(*algorithms)
  configs = {
    name: run_flags.settings_from_flags(name, has_variants=tunes)
    for name in algorithms
  }
  with errors.naming({'num_folds': '--folds'}):
    return plan.Comparison(
      base=configs[algorithms[0]],
      methods=[config.method for config in configs.values()],
      seeds=_seeds(),
      grid=plan.parse_grid(
        _SEARCH.value or _GRID.value,
        algorithms,
        'search' if _SEARCH.value else 'grid',
      ),
      num_search_trials=_NUM_SEARCH_TRIALS.value if _SEARCH.value else None,
      **given,
    )


def main() -> None:
  """Runs the comparison, prints its tables."""
  comparison = _comparison()
  directory, num_processes = _OUTPUT_DIR.value, _NUM_PROCESSES.value
  if small.SMALL.value:
    directory = small.output_dir(directory)
    comparison = small.comparison(comparison, directory)
    num_processes = num_processes or 0
  data = comparison.base.data
  found = runner.compare(
    comparison,
    directory,
    num_processes=num_processes,
    cluster=runtime_flags.selected_cluster(),
    runtime_options=runtime_flags.options(),
    resume=_RESUME.value,
    published=published.reference(data.name, data.num_clients, data.partition),
  )
  print(found.table())
  print(f'Report: {os.path.join(directory, page.REPORT_NAME)}')
  failures = found['failures']
  if failures:
    raise errors.RunError(
      f'Failed trials: {len(failures)}; the first is {failures[0]["trial"]}: '
      f'{failures[0]["reason"]}'
    )


if __name__ == '__main__':
  flags_of = {
    'algorithms': ([], run_flags.FLAGS_OF['algorithm'][1]),
    **run_flags.FLAGS_OF,
  }
  del flags_of['algorithm']
  program.run(main, flags_of)
