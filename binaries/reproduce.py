r"""Repeats the papers' tables and figures, and runs your own studies.

    python -m binaries.reproduce --list
    python -m binaries.reproduce --study=fedrep_linear_convergence
    python -m binaries.reproduce --study=all --scale=small
    python -m binaries.reproduce --study=fedrep_table_1 --scale=paper \
      --conditions='CIFAR-10, 2 classes' --methods=FedRep,FedAvg --seeds=0,1 \
      --data_dir=DIR
    python -m binaries.reproduce --study=my_table.py

A study compares methods in conditions, with several seeds, and checks claims. A
claim has the paper's statement and its place, the number that it is reduced to,
and a verdict: the claim holds, fails or is undecided. If a claim compares
methods, the 95% interval of the difference over at least five seeds decides. A
study's folder below --output_dir gets a page (`study.html`), a picture
(`figure.png`), the numbers (`numbers.csv`) and all else (`study.json`).

Scales: `paper` has the paper's settings, with data that you bring (--data_dir),
mostly for a GPU. `cpu` is the scale of the documentation's results. `small`
shows that everything runs, on generated or bundled data, and decides few claims
(an hour or two for all studies).

Your own file has studies (`pfl.Study`) in its variables. The trials know the
methods that it registers.

A claim that fails is a result: the exit status is 1 only if a study could not
run. Finished trials do not run again, and you can add methods, conditions or
seeds later. --rerun starts from scratch. --set changes settings,
hyperparameters or parameters:

    python -m binaries.reproduce --study=fedrep_linear_samples \
      --set=num_rounds=1000 --set=learning_rate=0.1 --output_dir=runs/slow
"""

import ast
import contextlib
import csv
import dataclasses
import os
import sys

import tqdm
from absl import flags

from tff_pfl import errors
from tff_pfl.runs import summary
from tff_pfl.studies import claims
from tff_pfl.studies import study as study_lib
from tff_pfl.system import folders, user_modules

from . import made_flags, papers, program, runtime_flags
from .papers import record

_ALL = 'all'

_STUDY = flags.DEFINE_string(
  'study',
  None,
  f'Name of a study (see --list), {_ALL}, or a .py file that has studies.',
)
_LIST = flags.DEFINE_bool('list', False, 'List the studies and exit.')
_SCALE = flags.DEFINE_enum(
  'scale',
  'cpu',
  list(study_lib.SCALES),
  "Sizes of the study: the paper's, sizes for a CPU as in the documentation's "
  'results, or small ones that only show that everything runs.',
)
_METHODS = flags.DEFINE_string(
  'methods', None, "Methods of a single study to run, by the study's names."
)
_CONDITIONS = flags.DEFINE_string(
  'conditions',
  None,
  "Conditions of a single study to run, by the study's names. If there are "
  'several, put a name with a comma in quotation marks.',
)
_SEEDS = flags.DEFINE_list(
  'seeds', None, "Seeds (default: the study's own, five or more)."
)
_SET = flags.DEFINE_multi_string(
  'set',
  [],
  'NAME=VALUE: another value for a setting, hyperparameter or parameter of a '
  'single study, such as num_rounds=500, model=resnet_18 or '
  'nums_clients=[50,100]. May be repeated.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  "Folder of the studies' folders (default: runs/reproduce_SCALE).",
)
_RERUN = flags.DEFINE_bool(
  'rerun', False, "Delete a study's earlier results and run it again."
)
_DOCS_DIR = flags.DEFINE_string(
  'docs_dir',
  None,
  "Folder of the results' pages (docs/results) whose records, tables of claims "
  'and pictures are updated with the results, at --scale=cpu.',
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, 'Folder with the files of datasets that need files.'
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes',
  None,
  'Training runs at the same time, each in its own process (default: one per '
  'usable CPU core). 0 runs them one after another in this process, which is '
  'the default with --scale=small.',
  lower_bound=0,
)
runtime_flags.define_cluster()
flags.adopt_module_key_flags(runtime_flags)
flags.adopt_module_key_flags(program)


