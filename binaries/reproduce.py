r"""Repeats the papers' tables and figures, and runs studies of one's own.

    python -m binaries.reproduce --list
    python -m binaries.reproduce --study=fedrep_linear_convergence
    python -m binaries.reproduce --study=all --scale=small
    python -m binaries.reproduce --study=fedrep_table_1 --scale=paper \
      --conditions='CIFAR-10, 2 classes' --methods=FedRep,FedAvg --seeds=0,1 \
      --data_dir=DIR
    python -m binaries.reproduce --study=my_table.py

A study compares methods in conditions, with several seeds, and checks claims:
the paper's statement and its place, the number it was reduced to, and the
verdict: the claim holds, fails or is undecided. Where methods are compared, the
95% interval of the difference over at least five seeds decides. A study's
folder below --output_dir gets its page (`study.html`), its picture
(`figure.png`), its numbers (`numbers.csv`) and all else (`study.json`).

Scales: `paper` has the paper's settings, with data that you bring (--data_dir),
mostly for a GPU; `cpu` is what the documentation's results are of; `small`
shows that everything runs, on generated or bundled data, and decides few
claims (an hour or two for all studies).

A file of your own has studies, `pfl.Study`, in its variables. Methods that it
registers are known to the trials.

A claim that fails is a result: the exit status is 1 only if a study could not
run. What has ended is not run again, and more methods, conditions or seeds may
be given later; --rerun starts anew. --set gives other settings,
hyperparameters or parameters:

    python -m binaries.reproduce --study=fedrep_linear_samples \
      --set=num_rounds=1000 --set=learning_rate=0.1 --output_dir=runs/slow
"""

import ast
import csv
import dataclasses
import os
import sys

import tqdm
from absl import flags

from tff_pfl import errors
from tff_pfl.runs import summary
from tff_pfl.studies import claims, trial
from tff_pfl.studies import study as study_lib
from tff_pfl.system import folders

from . import papers, program, runtime_flags
from .papers import record

_ALL = 'all'

_STUDY = flags.DEFINE_string(
  'study',
  None,
  f'Name of a study (see --list), {_ALL}, or a .py file that has studies.',
)
_LIST = flags.DEFINE_bool('list', False, 'List the studies and end.')
_SCALE = flags.DEFINE_enum(
  'scale',
  'cpu',
  list(study_lib.SCALES),
  "Sizes: the paper's; those of the documentation's results, for a CPU; or "
  'small ones, which show that everything runs.',
)
_METHODS = flags.DEFINE_string(
  'methods', None, "Methods to run, of one study, by the study's names."
)
_CONDITIONS = flags.DEFINE_string(
  'conditions',
  None,
  "Conditions to run, of one study, by the study's names; a name with a comma "
  'in quotation marks if there are several.',
)
_SEEDS = flags.DEFINE_list(
  'seeds', None, "Seeds (default: the study's own, five or more)."
)
_SET = flags.DEFINE_multi_string(
  'set',
  [],
  'NAME=VALUE: another value of a setting, hyperparameter or parameter of one '
  'study, such as num_rounds=500, model=resnet_18 or nums_clients=[50,100]. '
  'May be repeated.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  "Folder of the studies' folders (default: runs/reproduce_SCALE).",
)
_RERUN = flags.DEFINE_bool(
  'rerun', False, "Delete a study's earlier results and run it anew."
)
_DOCS_DIR = flags.DEFINE_string(
  'docs_dir',
  None,
  "Folder of the results' pages (docs/results) whose records, tables of claims "
  'and pictures are to show what was run, at --scale=cpu.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "Folder with the data sets' files, for those that have any."
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  None,
  'Training runs at the same time, each in a process of its own (default: one '
  'on each usable CPU core); 0: one after another in this process, the default '
  'with --scale=small.',
  lower_bound=0,
)
runtime_flags.define_cluster()
flags.adopt_module_key_flags(runtime_flags)
flags.adopt_module_key_flags(program)


def _of_file(path):
  """The studies that a file's variables hold."""
  errors.expect(os.path.isfile(path), '--study', 'a file', path)
  path = os.path.abspath(path)
  (module,) = trial.import_modules([path])
  found = {}
  for variable, value in vars(module).items():
    for one in value if isinstance(value, (list, tuple)) else [value]:
      if isinstance(one, study_lib.Study) and one not in found.values():
        # One without a name has that of its variable.
        name = variable if one.name == study_lib.Study.name else one.name
        errors.expect(
          name not in found, '--study', 'a file of names that differ', name
        )
        modules = (*one.modules, path)
        found[name] = dataclasses.replace(one, name=name, modules=modules)
  errors.expect(found, '--study', 'a file that has a pfl.Study', path)
  return list(found.values())


