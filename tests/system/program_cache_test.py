"""Tests of compiled programs that processes keep for each other."""

import os
import pathlib
import time

import pytest

from tff_pfl.system import environment, program_cache


@pytest.fixture(name='kept')
def _kept(tmp_path, monkeypatch):
  """The folder of the programs of a process like this one."""
  monkeypatch.setenv('TFF_PFL_PROGRAM_CACHE', str(tmp_path))
  monkeypatch.setenv('TF_XLA_FLAGS', '--a=1')
  monkeypatch.setattr(program_cache, '_folder', None)
  monkeypatch.setattr(program_cache.atexit, 'register', lambda end: None)
  return tmp_path / program_cache._key(1, '--a=1')


def _use():
  """Uses the cache as another process would, and returns its folder."""
  program_cache._folder = None
  program_cache.use(1)
  first, flag = os.environ['TF_XLA_FLAGS'].split()
  folder = program_cache._folder
  assert (first, flag.partition('=')[2]) == ('--a=1', folder.path)
  return folder


def _write(folder, name, content):
  pathlib.Path(folder.path, name).write_bytes(content)


def _read(folder):
  paths = pathlib.Path(folder.path).glob('*.pb')
  return {path.name: path.read_bytes() for path in paths}


def _end(folder):
  folder.end()
  folder._lock.close()
  assert not os.path.exists(folder.path)


def test_a_process_keeps_its_programs_for_the_next(kept):
  process = _use()
  assert pathlib.Path(process.path).parent == kept
  _write(process, 'xla_1.pb', b'program')
  # It is the process's alone before its end.
  other = _use()
  assert not _read(other)
  _write(other, 'xla_1.pb', b'the same')
  _end(process)
  _end(other)
  # Two processes have compiled it at the same time.
  assert len([*kept.glob('*.pb')]) == 2
  last = _use()
  assert [*_read(last)] == ['xla_1.pb']
  _end(last)
  assert len([*kept.glob('*.pb')]) == 1


def test_a_damaged_program_is_removed(kept):
  folder = _use()
  _write(folder, 'xla_1.pb', b'program')
  _write(folder, 'xla_2.pb', b'whole')
  _end(folder)
  (path,) = kept.glob('*-xla_1.pb')
  path.write_bytes(b'progrbm')
  folder = _use()
  assert _read(folder) == {'xla_2.pb': b'whole'}
  _write(folder, 'xla_1.pb', b'program')
  _end(folder)
  folder = _use()
  assert _read(folder) == {'xla_1.pb': b'program', 'xla_2.pb': b'whole'}
  _end(folder)


def test_folders_of_killed_processes_are_removed(kept, monkeypatch):
  running, killed = _use(), _use()
  killed._lock.close()
  monkeypatch.setenv('XLA_FLAGS', '--of_another_key')
  others = _use()
  others._lock.close()
  an_hour_ago = time.time() - 3600
  for folder in (running, killed, others):
    os.utime(folder.path, (an_hour_ago, an_hour_ago))
  last = _use()
  assert not os.path.exists(killed.path)
  assert not os.path.exists(others.path)
  _end(running)
  _end(last)
  assert [*kept.parent.iterdir()] == []


def test_the_programs_used_last_stay(kept, monkeypatch):
  folder = _use()
  for number in range(4):
    _write(folder, f'xla_{number}.pb', bytes(100))
    # Numbers 1 and 3 are the latest.
    used = time.time() - (100 if number % 2 else 9999) - number
    os.utime(os.path.join(folder.path, f'xla_{number}.pb'), (used, used))
  old = kept.parent / 'of_another_version' / '00000000-xla_5.pb'
  old.parent.mkdir()
  old.write_bytes(b'old')
  os.utime(old, (1, 1))
  monkeypatch.setattr(program_cache, '_MAX_BYTES', 200)
  _end(folder)
  assert {path.name[9:] for path in kept.glob('*.pb')} == {
    'xla_1.pb',
    'xla_3.pb',
  }
  assert not old.parent.exists()


