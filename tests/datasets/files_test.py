import gzip
import io
import os

import numpy as np
import pytest

from tests.datasets import shared
from tff_pfl.datasets import files


def test_find_file_takes_the_file_its_folder_or_the_parent(tmp_path):
  folder = tmp_path / 'tweets'
  folder.mkdir()
  path = folder / 'my_tweets.csv'
  path.write_text('')
  for data_dir in (path, folder, tmp_path):
    actual = files.find_file('tweets', str(data_dir), ('*tweets*.csv',))
    assert actual == str(path)


def test_find_file_refuses_two_files_and_none(tmp_path):
  patterns = ('*tweets*.csv', '*.csv')
  with shared.one_line_error(r'one folder with a file \*tweets\*.csv or '):
    files.find_file('tweets', str(tmp_path), patterns)
  for name in ('a_tweets.csv', 'b_tweets.csv'):
    (tmp_path / name).write_text('')
  with pytest.raises(ValueError, match='one of .*a_tweets.csv and .*b_tweets'):
    files.find_file('tweets', str(tmp_path), patterns)


def _find_folder(data_dir):
  return files.find_folder(
    str(data_dir), ('mnist_idx', 'mnist'), ('a', 'b'), 'a, b'
  )


@pytest.mark.parametrize('folder', ['mnist_idx', 'mnist', '.'])
def test_find_folder_takes_the_folder_or_its_parent(tmp_path, folder):
  (tmp_path / folder).mkdir(exist_ok=True)
  (tmp_path / folder / 'b').touch()
  assert os.path.samefile(_find_folder(tmp_path), tmp_path / folder)


def test_find_folder_prefers_a_named_one_and_refuses_two_and_none(tmp_path):
  with shared.one_line_error('folder with a, b, itself or in mnist_idx/ or mn'):
    _find_folder(tmp_path)
  for folder in ('.', 'mnist'):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / 'a').touch()
  assert _find_folder(tmp_path) == str(tmp_path / 'mnist')
  (tmp_path / 'mnist_idx').mkdir()
  (tmp_path / 'mnist_idx' / 'b').touch()
  with pytest.raises(ValueError, match='one folder .*mnist_idx and .*mnist'):
    _find_folder(tmp_path)


def test_arrays_of_an_npz_file_come_in_the_order_wanted(tmp_path):
  path = str(tmp_path / 'a.npz')
  np.savez_compressed(path, x=np.full(4, 2), y=np.arange(3), z=np.zeros(1))
  y, x = files.read_npz(path, ('y', 'x')).values()
  assert (y.tolist(), x.tolist()) == ([0, 1, 2], [2] * 4)
  assert list(files.read_npz(path)) == ['x', 'y', 'z']
  with pytest.raises(ValueError, match='a.npz. .* with w, found x, y, z;'):
    files.read_npz(path, ['w'])


def _npz():
  content = io.BytesIO()
  np.savez(content, x=np.arange(2.0))
  return content.getvalue()


@pytest.mark.parametrize(
  'content, match',
  [
    (b'<html>404 not found</html>', ''),
    (_npz()[:-20], ''),
    (_npz().replace(np.float64(1).tobytes(), bytes(8), 1), 'CRC'),
  ],
  ids=range(3),
)
def test_npz_files_that_cannot_be_read_are_named(tmp_path, content, match):
  path = tmp_path / 'a.npz'
  path.write_bytes(content)
  with shared.one_line_error(f'a.npz` to be a complete .npz.*{match}'):
    files.read_npz(str(path))


_COMPRESSED = gzip.compress(bytes(range(256)) * 4, mtime=0)


@pytest.mark.parametrize(
  'content',
  [
    b'<html>404 not found</html>',
    _COMPRESSED[:50],
    _COMPRESSED[:-6] + b'\0' + _COMPRESSED[-5:],
  ],
  ids=range(3),
)
def test_gzip_files_that_cannot_be_read_are_named(tmp_path, content):
  path = tmp_path / 'a.gz'
  path.write_bytes(content)
  with shared.one_line_error('a.gz` to be a (complete|readable) file.*again'):
    files.read_bytes(str(path))
