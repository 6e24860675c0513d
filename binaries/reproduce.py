r"""Repeats experiments of the papers and checks the papers' claims.

    python -m binaries.reproduce --list
    python -m binaries.reproduce --experiment=fedrep_linear_convergence
    python -m binaries.reproduce --experiment=all --fast

An experiment's folder below --output_dir gets its figure (`figure.png`), its
numbers (`numbers.csv`, `numbers.json`) and `summary.json`, with the claims:
the paper's statement and its place, the number it was reduced to, and the
verdict: the claim holds, fails or is undecided. Where methods are compared, the
95% interval of the difference over at least five seeds decides. `all` also
writes the claims of all experiments to `summary.json` in --output_dir, and
shows them with the figures in `claims.html`.

A claim that fails is a result: the exit status is 1 only if an experiment could
not run. With `all`, the other experiments run nevertheless.

An experiment that has its numbers is not measured again, and one that was
interrupted continues with its training runs; --rerun starts anew. With --fast
the sizes are small, and the data are bundled or generated: it shows that
everything runs, in minutes, and decides few claims. The figures to compare with
the papers' are those at full size, for which the images must be at hand
(--data_dir). --size gives one experiment other sizes and hyperparameters:

    python -m binaries.reproduce --experiment=fedrep_linear_samples \
      --size=num_rounds=1000 --size=learning_rate=0.1 --output_dir=runs/slow
"""

import ast
import os

from absl import flags

from tff_pfl import datasets, errors
from tff_pfl.runs import summary
from tff_pfl.system import folders

from . import papers, program, runtime_flags, small
from .papers import record
from .papers.engine import claims, paper, trials

_ALL = 'all'

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
_DOCS_DIR = flags.DEFINE_string(
  'docs_dir',
  None,
  "Folder of the results' pages (docs/results) whose records, tables of claims "
  'and pictures are to show what was run, at full size.',
)
_DATASET = flags.DEFINE_enum(
  'dataset',
  None,
  [
    name
    for name in datasets.DATASETS
    if any(entry.takes(name) for entry in papers.EXPERIMENTS.values())
  ],
  "Instead of the experiment's own data set, for those that take it.",
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "Folder with the data sets' files, for those that have any."
)
_SEED = flags.DEFINE_integer(
  'seed',
  None,
  "First seed (default: 5 where an experiment's sizes were chosen with seeds 0 "
  'to 4, else 0).',
  lower_bound=0,
)
_NUM_SEEDS = flags.DEFINE_integer(
  'num_seeds',
  None,
  "Seeds from --seed on (default: the experiment's own number, 5 or more; 1 or "
  '2 with --fast).',
  lower_bound=1,
)
_SIZES = flags.DEFINE_multi_string(
  'size',
  [],
  "NAME=VALUE: another value for one of the experiment's sizes, which are the "
  '`setup` in its summary.json, such as num_rounds=500, model=resnet_18 or '
  'nums_clients=[50,100]. May be repeated.',
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  None,
  'Training runs at the same time, each in a process of its own (default: one '
  'on each usable CPU core); 0: one after another in this process, the default '
  'with --fast.',
  lower_bound=0,
)
runtime_flags.define_cluster()
flags.adopt_module_key_flags(runtime_flags)
flags.adopt_module_key_flags(program)
flags.adopt_module_key_flags(small)


def _selected_experiments():
  if _EXPERIMENT.value is None:
    raise ValueError(
      f'Expected --experiment=NAME, --experiment={_ALL} or --list, found none '
      'of them.'
    )
  if _EXPERIMENT.value == _ALL:
    return list(papers.EXPERIMENTS.values())
  errors.expect_one_of('experiment', _EXPERIMENT.value, papers.EXPERIMENTS)
  return [papers.EXPERIMENTS[_EXPERIMENT.value]]


def _sizes():
  """From --size: literals of Python, or else strings."""
  sizes = {}
  for text in _SIZES.value:
    name, equals, value = text.partition('=')
    errors.expect(equals, '--size', 'NAME=VALUE', text)
    try:
      sizes[name] = ast.literal_eval(value)
    except (SyntaxError, ValueError):
      sizes[name] = value
  if sizes and (_EXPERIMENT.value == _ALL or _DOCS_DIR.value is not None):
    raise ValueError(
      'Expected --size with one experiment, and without --docs_dir, found '
      f'--experiment={_EXPERIMENT.value} and --docs_dir={_DOCS_DIR.value}.'
    )
  return sizes or None


def _settings():
  default = 'reproduce_fast' if _FAST.value else 'reproduce'
  directory = _OUTPUT_DIR.value
  if directory is None:
    directory = os.path.join('runs', default)
  num_processes = _NUM_PROCESSES.value
  if num_processes is None and _FAST.value:
    num_processes = 0
  return trials.Settings(
    directory=folders.output_path(directory, 'output_dir'),
    fast=_FAST.value,
    dataset=_DATASET.value,
    data_dir=_DATA_DIR.value,
    seed=_SEED.value,
    num_seeds=_NUM_SEEDS.value,
    sizes=_sizes(),
    num_processes=num_processes,
    cluster=runtime_flags.selected_cluster(),
    runtime=runtime_flags.selected_runtime(),
    runtime_options=runtime_flags.options(),
  )


def _scaled_down(selected, settings):
  """The numbers of --fast; with one experiment the other sizes are kept."""
  directory = small.output_dir(settings.directory)
  sizes, data_dir = None, settings.data_dir
  if _EXPERIMENT.value != _ALL:
    full = selected[0].sizes(settings)
    if selected[0].uses_datasets:
      sizes, data_dir = small.experiment(
        full, selected[0].fast, data_dir, directory
      )
  return settings._replace(
    directory=directory,
    fast=True,
    dataset=None,
    data_dir=data_dir,
    num_seeds=None,
    sizes=sizes,
    num_processes=settings.num_processes or 0,
  )


def main() -> None:
  """Runs the experiments, prints their claims."""
  if _LIST.value:
    print(
      summary.format_table(
        [(e.name, e.paper, e.summary) for e in papers.EXPERIMENTS.values()],
        ['experiment', 'paper', 'what is checked'],
      )
    )
    return
  selected = _selected_experiments()
  settings = _settings()
  if small.SMALL.value:
    settings = _scaled_down(selected, settings)
  if _DOCS_DIR.value is not None:
    # Before hours of work.
    docs_dir = folders.output_path(_DOCS_DIR.value, 'docs_dir')
    record.find_pages(docs_dir, settings.fast)
  if _EXPERIMENT.value == _ALL:
    summaries = paper.run_all(selected, settings, rerun=_RERUN.value)
  else:
    summaries = [paper.run(selected[0], settings, rerun=_RERUN.value)]
  rows = paper.all_claims(summaries)
  print(claims.table(rows))
  print(f'\n{claims.count(row["verdict"] for row in rows)}.')
  print(f'Results: {settings.directory}')
  if _DOCS_DIR.value is not None:
    record.update(
      _DOCS_DIR.value, summaries, settings.directory, papers.EXPERIMENTS
    )
  failed = [s for s in summaries if 'error' in s]
  if failed:
    raise errors.RunError(
      '. '.join(f'{s["experiment"]} did not run: {s["error"]}' for s in failed)
    )


if __name__ == '__main__':
  program.run(main)
