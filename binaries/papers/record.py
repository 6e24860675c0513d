"""The experiments' results in the documentation, made of what they wrote.

`records/NAME.json` in the folder of the results' pages has what an experiment
at full size came to: its claims and sizes. From the records come the tables of
claims on the pages (after `<!-- claims: NAME -->`) and the table of coverage.
An experiment that is no longer in the registry keeps its record, and the pages
name the last commit with its code.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from tff_pfl import errors
from tff_pfl.datasets import registry
from tff_pfl.runs import summary as summary_lib

from .engine import claims, paper

_RECORDS = 'records'
_KEPT = (
  'experiment',
  'dataset',
  'seed',
  'setup',
  'seconds',
  'versions',
  'commit',
  'claims',
)
_END = '<!-- end of claims -->'
_COVERAGE, _END_OF_COVERAGE = '<!-- coverage -->', '<!-- end of coverage -->'
# The last commit with the code of experiments that only have records now.
_LAST_COMMIT = '80dc5961'
# Of an experiment's sizes, what the table of coverage tells.
_SIZES = {
  'num_clients': 'clients',
  'nums_clients': 'clients',
  'model': '',
  'num_rounds': 'rounds',
  'num_epochs': 'local epochs',
  'local_epochs': 'local epochs',
  'nums_local_steps': 'local steps',
}


def find_pages(docs_dir: str, fast: bool) -> list[pathlib.Path]:
  """Returns the pages of results; `ValueError` if none can be updated.

  Args:
    fast: True for experiments of small sizes, which no page shows.
  """
  errors.expect(not fast, 'docs_dir', 'given without fast', True)
  pages = sorted(pathlib.Path(docs_dir).glob('*.md'))
  errors.expect(pages, 'docs_dir', "the folder of the results' pages", docs_dir)
  return pages


def update(
  docs_dir: str,
  summaries: Sequence[Mapping[str, Any]],
  results_dir: str,
  experiments: Mapping[str, paper.Experiment],
) -> None:
  """Brings pages, records and pictures up to date.

  Args:
    docs_dir: Folder of the pages.
    summaries: Summary from `paper.run` of each experiment that ran.
    results_dir: Folder of their folders.
    experiments: All in the registry, by name.

  Raises:
    ValueError: If an experiment ran at a small size.
  """
  ran = [summary for summary in summaries if 'error' not in summary]
  pages = find_pages(docs_dir, any(summary['fast'] for summary in ran))
  shown = '\n'.join(page.read_text('utf-8') for page in pages)
  os.makedirs(os.path.join(docs_dir, _RECORDS), exist_ok=True)
  for summary in ran:
    name = summary['experiment']
    summary_lib.write_json(
      os.path.join(docs_dir, _RECORDS, f'{name}.json'),
      {key: summary.get(key) for key in _KEPT},
    )
    if f'({name}.png)' in shown:
      shutil.copyfile(
        os.path.join(results_dir, name, paper.FIGURE_NAME),
        os.path.join(docs_dir, f'{name}.png'),
      )
  records = read(docs_dir)
  for page in pages:
    text = page.read_text('utf-8')
    page.write_text(rewritten(text, records, experiments), 'utf-8')


def read(docs_dir: str) -> dict[str, Mapping[str, Any]]:
  """All records by the names of the experiments."""
  paths = sorted(pathlib.Path(docs_dir, _RECORDS).glob('*.json'))
  return {path.stem: json.loads(path.read_text('utf-8')) for path in paths}


def rewritten(
  text: str,
  records: Mapping[str, Mapping[str, Any]],
  experiments: Mapping[str, paper.Experiment],
) -> str:
  """A page with its tables made anew.

  Args:
    text: The page.
    records: Records by the experiments' names.
    experiments: All in the registry, by name.
  """
  text = re.sub(
    rf'<!-- claims: (\w+) -->\n(?:\*\*(?:.|\n)*?{_END}\n)?',
    lambda found: _claims(found[1], records, experiments),
    text,
  )
  coverage = '\n'.join(_coverage(records, experiments))
  return re.sub(
    rf'{_COVERAGE}\n(?:.|\n)*?{_END_OF_COVERAGE}',
    lambda _: f'{_COVERAGE}\n{coverage}\n{_END_OF_COVERAGE}',
    text,
  )


def _claims(name, records, experiments):
  marker = f'<!-- claims: {name} -->\n'
  if name not in records:
    return marker
  record = records[name]
  conditions = f'{record["claims"][0]["num_seeds"]} seeds'
  if record.get('commit'):
    conditions += f', at {record["commit"][:7]}'
  decided = claims.decided_by_holm(record['claims'])
  if decided is not None:
    conditions += (
      f"; {decided} comparisons are decided with Holm's correction, too"
    )
  experiment = experiments.get(name)
  code = f'`{_command(name, record, experiment)}`'
  if experiment is None:
    code += f', whose code runs at commit {_LAST_COMMIT}'
  lines = [
    f'**{_count(record)}** ({conditions}): {code}',
    '',
    '| claim | measured | wanted | |',
    '|---|---|---|---|',
  ]
  for claim in record['claims']:
    cells = [
      claim['statement'],
      claims.number(claim),
      claim['threshold'],
      claim['verdict'],
    ]
    lines.append(f'| {" | ".join(cells)} |')
  return marker + '\n'.join([*lines, _END, ''])


def _command(name, record, experiment):
  command = f'python -m binaries.reproduce --experiment={name}'
  if record['dataset']:
    command += f' --dataset={record["dataset"]}'
  dataset = _dataset(record, experiment)
  if dataset and registry.DATASETS[dataset].takes_data_dir:
    command += ' --data_dir=DIR'
  if experiment is None:
    return command
  num_seeds = record['claims'][0]['num_seeds']
  if num_seeds != next(iter(experiment.full.values())).num_seeds:
    command += f' --num_seeds={num_seeds}'
  if record['seed'] != experiment.first_seed:
    command += f' --seed={record["seed"]}'
  return command


def _dataset(record, experiment):
  """The one that was asked for, or the experiment's own; None for generated."""
  if experiment is None:
    return record['setup']['dataset']
  return record['dataset'] or next(iter(experiment.full))


