"""Tests of reading CSV files."""

import csv
import gzip

import pytest

from tests.datasets import shared
from tff_pfl.datasets.sources import csv_files


def _read(tmp_path, content, name='a.csv', **kwargs):
  path = tmp_path / name
  if content is not None:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
  return csv_files.read_table(str(path), **kwargs)


def test_cells_come_by_column_without_blanks_and_empty_lines(tmp_path):
  table = _read(tmp_path, ' x ,y\n 1,"a, ""b""\nc"\n\n ? ,1\n')
  assert table.cells == {'x': ['1', ''], 'y': ['a, "b"\nc', '1']}
  assert table.num_rows == 2


def test_a_file_without_heading_has_the_columns_given(tmp_path):
  table = _read(tmp_path, '1,2\n3,4\n', columns=('u', 'v'))
  assert table.cells == {'u': ['1', '3'], 'v': ['2', '4']}


def test_markers_of_missing_values_can_be_chosen(tmp_path):
  table = _read(tmp_path, 'x\n-9\n?\n', missing_markers=['-9'])
  assert table.cells == {'x': ['', '?']}


@pytest.mark.parametrize(
  'name, content',
  [
    ('a.csv', 'x\nä\n'.encode()),
    ('a.csv', 'x\nä\n'.encode('utf-8-sig')),
    ('a.csv.gz', gzip.compress('x\nä\n'.encode(), mtime=0)),
  ],
)
def test_compressed_and_marked_files_are_read_alike(tmp_path, name, content):
  assert _read(tmp_path, content, name).cells == {'x': ['ä']}


def test_cells_may_be_long_without_changing_python_s_limit(tmp_path):
  limit = csv.field_size_limit()
  (text,) = _read(tmp_path, f'x\n{"long" * 50_000}').cells['x']
  assert len(text) == 200_000
  assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
  'name, content, match',
  [
    ('a.csv', None, 'a file, found none'),
    ('a.csv', 'x\n"open', 'a CSV file in UTF-8'),
    ('a.csv', b'x\n\xff\xfe', 'a CSV file in UTF-8'),
    ('a.csv.gz', b'x\n1', 'a complete gzip file'),
    ('a.csv', '', 'with a heading of different names, found'),
    ('a.csv', 'x,x\n1,2\n', 'with a heading of different names'),
    ('a.csv', 'x,y\n', 'with rows, found none'),
    ('a.csv', 'x,y\n1,2\n3\n', '2 cells in every row, found 1 in row 2'),
    ('a.csv', 'x,y\n1,2,3\n', '2 cells in every row, found 3 in row 1'),
  ],
)
def test_files_of_another_form_are_named(tmp_path, name, content, match):
  with shared.one_line_error(f'{name}` .*{match}'):
    _read(tmp_path, content, name)
