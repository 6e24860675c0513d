"""Tests of compiled programs that processes keep for each other."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest

from tff_pfl.system import program_cache

_NAME = 'xla_1.pb'


@pytest.fixture(name='kept')
def _kept(tmp_path, monkeypatch):
  """The folder of the programs of a process like this one."""
  monkeypatch.setenv('TFF_PFL_PROGRAM_CACHE', str(tmp_path))
  monkeypatch.setenv('TF_XLA_FLAGS', '--a=1')
  return tmp_path / program_cache._key(1, '--a=1')


def _use():
  """Uses the cache as another process would.

  Returns:
    The process's folder, what it does when it ends, and its lock.
  """
  kept = []
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      program_cache.atexit,
      'register',
      lambda keep, *arguments: kept.append(lambda: keep(*arguments)),
    )
    for name in ('_kept', '_own', '_lock'):
      patch.setattr(program_cache, name, None)
    program_cache.use(1)
    kept.append(program_cache._lock)
  (flag,) = os.environ['TF_XLA_FLAGS'].split()[1:]
  return pathlib.Path(flag.partition('=')[2]), *kept


def _end(own, keep, lock):
  keep()
  lock.close()
  assert not own.exists()


def test_a_process_keeps_its_programs_for_the_next(kept):
  process = _use()
  assert process[0].parent == kept
  (process[0] / _NAME).write_bytes(b'program')
  # It is the process's alone before its end.
  other = _use()
  assert not (other[0] / _NAME).exists()
  _end(*process)
  _end(*other)
  last = _use()
  assert (last[0] / _NAME).read_bytes() == b'program'
  _end(*last)
  assert len([*kept.glob('*.pb')]) == 1


def test_a_damaged_program_is_removed(kept):
  own, *rest = _use()
  (own / _NAME).write_bytes(b'program')
  (own / 'xla_2.pb').write_bytes(b'whole')
  _end(own, *rest)
  (path,) = kept.glob(f'*-{_NAME}')
  path.write_bytes(b'progrbm')
  own, *rest = _use()
  assert [path.name for path in own.glob('*.pb')] == ['xla_2.pb']
  (own / _NAME).write_bytes(b'program')
  _end(own, *rest)
  own, *rest = _use()
  assert (own / _NAME).read_bytes() == b'program'
  _end(own, *rest)


def test_folders_of_killed_processes_are_removed(kept):
  running, *rest = _use()
  killed, _, lock = _use()
  lock.close()
  an_hour_ago = time.time() - 3600
  for folder in (running, killed):
    os.utime(folder, (an_hour_ago, an_hour_ago))
  last = _use()
  assert not killed.exists()
  assert running.exists()
  _end(running, *rest)
  _end(*last)


def test_the_programs_used_last_stay(kept, monkeypatch):
  own, *rest = _use()
  for number in range(4):
    path = own / f'xla_{number}.pb'
    path.write_bytes(bytes(100))
    # Numbers 1 and 3 are the latest.
    used = time.time() - (100 if number % 2 else 9999) - number
    os.utime(path, (used, used))
  old = kept.parent / 'of_another_version' / '00000000-xla_5.pb'
  old.parent.mkdir()
  old.write_bytes(b'old')
  os.utime(old, (1, 1))
  monkeypatch.setattr(program_cache, '_MAX_BYTES', 200)
  _end(own, *rest)
  assert {path.name[9:] for path in kept.glob('*.pb')} == {
    'xla_1.pb',
    'xla_3.pb',
  }
  assert not old.parent.exists()


def test_other_threads_or_flags_have_other_programs(kept, monkeypatch):
  assert program_cache._key(2, '--a=1') != kept.name
  assert program_cache._key(1, '') != kept.name
  monkeypatch.setenv('XLA_FLAGS', '--xla_b')
  assert program_cache._key(1, '--a=1') != kept.name


@pytest.mark.parametrize(
  'how', ['left', 'empty', 'own flag', 'no home', 'full']
)
def test_nothing_is_kept(how, kept, monkeypatch):
  if how == 'left':
    program_cache.leave()
  elif how == 'empty':
    monkeypatch.setenv('TFF_PFL_PROGRAM_CACHE', '')
  elif how == 'own flag':
    monkeypatch.setenv('TF_XLA_FLAGS', f'{program_cache._FLAG}=/mine')
  elif how == 'no home':
    monkeypatch.delenv('TFF_PFL_PROGRAM_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', 'relative')
  else:
    monkeypatch.setenv('TFF_PFL_PROGRAM_CACHE', os.devnull)
  flags = os.environ['TF_XLA_FLAGS']
  program_cache.use(1)
  assert os.environ['TF_XLA_FLAGS'] == flags


_PROGRAM = textwrap.dedent("""
  from tff_pfl.system import tf_import
  import tensorflow as tf

  for number in (1.0, 2.0):
    compiled = tf.function(
      lambda x: tf.linalg.matmul(x, x) + number, jit_compile=True
    )
    print(float(tf.reduce_sum(compiled(tf.ones([8, 8])))))
""")


@pytest.mark.timeout(120)
def test_tensorflow_compiles_only_what_is_not_kept_or_is_damaged(kept):
  del kept
  root = pathlib.Path(os.environ['TFF_PFL_PROGRAM_CACHE'])

  def run():
    result = subprocess.run(
      [sys.executable, '-c', _PROGRAM],
      capture_output=True,
      text=True,
      check=True,
    )
    assert result.stdout.split() == ['576.0', '640.0']
    programs = {path.name[9:]: path for path in root.glob('*/*.pb')}
    assert len(programs) == 2
    return programs

  os.environ['TF_XLA_FLAGS'] = ''
  first = run()
  whole, damaged = sorted(first)
  content = first[damaged].read_bytes()
  first[damaged].write_bytes(content[: len(content) // 2])
  second = run()
  assert second[whole] == first[whole]
  assert second[damaged].stat().st_size > len(content) // 2
