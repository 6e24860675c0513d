"""Results in the documentation; `docs_test` has the pages themselves."""

import re
import types

import pytest

from binaries.papers import record

_CLAIM = {
  'statement': 'A is better than B',
  'measured': 0.12345,
  'low': 0.1,
  'high': 0.2,
  'threshold': '> 0',
  'num_seeds': 5,
  'verdict': 'holds',
}
_RECORD = {
  'dataset': 'mnist',
  'seed': 0,
  'seconds': 5400,
  'setup': {'num_seeds': 5},
  'claims': [
    _CLAIM,
    {**_CLAIM, 'low': None, 'measured': None, 'verdict': 'fails'},
  ],
}
_EXPERIMENTS = {
  'first': types.SimpleNamespace(
    paper='Table 1',
    full={'cifar10': types.SimpleNamespace(num_seeds=5)},
    first_seed=0,
  ),
}
_TABLE = """<!-- claims: first -->
**1 of 2 claims hold, 1 fail** (5 seeds): `python -m binaries.reproduce \
--experiment=first --dataset=mnist --data_dir=DIR`

| claim | measured | wanted | |
|---|---|---|---|
| A is better than B | 0.123 [0.1, 0.2] | > 0 | holds |
| A is better than B | nan | > 0 | fails |
<!-- end of claims -->
"""


def _rewritten(text, records):
  return record.rewritten(text, records, _EXPERIMENTS)


def test_tables_of_claims_are_put_in_replaced_and_taken_out():
  empty = 'Before.\n\n<!-- claims: first -->\n\n| own | table |\n'
  full = f'Before.\n\n{_TABLE}\n| own | table |\n'
  assert _rewritten(empty, {'first': _RECORD}) == full
  assert _rewritten(full, {'first': _RECORD}) == full
  assert _rewritten(full.replace('0.123', '9'), {'first': _RECORD}) == full
  assert _rewritten(full, {}) == empty


def test_a_command_has_the_seed_unless_it_is_the_experiments():
  (first,) = _EXPERIMENTS.values()
  other = types.SimpleNamespace(**{**vars(first), 'first_seed': 5})
  for seed, command in ((0, 'DIR --seed=0`'), (5, 'DIR`')):
    records = {'first': {**_RECORD, 'seed': seed}}
    table = record.rewritten(_TABLE, records, {'first': other})
    assert table == _TABLE.replace('DIR`', command)


def test_what_is_no_longer_an_experiment_keeps_its_table_and_names_a_commit():
  source = {**_CLAIM, 'source': 'Table 1'}
  other = {**source, 'source': 'Figure 2'}
  setup = {'dataset': 'mnist', 'num_seeds': 5}
  old = {**_RECORD, 'setup': setup, 'claims': [source, other]}
  page = '<!-- claims: old -->\n<!-- coverage -->\n<!-- end of coverage -->\n'
  page = _rewritten(page, {'first': _RECORD, 'old': old})
  assert page.count(record._LAST_COMMIT) == 2
  assert (
    '--experiment=old --dataset=mnist --data_dir=DIR`, whose code runs at'
  ) in page
  first, last = re.findall(r'^\|.*`(?:first|old)`.*$', page, re.MULTILINE)
  assert first.startswith('| Table 1 | `first` | mnist, 5 seeds | 1 of 2 ')
  assert last == (
    f'| Table 1; Figure 2 | `old`, at {record._LAST_COMMIT} | mnist, 5 seeds |'
    ' 2 of 2 claims hold | 90 min |'
  )
  # Its claims count with the others.
  assert '**3 of 4 claims hold, 1 fail**' in page


def test_what_ran_is_recorded_with_its_picture(tmp_path):
  docs, results = tmp_path / 'docs', tmp_path / 'results'
  (results / 'first').mkdir(parents=True)
  (results / 'first' / 'figure.png').write_bytes(b'picture')
  docs.mkdir()
  page = docs / 'page.md'
  page.write_text('<!-- claims: first -->\n![A](first.png)\n')
  summary = {
    **_RECORD,
    'experiment': 'first',
    'fast': False,
    'seed': 0,
    'versions': {},
    'result': 'not kept',
  }
  record.update(str(docs), [summary], str(results), _EXPERIMENTS)
  assert page.read_text() == f'{_TABLE}![A](first.png)\n'
  assert (docs / 'first.png').read_bytes() == b'picture'
  assert record.read(str(docs))['first']['claims'] == _RECORD['claims']
  with pytest.raises(ValueError, match='`docs_dir` to be given without fast'):
    record.update(
      str(docs), [{**summary, 'fast': True}], str(results), _EXPERIMENTS
    )
