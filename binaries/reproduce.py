r"""Repeats experiments of the papers and checks what the papers claim of them.

    python -m binaries.reproduce --list
    python -m binaries.reproduce --experiment=fedrep_linear_convergence
    python -m binaries.reproduce --experiment=all --fast

An experiment's folder below --output_dir gets its figure (`figure.png`), its
numbers (`numbers.csv`, `numbers.json`) and `summary.json`, with the claims:
what the paper says and where, the number it was reduced to, and whether that
number is on the right side of its threshold. `all` also writes the claims of
all experiments to `summary.json` in --output_dir.

The exit status is 0 if all claims hold, and 1 if one does not; with --fast
those that need the full size do not count. With `all`, the other experiments
run nevertheless.

An experiment that has its summary is not run again, and one that was
interrupted goes on with its training runs; --rerun starts anew. With --fast the
sizes are those of the tests, and the data are bundled or generated: it shows
that everything runs, in minutes. The figures to compare with the papers' are
those at full size, for which the images must be at hand (--data_dir).
"""

import os

from absl import flags

from binaries import program, runtime_flags
from binaries.papers import registry, runner
from tff_pfl import datasets
from tff_pfl.experiments import paper as experiment
from tff_pfl.simulation import summary

_ALL = 'all'
_IMAGE_FLAGS = ('dataset', 'data_dir', *runtime_flags.names())

_EXPERIMENT = flags.DEFINE_string(
  'experiment', None, f'Name of an experiment (see --list), or {_ALL}.'
)
_LIST = flags.DEFINE_bool('list', False, 'List the experiments and end.')
_FAST = flags.DEFINE_bool('fast', False, 'Take small sizes and bundled data.')
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  "Folder of the experiments' folders (default: runs/reproduce, and "
  'runs/reproduce_fast with --fast).',
)
_RERUN = flags.DEFINE_bool(
  'rerun', False, "Delete an experiment's earlier results and run it anew."
)
_DATASET = flags.DEFINE_enum(
  'dataset',
  None,
  [
    name
    for name in datasets.DATASETS
    if any(entry.takes(name) for entry in registry.EXPERIMENTS.values())
  ],
  "Instead of the experiment's own data set, for those with images or domains.",
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "Folder with the data sets' files, for those that have any."
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Seed of everything random.', lower_bound=0
)
for _name in runtime_flags.names():
  flags.declare_key_flag(_name)
flags.adopt_module_key_flags(program)


def _selected_experiments():
  if _EXPERIMENT.value is None:
    raise ValueError(
      f'Expected --experiment=NAME, --experiment={_ALL} or --list, found none '
      'of them.'
    )
  if _EXPERIMENT.value == _ALL:
    return list(registry.EXPERIMENTS.values())
  selected = registry.get_experiment(_EXPERIMENT.value)
  for name in _IMAGE_FLAGS:
    if flags.FLAGS[name].present and not selected.uses_images:
      raise ValueError(
        f'Expected --{name} with an experiment on images only, found '
        f'--experiment={selected.name}, which generates its data.'
      )
  return [selected]


def _settings():
  default = 'reproduce_fast' if _FAST.value else 'reproduce'
  return experiment.Settings(
    directory=_OUTPUT_DIR.value or os.path.join('runs', default),
    fast=_FAST.value,
    dataset=_DATASET.value,
    data_dir=_DATA_DIR.value,
    seed=_SEED.value,
    runtime=runtime_flags.selected_runtime(),
    runtime_options=runtime_flags.options(),
  )


def main() -> None:
  """Runs the experiments, prints their claims."""
  if _LIST.value:
    print(
      summary.format_table(
        [(e.name, e.paper, e.summary) for e in registry.EXPERIMENTS.values()],
        ['experiment', 'paper', 'what it shows'],
      )
    )
    return
  selected = _selected_experiments()
  settings = _settings()
  if _EXPERIMENT.value == _ALL:
    summaries = runner.run_all(selected, settings, rerun=_RERUN.value)
  else:
    summaries = [runner.run(selected[0], settings, rerun=_RERUN.value)]
  print(runner.claims_table(summaries))
  print(f'Results: {settings.directory}')
  runner.expect_passed(summaries)


if __name__ == '__main__':
  program.run(main)