def _of_file(path):
  """The studies in a file's variables."""
  errors.expect(os.path.isfile(path), '--study', 'a file', path)
  path = os.path.abspath(path)
  (module,) = user_modules.load([path])
  studies, seen = {}, []
  for variable, value in vars(module).items():
    for one in value if isinstance(value, (list, tuple)) else [value]:
      # Several variables may have the same study.
      is_new = not any(one is other for other in seen)
      if isinstance(one, study_lib.Study) and is_new:
        seen.append(one)
        # A study without a name gets the name of its variable.
        name = variable if one.name == study_lib.Study.name else one.name
        errors.expect(
          name not in studies, '--study', 'a file with distinct names', name
        )
        modules = (*one.modules, path)
        studies[name] = dataclasses.replace(one, name=name, modules=modules)
  errors.expect(studies, '--study', 'a file that has a pfl.Study', path)
  return list(studies.values())


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
  """The names in a flag: a single name, or several separated by commas."""
  if text is None or text in map(str, known):
    return None if text is None else [text]
  (names,) = csv.reader([text], skipinitialspace=True)
  return names


def _with_flags(studies):
  """The studies at the scale, with the selections and values of the flags."""
  single = {
    '--methods': _METHODS.value,
    '--conditions': _CONDITIONS.value,
    '--set': _SET.value or None,
  }
  present = [flag for flag, value in single.items() if value is not None]
  if present and len(studies) > 1:
    raise ValueError(
      f'Expected {present[0]} with one study, found {len(studies)} studies.'
    )
  values = {}
  for text in _SET.value:
    name, equals, value = text.partition('=')
    errors.expect(equals, '--set', 'NAME=VALUE', text)
    values[name] = value
    # Python's literals lack inf.
    for parse in (float, ast.literal_eval):
      with contextlib.suppress(SyntaxError, ValueError):
        values[name] = parse(value)
  seeds = _SEEDS.value
  if seeds is not None:
    seeds = made_flags.integers('--seeds', seeds, 0)
  selected = []
  for study in studies:
    modules = (*study.modules, *program.MODULES.value)
    study = dataclasses.replace(study, modules=modules).at(_SCALE.value)
    if values:
      study = study.with_settings(**values)
    selected.append(
      study.select(
        methods=_names(_METHODS.value, study.methods),
        conditions=_names(_CONDITIONS.value, study.conditions),
        seeds=seeds,
      )
    )
  return selected


def _run_all(studies, directory):
  """Runs studies one after another, even after one has failed."""
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
      rows = results.description.get('claims', [])
      outcome = {'claims': rows, 'results': results}
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
  """Runs the studies and prints their tables and claims."""
  if _LIST.value:
    rows = [
      (one.name, one.source, one.summary) for one in papers.STUDIES.values()
    ]
    names = ['study', 'source', 'what is checked']
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
    # Fails before hours of work.
    record.find_pages(_DOCS_DIR.value, _SCALE.value)
    errors.expect(
      all(study.name in papers.STUDIES for study in studies),
      '--docs_dir',
      "given for the papers' studies",
      _STUDY.value,
    )
    for flag in (_METHODS, _CONDITIONS):
      errors.expect(
        flag.value is None,
        f'--{flag.name}',
        'left out with --docs_dir, which takes whole studies',
        flag.value,
      )
  ran = _run_all(studies, directory)
  for name, one in ran.items():
    # All studies of the papers have claims.
    if len(studies) == 1 or (name not in papers.STUDIES and 'results' in one):
      print(one['results'].table())
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
    results = [one['results'] for one in ran.values() if 'results' in one]
    record.update(_DOCS_DIR.value, results, papers.STUDIES)
  failed = [f'{n}: {one["error"]}' for n, one in ran.items() if 'error' in one]
  if failed:
    raise errors.RunError('. '.join(failed))


if __name__ == '__main__':
  program.run_program(main)
