"""Tests of folders of results."""

import os

import pytest

from tff_pfl import errors
from tff_pfl.system import folders


def test_home_is_where_the_user_is_at_home(monkeypatch):
  monkeypatch.setenv('HOME', '/home/of')
  assert folders.local_path('~/x', 'output_dir') == '/home/of/x'
  assert folders.local_path('a~/x', 'output_dir') == 'a~/x'


@pytest.mark.parametrize('path', ['gs://bucket/x', 's3://bucket', 'hdfs://a/b'])
def test_stores_of_objects_are_refused(path):
  with pytest.raises(ValueError, match='`output_dir` to be a path of the file'):
    folders.local_path(path, 'output_dir')


def test_a_folder_is_for_one_kind_of_results(tmp_path):
  comparison, run = tmp_path / 'comparison', tmp_path / 'run'
  (comparison / 'trials').mkdir(parents=True)
  run.mkdir()
  (run / 'run.sqlite').touch()
  for folder, own, other in (
    (comparison, folders.COMPARISON, folders.RUN),
    (run, folders.RUN, folders.COMPARISON),
  ):
    assert folders.results_folder(folder, own) == os.fspath(folder)
    with pytest.raises(errors.RunError, match=f'holds {own}.* for {other}'):
      folders.results_folder(folder, other)
  (tmp_path / 'paper').mkdir()
  (tmp_path / 'paper' / 'settings.json').touch()
  with pytest.raises(errors.RunError, match='holds an experiment of a paper'):
    folders.results_folder(tmp_path / 'paper', folders.RUN)
  assert folders.results_folder(tmp_path / 'new', folders.RUN)
