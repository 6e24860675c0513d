r"""Compares methods on the same data, over seeds and hyperparameters.

    python -m binaries.compare --algorithms=fed_rep,fed_avg,ditto \
      --seeds=0,1,2 --grid=learning_rate=0.01,0.1 \
      --grid=ditto.proximal_strength=0.1,1 --fine_tune_variants=all \
      --num_new_clients=10 --dataset=digits --partition=shards:2 \
      --num_clients=30 --cohort_size=10 --num_rounds=100 \
      --output_dir=runs/compare

All flags of `train` except --algorithm and --seed apply to every run. If a grid
has several points for a method, each point first runs with the first seed on a
part of the clients' training examples. The method then uses the point that is
best on the rest of these examples. Test examples play no part in this choice. A
value in a grid overrides a flag. A number of epochs in a grid also overrides a
number of steps outside it: with --grid=num_epochs=1 every method trains for one
epoch, per_fed_avg instead of its ten steps, fed_rep and fed_dar on the body.
Instead of --grid, --search=learning_rate=0.001:1:log has Optuna propose the
points one after another.

Each run is a trial with its own folder in `trials/` of the output folder, with
its log and the files that `train` writes. The output folder is a study, which
`pfl.open_study` reads. It has `study.html` (a page for the browser),
`numbers.csv` (the figures of each run), `per_client.csv`, for data with domains
`per_domain.csv`, and `study.json`. If a trial fails, it is reported, the others
continue, and the exit status is 1. `--resume` continues an interrupted
comparison, and can add methods and seeds.
"""

import os

from absl import flags

from tff_pfl import errors
from tff_pfl.methods import registry
from tff_pfl.studies import execution, page, plan
from tff_pfl.studies import study as study_lib

from . import made_flags, program, run_flags, runtime_flags

_ALL = 'all'

_ALGORITHMS = flags.DEFINE_list(
  'algorithms',
  [_ALL],
  f'Methods to compare, or {_ALL}: all that fit the data (methods for domains '
  'or classes only if the data have them).',
)
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds of the runs.')
_GRID = flags.DEFINE_multi_string(
  'grid',
  [],
  'Values of a hyperparameter to choose from, '
  "'[method.]hyperparameter=value,value,...'. Without a method, it is for all "
  'methods that have the hyperparameter. A number of epochs replaces a number '
  'of steps. May be given several times.',
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
_FINE_TUNE_VARIANTS = flags.DEFINE_list(
  'fine_tune_variants',
  [],
  'Other ways to fine-tune the models of the last round, which are then also '
  'scored: none, head, all or trained. The options of --fine_tune apply.',
)
# By field of `Study` its flag.
_FIELDS = {
  'num_new_clients': 'num_new_clients',
  'num_folds': 'folds',
  'validation_fraction': 'validation_fraction',
  'tuning_rounds': 'tuning_rounds',
}
for _field, _flag in _FIELDS.items():
  made_flags.define_field(_flag, study_lib.Study, _field)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  None,
  'Runs at the same time (default: one per usable CPU core). Each takes nearly '
  'a gigabyte of memory or more, and all share the GPUs. 0 runs them one after '
  'another in this process.',
  lower_bound=0,
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', None, 'Folder of the comparison.', required=True
)
_RESUME = flags.DEFINE_bool(
  'resume', False, 'Continue the comparison in --output_dir, if there is one.'
)
runtime_flags.define_cluster()
for _name in run_flags.KEY_FLAGS:
  if _name not in ('algorithm', 'seed'):  # A comparison has several of both.
    flags.declare_key_flag(_name)
flags.adopt_module_key_flags(runtime_flags)
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
  with errors.naming({'method': '--algorithms'}):
    for name in _ALGORITHMS.value:
      registry.get_algorithm(name)
  return tuple(_ALGORITHMS.value)


def _variants(algorithm, config):
  """The ways to fine-tune a method's models, by the name of the row."""
  asked = config.process.personalization.fine_tune
  scopes = [asked, *(s for s in _FINE_TUNE_VARIANTS.value if s != asked)]
  names = {
    'method': algorithm,
    'none': f'{algorithm} without FT',
    'trained': f'{algorithm}, trained',
  }
  return {
    names.get(scope, f'{algorithm} + FT ({scope})'): scope for scope in scopes
  }


def _study():
  if _GRID.value and _SEARCH.value:
    raise ValueError('Expected one of --grid and --search, found both.')
  run_flags.refuse(['algorithm'], '--algorithms has the methods')
  run_flags.refuse(['seed'], '--seeds has the seeds')
  for scope in _FINE_TUNE_VARIANTS.value:
    scopes = ('none', 'head', 'all', 'trained')
    errors.expect_one_of('fine_tune_variants', scope, scopes)
  tunes = bool({*_FINE_TUNE_VARIANTS.value} & {'head', 'all'})
  algorithms = _algorithms(tunes)
  errors.expect(algorithms, '--algorithms', 'at least one', 'none')
  errors.expect(
    len({*algorithms}) == len(algorithms),
    '--algorithms',
    'a list, none twice',
    algorithms,
  )
  run_flags.check_selected(*algorithms)
  methods = {}
  for algorithm in algorithms:
    config = run_flags.settings_from_flags(algorithm, has_variants=tunes)
    for name, scope in _variants(algorithm, config).items():
      own = dict(vars(config.method))
      if scope != config.process.personalization.fine_tune:
        own['fine_tune'] = scope
      methods[name] = study_lib.Method(algorithm, **own)
  flag = 'search' if _SEARCH.value else 'grid'
  with errors.naming({'num_folds': '--folds', 'tune': f'--{flag}'}):
    return study_lib.Study(
      settings=config,
      methods=methods,
      seeds=made_flags.integers('--seeds', _SEEDS.value, 0),
      tune=plan.parse_grid(_SEARCH.value or _GRID.value, algorithms, flag),
      num_search_trials=_NUM_SEARCH_TRIALS.value if _SEARCH.value else None,
      name='comparison',
      modules=program.MODULES.value,
      **made_flags.given(_FIELDS),
    )


def main() -> None:
  """Runs the comparison and prints its tables."""
  study, directory = _study(), _OUTPUT_DIR.value
  if not _RESUME.value and os.path.exists(
    os.path.join(directory, execution.TRIALS_DIR)
  ):
    raise errors.RunError(
      f'There is a comparison in {directory} already: pass --resume to go on '
      'with it, or another --output_dir.'
    )
  results = study.run(
    directory,
    num_processes=_NUM_PROCESSES.value,
    cluster=runtime_flags.selected_cluster(),
    runtime_options=runtime_flags.options(),
  )
  print(results.table())
  print(f'Report: {os.path.join(directory, page.PAGE_NAME)}')
  if results.failures:
    first = results.failures[0]
    raise errors.RunError(
      f'Failed trials: {len(results.failures)}; the first is '
      f'{first["trial"]}: {first["reason"]}'
    )


if __name__ == '__main__':
  flags_of = {
    'algorithms': ([], run_flags.FLAGS_OF['algorithm'][1]),
    **run_flags.FLAGS_OF,
  }
  del flags_of['algorithm']
  program.run_program(main, flags_of)