def _count(record):
  return claims.count(claim['verdict'] for claim in record['claims'])


def _coverage(records, experiments):
  """The lines of the table of coverage."""
  every_claim = {'claims': sum((r['claims'] for r in records.values()), [])}
  hours = sum(r['seconds'] or 0 for r in records.values()) / 3600
  yield (
    f'**{_count(every_claim)}** of the experiments that were measured, in '
    f'{hours:.0f} hours.\n'
  )
  yield '| paper, figure or table | experiment | size | k of n hold | time |'
  yield '|---|---|---|---|---|'
  for name, experiment in experiments.items():
    record = records.get(name)
    dataset, sizes = next(iter(experiment.full.items()))
    setup = vars(sizes)
    if record is not None:
      dataset, setup = _dataset(record, experiment), record['setup'] or setup
    yield _row(experiment.paper, f'`{name}`', dataset, setup, record)
  for name, record in records.items():
    if name not in experiments:
      sources = '; '.join(dict.fromkeys(c['source'] for c in record['claims']))
      setup = record['setup']
      at = f'`{name}`, at {_LAST_COMMIT}'
      yield _row(sources, at, setup['dataset'], setup, record)


def _row(source, name, dataset, setup, record):
  """A line of the table of coverage; without a record it is not measured."""
  result, time = 'not measured yet', ''
  if record is not None:
    result = _count(record)
    if record['seconds'] is not None:
      minutes = record['seconds'] / 60
      time = f'{minutes / 60:.1f} h' if minutes > 90 else f'{minutes:.0f} min'
  size = ', '.join([dataset or 'generated', *_sizes(setup)])
  return f'| {" | ".join([source, name, size, result, time])} |'


def _sizes(setup):
  for name, words in _SIZES.items():
    if name in setup:
      value = setup[name]
      if isinstance(value, Mapping):
        value = list(value.values())
      if not isinstance(value, (str, int)):
        value = ' to '.join(map(str, (value[0], value[-1])[: len(value)]))
      if value == 1:
        words = words.removesuffix('s')
      yield f'{value} {words}'.strip()
  yield f'{setup["num_seeds"]} seeds'
