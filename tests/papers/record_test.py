"""Results in the documentation; `docs_test` has the pages themselves."""

import types

import pytest

from binaries import papers
from binaries.papers import record
from tff_pfl.studies import page as page_lib
from tff_pfl.studies import study, trials

_NUMBERS = {'measured': 0.12345, 'low': 0.1, 'high': 0.2, 'num_seeds': 5}
_CLAIM = {'statement': 'A is better than B', 'source': 'Table 1', **_NUMBERS}
_CLAIM.update(threshold='> 0', verdict='holds', is_ours=False)
_FAILED = {**_CLAIM, 'low': None, 'measured': None, 'verdict': 'fails'}
_RECORD = {'study': 'first', 'source': 'Table 1', 'datasets': ['mnist']}
_RECORD.update(size='mnist, 1 client', seeds=[0, 1, 2, 3, 4], seconds=5400)
_RECORD['overrides'] = {'num_rounds': 3, 'sizes': [2, 5]}
_RECORD['claims'] = [_CLAIM, _FAILED, {**_CLAIM, 'is_ours': True}]
_STUDY = study.Study(
  settings={'dataset': 'mnist', 'num_clients': 1},
  methods=['fed_avg', 'fed_rep'],
  conditions={'iid': {'partition': 'iid'}, 'digits': {'dataset': 'digits'}},
  **{'seeds': range(5), 'name': 'first', 'source': 'Table 1'},
)
_STUDIES = {'first': _STUDY}
_TABLE = """<!-- claims: first -->
**1 of 2 claims hold, 1 fail; ours: 1 of 1 claims hold** (5 seeds): `python -m \
binaries.reproduce --study=first --set=num_rounds=3 '--set=sizes=[2, 5]' \
--data_dir=DIR`

| claim | measured | bound | |
|---|---|---|---|
| A is better than B | 0.123 [0.1, 0.2] | > 0 | holds |
| A is better than B | nan | > 0 | fails |
| A is better than B (ours) | 0.123 [0.1, 0.2] | > 0 | holds |
<!-- end of claims -->
"""


def _rewritten(text, records, studies=_STUDIES):
  return record.rewritten(text, records, studies)


def test_tables_of_claims_are_put_in_replaced_and_taken_out():
  empty = 'Before.\n\n<!-- claims: first -->\n\n| own | table |\n'
  full = f'Before.\n\n{_TABLE}\n| own | table |\n'
  assert _rewritten(empty, {'first': _RECORD}) == full
  assert _rewritten(full, {'first': _RECORD}) == full
  assert _rewritten(full.replace('0.123', '9'), {'first': _RECORD}) == full
  assert _rewritten(full, {}) == empty


def test_the_heading_has_what_differs_and_what_is_decided():
  decided = [{**_CLAIM, 'p_value': p} for p in (0.2, 0.001)]
  other = {**_RECORD, 'datasets': [], 'overrides': {}, 'claims': decided}
  other.update(seeds=[7, 8], commit='0123456789')
  text = _rewritten('<!-- claims: first -->\n', {'first': other})
  assert (
    "(2 seeds, at 0123456; 1 comparisons are also decided with Holm's "
    'correction): `python -m binaries.reproduce --study=first --seeds=7,8`\n'
  ) in text
  # What has only its record is told with the last commit that has the code.
  text = _rewritten('<!-- claims: first -->\n', {'first': other}, {})
  assert '--experiment=first`, whose code runs at commit' in text


def test_a_record_has_what_is_not_as_at_its_scale():
  linear, table = (
    papers.STUDIES[name] for name in ('fedsplit_convergence', 'fedrep_table_1')
  )
  for of, changes in (
    (linear, {'step_size': 4.5e-7}),
    (table, {'num_rounds': 100, 'momentum': 0.25}),
  ):
    usual = of.at('cpu')
    changed = usual.with_settings(**changes, data_dir='here')
    kept = record._record({**_described(changed), 'settings': {}}, usual)
    assert kept['overrides'] == changes


def _described(study):
  return dict.fromkeys(('seconds', 'versions', 'commit', 'claims')) | {
    **{name: getattr(study, name) for name in ('name', 'source', 'seeds')},
    **{n: trials.plain(getattr(study, n)) for n in ('parameters', 'overrides')},
  }


def test_the_table_of_coverage_counts_the_papers_claims_and_ours():
  marks = '<!-- coverage -->\n<!-- end of coverage -->'
  lines = _rewritten(marks, {'first': _RECORD}).splitlines()
  count = '1 of 2 claims hold, 1 fail; ours: 1 of 1 claims hold'
  assert lines[1].startswith(f'**{count}**, measured in 2 hours')
  assert lines[-2].endswith(f'mnist, 1 client, 5 seeds | {count} | 90 min |')


def test_the_table_of_studies_has_conditions_and_data():
  marks = '<!-- studies -->\n<!-- end of studies -->'
  lines = _rewritten(marks, {}).splitlines()
  assert lines[-2] == (
    '| `first` | Table 1 | `iid`<br>`digits` | 2, 5 seeds | `mnist` |'
  )


def test_records_pages_and_pictures_are_brought_up_to_date(tmp_path):
  docs, folder = tmp_path / 'docs', tmp_path / 'first'
  docs.mkdir()
  folder.mkdir()
  (folder / page_lib.FIGURE_NAME).write_bytes(b'picture')
  page = docs / 'page.md'
  page.write_text('<!-- claims: first -->\n\n![Picture](first.png)\n')
  settings = {'dataset': 'mnist', 'num_clients': 1, 'num_rounds': 30}
  description = {**_RECORD, 'name': 'first', 'settings': settings}
  description.update(parameters=None, versions={}, commit=None)
  results = types.SimpleNamespace(description=description)
  results.directory = str(folder)
  record.update(str(docs), [results], _STUDIES)
  assert page.read_text().startswith(_TABLE)
  assert (docs / 'first.png').read_bytes() == b'picture'
  (stored,) = record.read(str(docs)).values()
  assert stored['size'] == 'mnist, 1 client, 30 rounds'
  with pytest.raises(ValueError, match='given at scale cpu'):
    record.find_pages(str(docs), 'small')
