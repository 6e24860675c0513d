"""Tests of reading CSV files."""

import csv
import gzip

import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import csv_files


def test_cells_come_by_column(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('x,y\n1,"a, ""b""\nc"\n\n2\n3,d,e\n')
  columns, rows = csv_files.read_rows(str(path))
  assert columns == ('x', 'y')
  assert rows == [
    {'x': '1', 'y': 'a, "b"\nc'},
    {'x': '2', 'y': None},
    {'x': '3', 'y': 'd', None: ['e']},
  ]


def test_a_file_without_heading_has_the_columns_given(tmp_path):
  path = tmp_path / 'a.data'
  path.write_text('1,2\n3,4\n')
  assert csv_files.read_rows(str(path), ('u', 'v')) == (
    ('u', 'v'),
    [{'u': '1', 'v': '2'}, {'u': '3', 'v': '4'}],
  )


def test_an_empty_file_has_no_columns(tmp_path):
  (tmp_path / 'a.csv').touch()
  assert csv_files.read_rows(str(tmp_path / 'a.csv')) == ((), [])


def test_compressed_and_marked_files_are_read_alike(tmp_path):
  content = 'x\nä\n'
  (tmp_path / 'a.csv').write_text(content, encoding='utf-8')
  (tmp_path / 'b.csv').write_text(content, encoding='utf-8-sig')
  (tmp_path / 'c.csv.gz').write_bytes(gzip.compress(content.encode()))
  for name in ('a.csv', 'b.csv', 'c.csv.gz'):
    assert csv_files.read_rows(str(tmp_path / name))[1] == [{'x': 'ä'}]


def test_cells_may_be_long_without_changing_python_s_limit(tmp_path):
  limit = csv.field_size_limit()
  (tmp_path / 'a.csv').write_text('x\n' + 'long ' * 40_000)
  _, (row,) = csv_files.read_rows(str(tmp_path / 'a.csv'))
  assert len(row['x']) == 200_000
  assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
  'name, content, match',
  [
    ('a.csv', None, 'a file, found none'),
    ('a.csv', b'x\n"open', 'a CSV file in UTF-8'),
    ('a.csv', b'x\n\xff\xfe', 'a CSV file in UTF-8'),
    ('a.csv.gz', b'x\n1', 'a complete gzip file'),
    ('a.csv.gz', gzip.compress(b'x\n1', mtime=0)[:-4], 'a complete gzip file'),
  ],
)
def test_damaged_files_are_named(tmp_path, name, content, match):
  path = tmp_path / name
  if content is not None:
    path.write_bytes(content)
  with shared.one_line_error(f'{name}` to be {match}'):
    csv_files.read_rows(str(path))


def test_blanks_around_cells_and_names_do_not_count(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text(' x , y\n 1, 0\n ? ,1\n')
  table = csv_files.read_table(str(path))
  assert table.cells == {'x': ['1', ''], 'y': ['0', '1']}


def test_markers_of_missing_values_can_be_chosen(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('x,y\n-9,0\n?,1\n')
  table = csv_files.read_table(str(path), missing_markers=['-9'])
  assert table.cells['x'] == ['', '?']


@pytest.mark.parametrize(
  'content, match',
  [
    ('', 'with a heading of different names, found'),
    ('x,x\n1,2\n', 'with a heading of different names'),
    ('x,\n1,2\n', 'with a heading of different names'),
    ('x,y\n', 'with rows, found none'),
    ('x,y\n1,2\n3\n', '2 cells in every row, found fewer in row 2'),
    ('x,y\n1,2,3\n', '2 cells in every row, found more in row 1'),
  ],
)
def test_files_of_another_form_are_named(tmp_path, content, match):
  path = tmp_path / 'a.csv'
  path.write_text(content)
  with shared.one_line_error(f'a.csv` .*{match}'):
    csv_files.read_table(str(path))
