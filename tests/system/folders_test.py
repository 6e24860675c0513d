"""Tests of folders of results."""

import os

import pytest

from tff_pfl import errors
from tff_pfl.system import folders


def test_home_is_where_the_user_is_at_home(monkeypatch):
  monkeypatch.setenv('HOME', '/home/of')
  assert folders.local_path('~/x', 'output_dir') == '/home/of/x'
  assert folders.local_path('a~/x', 'output_dir') == 'a~/x'


@pytest.mark.parametrize(
  'path', ['', 'gs://bucket/x', 'http://host/x', 'file:///tmp/x', 'S3a://b']
)
def test_what_is_no_path_is_refused(path):
  for function in (folders.local_path, folders.output_path):
    with pytest.raises(ValueError, match='`run_dir` to be a path of the file'):
      function(path, 'run_dir')


def test_nothing_is_written_to_the_root():
  assert folders.local_path('/', 'data_dir') == '/'
  for path in ('/', '//', '/tmp/..', '/.'):
    with pytest.raises(ValueError, match='`output` to be a path below the ro'):
      folders.output_path(path, 'output')
  for path in ('/x', 'http:/x', '.'):
    assert folders.output_path(path, 'output') == path


@pytest.mark.parametrize(
  'files, kind',
  [
    (['run.sqlite', 'trial.json'], folders.RUN),
    (['study.json', 'study.html'], folders.STUDY),
    # Somebody's own.
    (['settings.json'], None),
    ([], None),
  ],
)
def test_a_folder_is_for_one_kind_of_results(tmp_path, files, kind):
  for name in files:
    (tmp_path / name).touch()
  for expected in (folders.RUN, folders.STUDY):
    if kind in (None, expected):
      assert folders.results_folder(tmp_path, expected) == os.fspath(tmp_path)
    else:
      with pytest.raises(
        errors.RunError, match=f'holds {kind}.* for {expected}'
      ):
        folders.results_folder(tmp_path, expected)
