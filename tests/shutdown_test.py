"""Whether programs leave workers behind, tried with real programs."""

import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

pytestmark = [
  pytest.mark.timeout(90),
  pytest.mark.skipif(
    sys.platform != 'linux', reason='The kernel ends workers on Linux only.'
  ),
]

# The computation would take hours; a busy machine needs its time.
_AT_ONCE = 15

# Prints its worker's process id, and then does what its first argument says.
_PROGRAM = textwrap.dedent("""
  import signal, sys
  # A program started in the background by a shell ignores Ctrl-C.
  signal.signal(signal.SIGINT, signal.default_int_handler)

  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff
  from tff_pfl import runtime, shutdown

  @tff.tensorflow.computation(np.int64)
  def count(limit):
    return tf.data.Dataset.range(limit).reduce(np.int64(0), lambda n, x: n + x)

  how = sys.argv[1]
  if how == 'clean sigterm':
    shutdown.exit_cleanly_on_sigterm()
  if how == 'context of TFF':
    import psutil
    count(10)
    print(psutil.Process().children()[0].pid, flush=True)
    sys.stdin.readline()
    sys.exit()
  rt = runtime.create_runtime('native')
  rt.install()
  count(10)
  print(rt.worker_pid, flush=True)
  if how in ('end', 'exception'):
    # Until it has been looked whether the worker runs.
    sys.stdin.readline()
  if how == 'exception':
    raise ValueError('An error of the program.')
  if how in ('long', 'clean sigterm'):
    try:
      count(10**12)
    finally:
      print('finally', flush=True)
""")


class _Program:
  """A running program and its worker."""

  def __init__(self, how: str):
    self._process = subprocess.Popen(
      [sys.executable, '-W', 'ignore', '-c', _PROGRAM, how],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    self.worker_pid = int(self._process.stdout.readline())
    self.was_running = psutil.pid_exists(self.worker_pid)

  def end(self, signal_number=None):
    """Sends a signal during the computation; returns how the program ended.

    Args:
      signal_number: The signal; None to let the program end by itself.

    Returns:
      The exit status, the rest of stdout, stderr, and the seconds from the
      signal until the program was gone and its stdout closed.
    """
    if signal_number is not None:
      time.sleep(0.5)
      self._process.send_signal(signal_number)
    begin = time.monotonic()
    out, err = self._process.communicate(input='\n', timeout=60)
    seconds = time.monotonic() - begin
    return self._process.returncode, out, err, seconds

  def has_orphan(self) -> bool:
    """Returns whether the worker still runs, some moments later."""
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
      # A killed process nobody has waited for yet still has its id.
      try:
        status = psutil.Process(self.worker_pid).status()
      except psutil.NoSuchProcess:
        return False
      if status == psutil.STATUS_ZOMBIE:
        return False
      time.sleep(0.02)
    return True


def test_normal_exit_leaves_no_worker_and_prints_nothing():
  program = _Program('end')
  status, _, err, _ = program.end()
  assert program.was_running
  assert not program.has_orphan()
  assert status == 0
  assert 'Exception ignored' not in err
  assert 'Traceback' not in err


def test_uncaught_exception_leaves_no_worker():
  program = _Program('exception')
  status, _, err, _ = program.end()
  assert program.was_running
  assert not program.has_orphan()
  assert status == 1
  assert err.rstrip().endswith('ValueError: An error of the program.')


def test_ctrl_c_in_a_computation_ends_program_and_worker_at_once():
  program = _Program('long')
  status, out, err, seconds = program.end(signal.SIGINT)
  assert program.was_running
  assert not program.has_orphan()
  assert status == -signal.SIGINT  # 130 in a shell.
  assert out == 'finally\n'
  assert err.rstrip().endswith('KeyboardInterrupt')
  assert seconds < _AT_ONCE


def test_sigterm_leaves_no_worker():
  program = _Program('long')
  status, _, _, seconds = program.end(signal.SIGTERM)
  assert program.was_running
  assert not program.has_orphan()
  assert status == -signal.SIGTERM
  assert seconds < _AT_ONCE


def test_sigterm_ends_cleanly_with_status_143_where_asked_for():
  program = _Program('clean sigterm')
  status, out, err, seconds = program.end(signal.SIGTERM)
  assert program.was_running
  assert not program.has_orphan()
  assert status == 143
  assert out == 'finally\n'
  assert 'Traceback' not in err
  assert seconds < _AT_ONCE


def test_kill_9_leaves_no_worker_and_closes_stdout():
  program = _Program('long')
  status, _, _, seconds = program.end(signal.SIGKILL)
  assert program.was_running
  assert not program.has_orphan()
  assert status == -signal.SIGKILL
  assert seconds < _AT_ONCE


def test_worker_of_tffs_own_context_is_stopped_too():
  program = _Program('context of TFF')
  status, _, err, _ = program.end()
  assert program.was_running
  assert not program.has_orphan()
  assert status == 0
  assert 'Exception ignored' not in err
