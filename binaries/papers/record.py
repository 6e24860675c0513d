"""Writes the studies' results to the pages of the documentation.

`records/NAME.json` in the folder of the results' pages has the results of a
study at scale `cpu`: its claims, with their numbers by seed. The tables of
claims on the pages (after `<!-- claims: NAME -->`) and the table of coverage
are made from the records. A study that was removed keeps its record, and the
pages name the last commit with its code.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from tff_pfl import errors
from tff_pfl.datasets import registry
from tff_pfl.runs import summary as summary_lib
from tff_pfl.studies import claims, results, trials
from tff_pfl.studies import page as page_lib
from tff_pfl.studies import study as study_lib

_RECORDS = 'records'
_SCALE = 'cpu'
_END = '<!-- end of claims -->'
# The last commit with the code of studies that now only have records.
_LAST_COMMIT = '80dc5961'
# The settings of a study that the table of coverage shows.
_SIZES = {
  'num_clients': 'clients',
  'model': '',
  'num_rounds': 'rounds',
  'num_epochs': 'local epochs',
}


def find_pages(docs_dir: str, scale: str) -> list[pathlib.Path]:
  """Returns the pages of results.

  Args:
    scale: Scale of the studies, of which the pages only show `cpu`.

  Raises:
    ValueError: If the scale is another one, or there are no pages.
  """
  errors.expect(scale == _SCALE, 'docs_dir', f'given at scale {_SCALE}', scale)
  pages = sorted(pathlib.Path(docs_dir).glob('*.md'))
  errors.expect(pages, 'docs_dir', "the folder of the results' pages", docs_dir)
  return pages


def update(
  docs_dir: str,
  found: Sequence[results.Results],
  studies: Mapping[str, study_lib.Study],
) -> None:
  """Updates pages, records and pictures.

  Args:
    docs_dir: Folder of the pages.
    found: Results of studies.
    studies: All of the papers' studies, by name.
  """
  pages = find_pages(docs_dir, _SCALE)
  shown = '\n'.join(page.read_text('utf-8') for page in pages)
  os.makedirs(os.path.join(docs_dir, _RECORDS), exist_ok=True)
  for one in found:
    name = one.description['name']
    record = _record(one.description, studies[name].at(_SCALE))
    summary_lib.write_json(
      os.path.join(docs_dir, _RECORDS, f'{name}.json'), record
    )
    if f'({name}.png)' in shown:
      shutil.copyfile(
        os.path.join(one.directory, page_lib.FIGURE_NAME),
        os.path.join(docs_dir, f'{name}.png'),
      )
  records = read(docs_dir)
  for page in pages:
    text = page.read_text('utf-8')
    page.write_text(rewritten(text, records, studies), 'utf-8')


def _record(description, study):
  sizes = {**description['settings'], **(description['parameters'] or {})}
  datasets = [sizes['dataset']] if 'dataset' in sizes else []
  usual = trials.as_written(
    {**trials.plain(study.parameters or {}), **trials.plain(study.overrides)}
  )
  chosen = {**(description['parameters'] or {}), **description['overrides']}
  return {
    'study': description['name'],
    'source': description['source'],
    'datasets': datasets,
    'size': ', '.join([*(datasets or ['generated']), *_sizes(sizes)]),
    'overrides': {
      name: value
      for name, value in chosen.items()
      if name not in ('data_dir', 'runtime')
      and (name not in usual or value != usual[name])
    },
    **{n: description[n] for n in ('seeds', 'seconds')},
    **{n: description[n] for n in ('versions', 'commit', 'claims')},
  }


def _sizes(sizes):
  if sizes.get('nums_clients'):
    numbers = sizes['nums_clients']
    yield f'{numbers[0]} to {numbers[-1]} clients'
  for name, words in _SIZES.items():
    if isinstance(sizes.get(name), (str, int)):
      is_one = sizes[name] == 1
      words = words.removesuffix('s') if is_one else words
      yield f'{sizes[name]} {words}'.strip()


def read(docs_dir: str) -> dict[str, Mapping[str, Any]]:
  """All records, by the name of the study."""
  paths = sorted(pathlib.Path(docs_dir, _RECORDS).glob('*.json'))
  return {path.stem: json.loads(path.read_text('utf-8')) for path in paths}


def rewritten(
  text: str,
  records: Mapping[str, Mapping[str, Any]],
  studies: Mapping[str, study_lib.Study],
) -> str:
  """A page with its tables written again.

  Args:
    text: The page.
    records: Records, by the name of the study.
    studies: All of the papers' studies, by name.
  """
  text = re.sub(
    rf'<!-- claims: (\w+) -->\n(?:\*\*(?:.|\n)*?{_END}\n)?',
    lambda match: _claims(match[1], records, studies),
    text,
  )
  for name, lines in (
    ('coverage', _coverage(records, studies)),
    ('studies', _tables(studies)),
  ):
    start, end = f'<!-- {name} -->', f'<!-- end of {name} -->'
    table = '\n'.join([start, *lines, end])
    text = re.sub(
      rf'{start}\n(?:.|\n)*?{end}', lambda _, table=table: table, text
    )
  return text


def _claims(name, records, studies):
  marker = f'<!-- claims: {name} -->\n'
  if name not in records:
    return marker
  record = records[name]
  conditions = f'{len(record["seeds"])} seeds'
  if record.get('commit'):
    conditions += f', at {record["commit"][:7]}'
  decided = claims.decided_by_holm(record['claims'])
  if decided is not None:
    conditions += (
      f"; {decided} comparisons are also decided with Holm's correction"
    )
  code = f'`{_command(name, record, studies.get(name))}`'
  if name not in studies:
    code += f', whose code runs at commit {_LAST_COMMIT}'
  lines = [
    f'**{claims.count_all(record["claims"])}** ({conditions}): {code}',
    '',
    '| claim | measured | bound | |',
    '|---|---|---|---|',
  ]
  for claim in record['claims']:
    cells = [
      claim['statement'] + ' (ours)' * claim['is_ours'],
      claims.number(claim),
      claim['threshold'],
      claim['verdict'],
    ]
    lines.append(f'| {" | ".join(cells)} |')
  return marker + '\n'.join([*lines, _END, ''])


def _command(name, record, study):
  flag = '--study' if study else '--experiment'
  command = f'python -m binaries.reproduce {flag}={name}'
  for key, value in record['overrides'].items():
    command += ' ' + shlex.quote(f'--set={key}={value}')
  if any(registry.DATASETS[one].takes_data_dir for one in record['datasets']):
    command += ' --data_dir=DIR'
  if study and tuple(record['seeds']) != study.at(_SCALE).seeds:
    command += f' --seeds={",".join(map(str, record["seeds"]))}'
  return command


def _coverage(records, studies):
  every_claim = sum((record['claims'] for record in records.values()), [])
  hours = sum(record['seconds'] or 0 for record in records.values()) / 3600
  count = claims.count_all(every_claim)
  yield f'**{count}**, measured in {hours:.0f} hours.\n'
  yield '| paper, figure or table | study | size | k of n hold | time |'
  yield '|---|---|---|---|---|'
  for name, study in studies.items():
    yield _row(study.source, f'`{name}`', records.get(name))
  for name, record in records.items():
    if name not in studies:
      sources = '; '.join(dict.fromkeys(c['source'] for c in record['claims']))
      yield _row(sources, f'`{name}`, at {_LAST_COMMIT}', record)


def _row(source, name, record):
  """A line of the table of coverage, not measured without a record."""
  size, result, time = '', 'not measured yet', ''
  if record is not None:
    size = f'{record["size"]}, {len(record["seeds"])} seeds'
    result = claims.count_all(record['claims'])
    if record['seconds'] is not None:
      minutes = record['seconds'] / 60
      time = f'{minutes / 60:.1f} h' if minutes > 90 else f'{minutes:.0f} min'
  return f'| {" | ".join([source, name, size, result, time])} |'


def _tables(studies):
  """Yields the lines of the table of studies with the papers' settings."""
  yield '| study | repeats | conditions | methods, seeds | data |'
  yield '|---|---|---|---|---|'
  for name, study in studies.items():
    study = study.at('paper')
    datasets = {}
    for condition in study.conditions if study.methods else ():
      settings = study.settings_of(condition, study.method_names[0], 0)
      datasets[settings.data.name] = registry.DATASETS[settings.data.name]
    files = [f'`{one}`' for one, its in datasets.items() if its.takes_data_dir]
    numbers = f'{len(study.seeds)} seed' + 's' * (len(study.seeds) > 1)
    if study.methods:
      numbers = f'{len(study.method_names)}, {numbers}'
    if study.num_folds:
      numbers += f', {study.num_folds} folds'
    conditions = [f'`{one}`' for one in study.conditions if one != '']
    cells = [
      f'`{name}`',
      study.source,
      '<br>'.join(conditions) or 'one',
      numbers,
      ', '.join(files) or ('bundled' if datasets else 'generated'),
    ]
    yield f'| {" | ".join(cells)} |'