def _selected_studies():
  name = _STUDY.value
  if name is None:
    raise ValueError(
      f'Expected --study=NAME, --study={_ALL} or --list, found none of them.'
    )
  if name == _ALL:
    return list(papers.STUDIES.values())
  if name.endswith('.py'):
    return _of_file(name)
  errors.expect_one_of('study', name, papers.STUDIES)
  return [papers.STUDIES[name]]


def _names(text, known):
  """The names in a flag: one as it is, or several with commas between."""
  if text is None or text in map(str, known):
    return None if text is None else [text]
  (names,) = csv.reader([text], skipinitialspace=True)
  return names


def _with_flags(studies):
  """The studies at the scale, with what the flags select and set."""
  single = {
    '--methods': _METHODS.value,
    '--conditions': _CONDITIONS.value,
    '--set': _SET.value or None,
  }
  given = [flag for flag, value in single.items() if value is not None]
  if given and len(studies) > 1:
    raise ValueError(
      f'Expected {given[0]} with one study, found {len(studies)} studies.'
    )
  values = {}
  for text in _SET.value:
    name, equals, value = text.partition('=')
    errors.expect(equals, '--set', 'NAME=VALUE', text)
    try:
      values[name] = ast.literal_eval(value)
    except (SyntaxError, ValueError):
      values[name] = value
  for text in _SEEDS.value or ():
    errors.expect(text.isdecimal(), '--seeds', 'non-negative integers', text)
  seeds = None if _SEEDS.value is None else map(int, _SEEDS.value)
  seeds = seeds and tuple(seeds)
  found = []
  for study in studies:
    study = study.at(_SCALE.value)
    if values:
      study = study.with_settings(**values)
    found.append(
      study.select(
        methods=_names(_METHODS.value, study.methods),
        conditions=_names(_CONDITIONS.value, study.conditions),
        seeds=seeds,
      )
    )
  return found


def _run_all(studies, directory):
  """Runs studies one after another; one that fails does not stop others."""
  num_processes = _NUM_PROCESSES.value
  if num_processes is None and _SCALE.value == 'small':
    num_processes = 0
  ran = {}
  bar = tqdm.tqdm(
    studies,
    desc='studies',
    unit='study',
    disable=len(studies) == 1,
    dynamic_ncols=True,
  )
  for study in bar:
    bar.set_postfix_str(study.name)
    outcome = {'claims': []}
    try:
      results = study.run(
        os.path.join(directory, study.name),
        num_processes=num_processes,
        cluster=runtime_flags.selected_cluster(),
        runtime=runtime_flags.selected_runtime(),
        runtime_options=runtime_flags.options(),
        data_dir=_DATA_DIR.value,
        rerun=_RERUN.value,
      )
      found = results.description.get('claims', [])
      outcome = {'claims': found, 'results': results}
      for first in results.failures[:1]:
        outcome['error'] = (
          f'{len(results.failures)} trials failed, such as {first["trial"]}: '
          f'{first["reason"]}'
        )
    except errors.EXPECTED as error:
      if len(studies) == 1:
        raise
      outcome['error'] = errors.reason(error)
    ran[study.name] = outcome
    if len(studies) > 1:
      text = outcome.get('error') or claims.count_all(outcome['claims'])
      tqdm.tqdm.write(f'{study.name}: {text}', file=sys.stderr)
  return ran


def main() -> None:
  """Runs the studies, prints their tables and claims."""
  if _LIST.value:
    rows = [
      (one.name, one.source, one.summary, ', '.join(one.scales) or 'cpu')
      for one in papers.STUDIES.values()
    ]
    names = ['study', 'source', 'what is checked', 'scales']
    print(summary.format_table(rows, names))
    return
  studies = _with_flags(_selected_studies())
  directory = folders.output_path(
    os.path.join('runs', f'reproduce_{_SCALE.value}')
    if _OUTPUT_DIR.value is None
    else _OUTPUT_DIR.value,
    'output_dir',
  )
  if _DOCS_DIR.value is not None:
    # Before hours of work.
    record.find_pages(_DOCS_DIR.value, _SCALE.value)
  ran = _run_all(studies, directory)
  if len(studies) == 1:
    print(ran[studies[0].name]['results'].table())
  rows = [
    {'study': name, **row} for name, one in ran.items() for row in one['claims']
  ]
  if rows:
    print(claims.table(rows))
    print(f'\n{claims.count_all(rows)}.')
    if _SCALE.value == 'small':
      print('At scale small everything runs, but verdicts mean little.')
  print(f'Results: {directory}')
  if _DOCS_DIR.value is not None:
    found = [one['results'] for one in ran.values() if 'results' in one]
    record.update(_DOCS_DIR.value, found, papers.STUDIES)
  failed = [f'{n}: {one["error"]}' for n, one in ran.items() if 'error' in one]
  if failed:
    raise errors.RunError('. '.join(failed))


if __name__ == '__main__':
  program.run(main)
