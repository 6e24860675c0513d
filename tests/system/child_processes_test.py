import os
import re
import signal
import subprocess
import sys
from multiprocessing import context

import psutil
import pytest

from tff_pfl.system import child_processes

# It has no guard of its main module.
_PROGRAM = """
import os, signal, sys, time
# A program started in the background by a shell ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
print('starts', flush=True)
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
from tff_pfl.system import child_processes
process = child_processes.start(
  'only_there', 'an argument', 'log.txt', {'NAME': 'value'}
)
while True:
  print(process.exitcode, flush=True)
  time.sleep(0.1)
"""
_MODULE = """
import os, time
importer = os.getpid()
def main(argv):
  print(*argv, os.environ['NAME'], importer == os.getppid(), flush=True)
  with open('pid', 'w') as file:
    file.write(str(os.getpid()))
  os.rename('pid', 'started')
  time.sleep(600)
"""


@pytest.fixture(name='program_and_process')
def _program_and_process(tmp_path):
  """A program that has started a process, and the process."""
  (tmp_path / 'program.py').write_text(_PROGRAM)
  (tmp_path / 'only_there.py').write_text(_MODULE)
  with subprocess.Popen(
    [sys.executable, tmp_path / 'program.py', tmp_path],
    stdout=subprocess.PIPE,
    text=True,
    start_new_session=True,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  ) as program:
    try:
      assert program.stdout.readline() == 'starts\n'
      while not (tmp_path / 'started').exists():
        assert program.stdout.readline() == 'None\n'
      yield program, psutil.Process(int((tmp_path / 'started').read_text()))
    finally:
      program.kill()


def test_a_process_ends_with_the_program_and_not_by_its_signals(
  program_and_process, tmp_path
):
  program, process = program_and_process
  # As Ctrl-C in a terminal does.
  program.send_signal(signal.SIGSTOP)
  os.killpg(program.pid, signal.SIGINT)
  with pytest.raises(psutil.TimeoutExpired):
    process.wait(0.5)
  program.kill()
  process.wait(20)
  assert (tmp_path / 'log.txt').read_text() == (
    'only_there an argument value True\n'
  )


def test_ctrl_c_during_the_start_leaves_no_process(tmp_path, monkeypatch):
  (tmp_path / 'only_there.py').write_text(_MODULE)
  (tmp_path / 'log.txt').touch()
  monkeypatch.syspath_prepend(tmp_path)
  start, started = context.ForkServerProcess.start, []

  def start_and_interrupt(process):
    start(process)
    started.append(process)
    signal.raise_signal(signal.SIGINT)

  monkeypatch.setattr(context.ForkServerProcess, 'start', start_and_interrupt)
  previous = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with pytest.raises(KeyboardInterrupt):
      child_processes.start('only_there', '', str(tmp_path / 'log.txt'), {})
  finally:
    signal.signal(signal.SIGINT, previous)
  (process,) = started
  process.join(20)
  assert process.exitcode == -signal.SIGKILL


def test_a_server_that_ends_is_an_error_of_the_system(tmp_path):
  (tmp_path / 'program.py').write_text(_PROGRAM)
  (tmp_path / 'only_there.py').write_text('import os; os._exit(1)')
  program = subprocess.run(
    [sys.executable, tmp_path / 'program.py', tmp_path],
    capture_output=True,
    text=True,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  assert program.stderr.endswith(
    'OSError: the fork server has ended (did memory run out?)\n'
  )


@pytest.mark.parametrize(
  'code, words',
  [
    (3, 'ended with exit status 3'),
    (-15, r'signal 15 \(SIGTERM\)'),
    (-9, 'SIGKILL.*memory ran out'),
    (-99, 'killed by signal 99'),
  ],
)
def test_ends_are_described(code, words):
  assert re.search(words, child_processes.describe_return_code(code))
