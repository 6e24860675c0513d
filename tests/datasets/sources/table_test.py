import functools
import gzip
import json

import numpy as np
import pandas as pd
import pytest

from tests.datasets import shared
from tff_pfl import datasets
from tff_pfl.datasets.sources import table

_COUNT = 24


def _frame():
  i = np.arange(_COUNT)
  return pd.DataFrame(
    {
      'hospital': np.array(list('abc'))[i % 3],
      'age': np.where(i % 5, 20.5 + i, np.nan),
      'kind': np.array(list('xy'))[i // 3 % 2],
      'ill': i // 2 % 2,
    }
  )


_load = functools.partial(
  shared.load,
  'table',
  num_clients=None,
  partition=None,
  label='ill',
  client='hospital',
)


@pytest.fixture(name='expected')
def _expected(tmp_path):
  _frame().to_csv(tmp_path / 'expected.csv', index=False)
  return _load(tmp_path / 'expected.csv').fingerprint


def _write(path, content):
  content = content.encode() if isinstance(content, str) else content
  path.write_bytes(content)
  return path


_CSV = _frame().to_csv(index=False)
# The last cell of some rows is missing.
_AGE_LAST = _frame()[['hospital', 'kind', 'ill', 'age']]


@pytest.mark.parametrize(
  'name, content, read',
  [
    ('a.csv', _CSV, {}),
    ('a.csv', _CSV.replace(',', ' , ').replace('\n', '\n\n'), {}),
    ('a.csv.gz', gzip.compress(_CSV.encode(), mtime=0), {}),
    ('a.csv', _CSV.encode('utf-8-sig'), {}),
    ('a.csv', _CSV.encode('utf-16'), {'encoding': 'utf-16'}),
    ('a.tsv', _CSV.replace(',', '\t'), {}),
    ('a.csv', _CSV.replace(',', '|'), {'sep': '|'}),
    ('a.csv', _CSV.replace(',', '|'), {'sep': '[;|]'}),
    ('a.csv', _CSV.replace(',', '|'), {'delimiter': '|'}),
    ('a.csv', _CSV.replace(',', '|'), {'sep': None}),
    (
      'a.csv',
      _frame().to_csv(index=False, sep=';', decimal=','),
      {'sep': ';', 'decimal': ','},
    ),
    ('a.csv', _CSV.replace(',,', ',?,'), {'na_values': '?'}),
    (
      'a.csv',
      '# of three\n' + _CSV,
      {'skiprows': 1, 'usecols': ['hospital', 'age', 'kind', 'ill']},
    ),
    ('a.csv', 'Patients\n' + _AGE_LAST.to_csv(index=False), {'header': 1}),
    ('a.csv', _AGE_LAST.to_csv(index=False).replace('\n', '\n  \n'), {}),
    (
      'a.csv',
      _AGE_LAST.to_csv(index=False, sep=' ', na_rep='?'),
      {'sep': '\\s+', 'na_values': '?'},
    ),
    # The index that pandas writes.
    ('a.csv', _frame().to_csv(), {}),
    ('a.csv', _frame()[::-1].to_csv(index=False, header=False), None),
  ],
)
def test_files_are_read_as_pandas_is_told(
  tmp_path, expected, name, content, read
):
  options = {}
  if read is None:  # Without a heading columns have numbers.
    read, options = {'header': None}, dict(label='3', client='0')
  path = _write(tmp_path / name, content)
  data = _load(path, read=json.dumps(read), **options)
  assert data.client_ids == ('a', 'b', 'c')
  assert data.encoding.read == read
  if not options:
    assert data.fingerprint == expected
    assert data.load_again().fingerprint == expected
    assert _load(path, read=read).fingerprint == expected


def test_cells_may_have_line_breaks(tmp_path):
  text = 'x,y\na, "b\n\nc"\n"d\u2028e",\n'
  frame = table.read_table(str(_write(tmp_path / 'a.csv', text)), {})
  assert frame['x'].tolist() == ['a', 'd\u2028e']
  assert frame['y'][0] == 'b\n\nc' and pd.isna(frame['y'][1])
  # Also the heading, after a mark of UTF-8, and cells may be long.
  text = f'\ufeff"x\n",y\na,b\n{"long" * 50_000},\n'
  frame = table.read_table(str(_write(tmp_path / 'a.csv', text)), {})
  assert list(frame) == ['x', 'y'] and len(frame) == 2


def test_parquet_gives_what_csv_gives(tmp_path, expected):
  _frame().to_parquet(tmp_path / 'a.parquet')
  data = _load(tmp_path / 'a.parquet')
  assert data.fingerprint == expected
  # New rows may have either form.
  for name in ('a.parquet', 'expected.csv'):
    frame = table.read_new(str(tmp_path / name), data.encoding)
    new = datasets.FederatedDataset.from_frame(frame, encoding=data.encoding)
    assert new.fingerprint == expected


@pytest.mark.parametrize(
  'name, read',
  [
    ('a.csv', {'nrows': 20, 'usecols': ['hospital', 'kind', 'ill']}),
    ('a.parquet', {'columns': ['hospital', 'kind', 'ill']}),
  ],
)
def test_new_rows_are_all_read_and_may_lack_the_label(tmp_path, name, read):
  _frame().to_parquet(tmp_path / 'a.parquet')
  (tmp_path / 'a.csv').write_text(_CSV)
  data = _load(tmp_path / name, read=read)
  assert data.encoding.input_names == ['kind=x', 'kind=y']
  _frame().drop(columns='ill').to_csv(tmp_path / 'new.csv', index=False)
  for new in ('new.csv', 'a.parquet'):
    frame = table.read_new(str(tmp_path / new), data.encoding)
    assert data.encoding.rows(frame).positions.shape == (_COUNT, 1)


def test_columns_have_the_roles_that_are_named(tmp_path):
  frame = _frame().assign(
    id=range(_COUNT), share=1.5, part=['train', 'test'] * (_COUNT // 2)
  )
  frame.to_csv(tmp_path / 'a.csv', index=False)
  data = _load(
    tmp_path,
    domain='kind',
    weight='share',
    split='part',
    drop=['id'],
    read={'dtype': {'age': 'category'}},
  )
  assert data.name == 'table'
  assert data.domain_names == ('x', 'y')
  assert set(data.train('a').weight) == {1.5}
  assert sum(map(data.num_test_examples, data.client_ids)) == _COUNT // 2
  assert data.encoding.input_names[0] == 'age=21.5'


def test_several_labels_are_separated_by_commas(tmp_path):
  frame = _frame().assign(cold=[0, 1] * (_COUNT // 2))
  frame.to_csv(tmp_path / 'a.csv', index=False)
  data = _load(tmp_path, label='ill,cold')
  assert data.element_spec['y'].shape == [2]


def test_each_file_of_a_folder_may_be_a_client(tmp_path):
  folder = tmp_path / 'hospitals'
  folder.mkdir()
  # As three hospitals write it.
  texts = {
    'a': ('TRUE', 'FALSE'),
    'b': ('True', 'False'),
    'c': ('true', 'false'),
  }
  for name, rows in _frame().groupby('hospital'):
    rows['ill'] = np.where(rows['ill'], *texts[name])
    rows.drop(columns='hospital').to_csv(folder / f'{name}.csv', index=False)
  data = _load(folder, client=None)
  assert data.client_ids == ('a', 'b', 'c')
  assert data.encoding.classes == [False, True]
  (folder / 'c.csv').write_text((folder / 'b.csv').read_text() + 'old,x,True\n')
  with shared.one_line_error(r"'age' .*found 'old' at index c, 8"):
    _load(folder, client=None)
  (folder / 'd.csv').write_text('sex,age\nf,3\n')
  with shared.one_line_error('same columns .age, kind, ill.*d.csv with sex'):
    _load(folder, client=None)


@pytest.mark.parametrize(
  'name, content, match',
  [
    ('a.csv', None, 'one folder with a file'),
    ('a.csv', 'x\n"open', 'pandas.read_csv reads, found: .*EOF inside string'),
    ('a.csv.gz', b'x\n1', 'a.csv.gz` to be'),
    ('a.parquet', 'x\n1', 'pandas.read_parquet reads'),
    ('a.csv', '', 'No columns to parse'),
    ('a.csv', 'hospital,ill,x\n', '`frame` to be one with rows'),
    ('a.csv', 'x,y\n1,2,3\n', 'Length of header .*"sep": ";"'),
    ('a.csv', 'x,y\n1,2\n1,2,3\n', 'Expected 2 fields in line 3, saw 3'),
    ('a.csv', 'x,y\n1,2\n \n3\n', '2 cells in every row, found 1 in line 4'),
    ('a.csv', 'x,y,z\n1,2,3\n,\n', '3 cells in every row, found 2 in line 3'),
    ('a.csv', 'x\n1'.encode('utf-16'), '"encoding": "utf-16"'),
    ('a.csv', 'x;ill\n1;2\n', r"`label` to be .*\(x;ill\), found 'ill'"),
    ('a.csv', 'ü\n1'.encode('cp1252'), 'UTF-8.*"encoding": "cp1252"'),
    ('a.csv', '\n'.join(['ill,x,ill', '1,2,3']), 'found ill twice; .*"names"'),
    # The first row is no heading.
    ('a.csv', '5.1,3,a\n4.9,2,a\n', r"`label` .*\(5.1, 3, a\), found 'ill'"),
    ('a.csv', '1,1,a\n4.9,2,a\n', 'found 1 twice'),
    ('a.csv', 'hospital,ill\na,1\na,0\n', '`features` to be one or more'),
  ],
)
def test_files_of_another_form_are_named(tmp_path, name, content, match):
  if content is not None:
    _write(tmp_path / name, content)
  with shared.one_line_error(match):
    _load(tmp_path)


@pytest.mark.parametrize(
  'options, match',
  [
    ({'label': 'dead'}, r'`label` .*\(hospital, age, kind, ill\), found .dead'),
    ({'drop': ['age', 'id']}, "`drop` .*age, kind, ill.*found 'id'"),
    ({'read': 'sep=;'}, '`read` to be options as JSON'),
    ({'read': '[1]'}, '`read` to be'),
    ({'read': {'separator': ';'}}, "unexpected keyword argument 'separator'"),
    ({'read': {'dtype': str}}, 'options as JSON'),
  ],
)
def test_options_that_do_not_fit_are_one_line_errors(tmp_path, options, match):
  _frame().to_csv(tmp_path / 'a.csv', index=False)
  error = TypeError if options == {'read': '[1]'} else ValueError
  with shared.one_line_error(match, error):
    _load(tmp_path, **options)
