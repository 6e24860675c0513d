import gzip
import logging

import numpy as np
import pandas as pd
import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import table_files


def _read(tmp_path, content, name='a.csv', names=None, **form):
  path = tmp_path / name
  if content is not None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
  return table_files.read_table(str(path), table_files.Format(**form), names)


def _cells(table):
  return {name: table[name].fillna('').tolist() for name in table}


@pytest.mark.parametrize(
  'content, form, expected',
  [
    # Blanks around cells and before quotes, quotes, empty lines, markers.
    (
      ' x ,y\n 1, "a, ""b""\nc"\n\n ? ,1\n',
      {},
      {'x': ['1', ''], 'y': ['a, "b"\nc', '1']},
    ),
    ('x\n-9\n-9.0\n?\n', {'missing_markers': ['-9']}, {'x': ['', '', '?']}),
    ('a;b\n1,5;x,y\n', {}, {'a': ['1,5'], 'b': ['x,y']}),
    ('a\tb\n1,5\t2\n', {}, {'a': ['1,5'], 'b': ['2']}),
    ('a|b\n1|2\n', {}, {'a': ['1'], 'b': ['2']}),
    # What spreadsheets put before numbers, and words that begin alike.
    (
      'x,y\n="1.5",\'-2\n\'1.5\',\'s\n',
      {},
      {'x': ['1.5', '1.5'], 'y': ['-2', "'s"]},
    ),
    # A decimal comma separates nothing.
    (
      '1,5;2,5\n',
      {'header': 'none', 'decimal': ','},
      {'0': ['1,5'], '1': ['2,5']},
    ),
    ('"a,b,c";d\n1;2\n', {}, {'a,b,c': ['1'], 'd': ['2']}),
    ('a\tb\n1\t2\n', {'separator': r'\t'}, {'a': ['1'], 'b': ['2']}),
    ('a b\n1 2\n', {'separator': ' '}, {'a': ['1'], 'b': ['2']}),
    ('1,b\n', {'header': 'none'}, {'0': ['1'], '1': ['b']}),
    ('2019,b\n1,b\n', {'header': 'first'}, {'2019': ['1'], 'b': ['b']}),
    ('x,2019\n1,b\n', {}, {'x': ['1'], '2019': ['b']}),
    # The index that pandas writes, also of shuffled rows; other columns of no
    # name, and of one name, can be told apart.
    (',x\n0,5\n7,6\n', {}, {'x': ['5', '6']}),
    (',x\n5,5\n5,6\n', {}, {'Unnamed: 0': ['5', '5'], 'x': ['5', '6']}),
    ('x,x\n1,b\n', {}, {'x': ['1'], 'x.1': ['b']}),
  ],
)  # fmt: skip
def test_cells_come_by_column_as_texts(tmp_path, content, form, expected):
  assert _cells(_read(tmp_path, content, **form)) == expected


def test_a_file_without_heading_has_the_columns_given(tmp_path):
  table = _read(tmp_path, '1,2\n3,4\n', names=('u', 'v'))
  assert _cells(table) == {'u': ['1', '3'], 'v': ['2', '4']}


@pytest.mark.parametrize(
  'name, content',
  [
    ('a.csv', 'x\nä\n'.encode()),
    ('a.csv', 'x\nä\n'.encode('utf-8-sig')),
    ('a.csv', 'x\nä\n'.encode('utf-16')),
    ('a.csv', 'x\nä\n'.encode('cp1252')),
    ('a.csv.gz', gzip.compress('x\nä\n'.encode(), mtime=0)),
  ],
)
def test_files_are_read_alike_however_they_are_encoded(tmp_path, name, content):
  assert _cells(_read(tmp_path, content, name)) == {'x': ['ä']}


def test_a_character_set_can_be_named(tmp_path, caplog):
  content = 'x\nш\n'.encode('cp1251')
  assert _cells(_read(tmp_path, content, charset='cp1251')) == {'x': ['ш']}
  with caplog.at_level(logging.WARNING):
    assert _cells(_read(tmp_path, content)) == {'x': ['ø']}
  assert 'Windows-1252' in caplog.text
  with shared.one_line_error('a text in latin-99, .*unknown encoding'):
    _read(tmp_path, content, charset='latin-99')


