"""The experiments' results in the documentation."""

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
  'setup': {
    'num_clients': 20,
    'model': 'mlp',
    'num_rounds': 7,
    'num_epochs': 1,
    'num_seeds': 5,
  },
  'claims': [
    _CLAIM,
    {**_CLAIM, 'low': None, 'measured': None, 'verdict': 'fails'},
  ],
}
_EXPERIMENTS = {
  'first': types.SimpleNamespace(
    paper='Table 1', full={'cifar10': types.SimpleNamespace(num_seeds=5)}
  ),
  'second': types.SimpleNamespace(
    paper='Figure 2',
    full={
      None: types.SimpleNamespace(
        num_seeds=3, nums_clients=(5, 10, 20), local_epochs={'a': 1, 'b': 5}
      )
    },
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


@pytest.mark.parametrize(
  'name, seed, flags',
  [('first', 0, ' --data_dir=DIR'), ('second', 5, ' --num_seeds=5 --seed=5')],
)
def test_the_command_names_what_the_experiment_needs(name, seed, flags):
  text = _rewritten(
    f'<!-- claims: {name} -->\n',
    {name: {**_RECORD, 'dataset': None, 'seed': seed}},
  )
  assert f'reproduce --experiment={name}{flags}`\n' in text


def test_tables_of_others_stay():
  text = f'<!-- claims: second -->\n\nwords\n\n{_TABLE}'
  assert _rewritten(text, {'first': _RECORD}) == text


def test_coverage_has_every_experiment():
  text = 'a\n<!-- coverage -->\nold\n<!-- end of coverage -->\nb\n'
  assert _rewritten(text, {'first': _RECORD}).splitlines()[2:-2] == [
    '**1 of 2 claims hold, 1 fail** of the experiments that were measured, in '
    '2 hours.',
    '',
    '| paper, figure or table | experiment | size | k of n hold | time |',
    '|---|---|---|---|---|',
    '| Table 1 | `first` | mnist, 20 clients, mlp, 7 rounds, '
    '1 local epoch, 5 seeds | 1 of 2 claims hold, 1 fail | 90 min |',
    '| Figure 2 | `second` | generated, 5 to 20 clients, 1 to 5 local epochs, '
    '3 seeds | not measured yet |  |',
  ]


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