def test_other_programs_have_another_key(kept, monkeypatch):
  assert program_cache._key(2, '--a=1') != kept.name
  assert program_cache._key(1, '') != kept.name
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '1')
  assert program_cache._key(2, '--a=1') == kept.name
  monkeypatch.setenv('XLA_FLAGS', '--xla_b')
  assert program_cache._key(1, '--a=1') != kept.name


@pytest.mark.parametrize('how', ['other flags', 'abandoned'])
def test_a_process_that_changes_keeps_nothing(how, kept, monkeypatch):
  folder = _use()
  _write(folder, 'xla_1.pb', b'program')
  _end(folder)
  folder = _use()
  program_cache.use(1)
  assert _read(folder)
  if how == 'other flags':
    # What the library adds has been there before.
    environment.set_defaults()
    assert folder._variables == program_cache._variables()
    monkeypatch.setenv('XLA_FLAGS', '--xla_b')
  else:
    program_cache.abandon()
    program_cache.use(2)
    assert not _read(folder)
  assert program_cache._folder is folder
  _write(folder, 'xla_2.pb', b'other')
  _end(folder)
  assert [path.name[9:] for path in kept.glob('*.pb')] == ['xla_1.pb']


def test_other_threads_have_a_folder_of_their_own(kept):
  folder = _use()
  program_cache.use(2)
  other = program_cache._folder
  assert other.path != folder.path
  assert os.environ['TF_XLA_FLAGS'].endswith(other.path)
  for each in (folder, other):
    _write(each, 'xla_1.pb', b'of 2 threads')
    _end(each)
  (path,) = kept.parent.rglob('*.pb')
  assert path.parent.name == program_cache._key(2, '--a=1')


def test_a_fork_does_not_empty_the_folder_of_its_parent(kept, monkeypatch):
  folder = _use()
  _write(folder, 'xla_1.pb', b'program')
  with monkeypatch.context() as patch:
    patch.setattr(program_cache.os, 'getpid', lambda: -1)
    program_cache.abandon()
    folder.end()
  assert _read(folder)
  _end(folder)
  assert len([*kept.glob('*.pb')]) == 1


def test_a_process_leaves_or_its_children_do_not_use_it(kept):
  folder = _use()
  with environment.changed(program_cache.without()):
    assert os.environ['TF_XLA_FLAGS'] == '--a=1'
    program_cache.use(1)
    assert os.environ['TF_XLA_FLAGS'] == '--a=1'
  assert folder.path in os.environ['TF_XLA_FLAGS']
  program_cache.leave()
  assert os.environ['TF_XLA_FLAGS'] == '--a=1'
  program_cache._folder = None
  program_cache.use(1)
  assert program_cache._folder is None
  _end(folder)


@pytest.mark.parametrize(
  'how', ['empty', 'own flag', 'file', 'no home', 'space', 'no folder', 'full']
)
def test_nothing_is_kept(how, kept, monkeypatch):
  if how in ('own flag', 'file'):
    flags = {'own flag': f'{program_cache._FLAG}=/mine', 'file': '/flags'}
    monkeypatch.setenv('TF_XLA_FLAGS', flags[how])
  elif how == 'no home':
    monkeypatch.delenv('TFF_PFL_PROGRAM_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', 'relative')
  elif how == 'full':
    monkeypatch.setattr(program_cache, '_MIN_FREE_BYTES', 2**80)
  else:
    folders = {'empty': '', 'space': f'{kept}/a b', 'no folder': os.devnull}
    monkeypatch.setenv('TFF_PFL_PROGRAM_CACHE', folders[how])
  before = os.environ['TF_XLA_FLAGS']
  if how != 'file':
    # As in a child.
    parents = f'{program_cache._FLAG}={kept}/process-1'
    monkeypatch.setenv('TF_XLA_FLAGS', f'{before} {parents}')
  program_cache.use(1)
  assert os.environ['TF_XLA_FLAGS'] == before
  assert program_cache._folder is None
  assert not [*kept.parent.rglob('process-*')]