def test_parquet_gives_what_csv_gives(tmp_path):
  table = pd.DataFrame(
    {'n': [1.5, np.nan, 3], 'i': [1, 2, 3], 'w': ['a', None, 'NA']}, [3, 1, 2]
  )
  table.to_parquet(tmp_path / 'a.parquet')
  table.to_csv(tmp_path / 'a.csv')
  read = _read(tmp_path, None, 'a.parquet')
  assert _cells(read) == {
    'n': ['1.5', '', '3'], 'i': ['1', '2', '3'], 'w': ['a', '', '']
  }  # fmt: skip
  from_csv = _read(tmp_path, None, 'a.csv')
  for name in 'ni':
    form = table_files.Format()
    assert form.numbers(from_csv[name]).equals(form.numbers(read[name]))
  # Numbers are those of the file in any form; a named index is a column.
  form = table_files.Format(decimal=',', thousands='.')
  read = table_files.read_table(str(tmp_path / 'a.parquet'), form)
  assert form.numbers(read['n']).tolist()[::2] == [1.5, 3]
  table.rename_axis('who').to_parquet(tmp_path / 'b.parquet')
  assert _cells(_read(tmp_path, None, 'b.parquet'))['who'] == ['3', '1', '2']


def test_cells_may_be_long(tmp_path):
  content = f'x,y\n{"long" * 50_000},\n'
  assert len(_read(tmp_path, content)['x'].iloc[0]) == 200_000


@pytest.mark.parametrize(
  'form, cells, expected',
  [
    ({}, ['1', '-.5', '1e3', ' 2'], [1, -0.5, 1000, 2]),
    # Python would read 10_19, a group of ages, as 1019.
    ({}, ['10_19', 'inf', 'x', '1,5', None], [np.nan] * 5),
    ({'decimal': ','}, ['1,5', '2', '1.5'], [1.5, 2, np.nan]),
    ({'decimal': ',', 'thousands': '.'}, ['1.234,5'], [1234.5]),
    ({'thousands': ','}, ['1,234.5', '1'], [1234.5, 1]),
    # Not between groups of three digits.
    ({'thousands': ','}, ['1,5', '12,5', '1.000,50'], [np.nan] * 3),
    ({'thousands': ' '}, ['1\u202f234', '1 234', '1 2'], [1234, 1234, np.nan]),
  ],
)
def test_numbers_are_read_as_the_file_writes_them(form, cells, expected):
  cells = pd.Series(cells, dtype=str)
  np.testing.assert_array_equal(
    table_files.Format(**form).numbers(cells), expected
  )


@pytest.mark.parametrize(
  'name, content, match',
  [
    ('a.csv', None, 'a file, found none'),
    ('a.csv', 'x\n"open', 'CSV file, found EOF inside string'),
    ('a.csv.gz', b'x\n1', 'a complete gzip file'),
    ('a.parquet', 'x\n1', 'a parquet file'),
    ('a.csv', '', 'with rows, found none'),
    ('a.xlsx', b'PK\3\4\0\0', "bytes of 0, as in a spreadsheet's own"),
    ('a.csv', 'x\n1'.encode('utf-16-le'), 'UTF-16 without a mark.*`charset`'),
    ('a.csv', 'x,y\n', 'with rows, found none'),
    ('a.csv', 'x,y\n1,2\n3\n', '2 cells between .,. .* found 1 in row 2'),
    ('a.csv', 'x,y\n1,2,3\n', '2 cells .* found 3 in row 1'),
    ('a.csv', 'x,y\n1,2\n1,2,3\n', '2 cells .* found 3 in row 2'),
    ('a.csv', 'x ,x\n1,2\n', 'columns of different names'),
    # The first row is no heading.
    ('a.csv', '5.1,3,a\n4.9,2,a\n', "found the numbers 5.1, 3 .*'none'"),
    ('a.csv', '1,1,a\n4.9,2,a\n', "found the numbers 1, 1 in it.*'none'"),
    ('a.csv', '0.5,,a\n4.9,2,a\n', "found the numbers 0.5 .*'none'"),
  ],
)  # fmt: skip
def test_files_of_another_form_are_named(tmp_path, name, content, match):
  with shared.one_line_error(f'{name}` .*{match}'):
    _read(tmp_path, content, name)


@pytest.mark.parametrize(
  'form, match',
  [
    ({'header': 'yes'}, '`header` to be one of auto, first, none'),
    ({'decimal': ';'}, '`decimal` to be one of'),
    ({'thousands': '.'}, '`thousands` .* another mark than `decimal`'),
    ({'thousands': '-'}, '`thousands` to be a comma, point'),
    ({'separator': '||'}, '`separator` to be one character'),
  ],
)
def test_forms_that_there_are_not_are_errors(form, match):
  with shared.one_line_error(match):
    table_files.Format(**form)
