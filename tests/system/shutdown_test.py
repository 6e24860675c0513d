"""Whether programs leave workers behind, tried with real programs."""

import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from tff_pfl.system import shutdown

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
  import contextlib, signal, sys
  # A program started in the background by a shell ignores Ctrl-C.
  signal.signal(signal.SIGINT, signal.default_int_handler)

  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff
  from tff_pfl import runtime
  from tff_pfl.system import shutdown

  @tff.tensorflow.computation(np.int64)
  def count(limit):
    return tf.data.Dataset.range(limit).reduce(np.int64(0), lambda n, x: n + x)

  how = sys.argv[1]
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
  if how in ('long', 'stopping on signals'):
    with contextlib.ExitStack() as stack:
      if how == 'stopping on signals':
        stack.enter_context(shutdown.stopping_on_signals())
      stack.callback(print, 'finally', flush=True)
      count(10**12)
""")

# Without TensorFlow: what does not need it.
_QUICK_PROGRAM = """
import importlib.util, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
spec = importlib.util.spec_from_file_location('shutdown', sys.argv[1])
shutdown = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shutdown)
shutdown._SECONDS_TO_NOTICE = float(sys.argv[2])

def press(number=signal.SIGINT, wait=0.2):
  os.kill(os.getpid(), number)
  time.sleep(wait)

class Finalized:
  def __del__(self):
    press()

with shutdown.stopping_on_signals():
"""


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_sigterm_leaves_no_worker():
  program = _Program('long')
  status, _, _, seconds = program.end(signal.SIGTERM)
  assert program.was_running
  assert not program.has_orphan()
  assert status == -signal.SIGTERM
  assert seconds < _AT_ONCE


@pytest.mark.slow
@pytest.mark.parametrize(
  'signal_number,status,words',
  [(signal.SIGTERM, 143, ''), (signal.SIGINT, 130, 'interrupted\n')],
)
def test_a_program_that_stops_on_signals_ends_cleanly(
  signal_number, status, words
):
  program = _Program('stopping on signals')
  found_status, out, err, seconds = program.end(signal_number)
  assert program.was_running
  assert not program.has_orphan()
  assert found_status == status
  assert out == 'finally\n'
  assert 'Traceback' not in err
  assert err.endswith(words)
  assert seconds < _AT_ONCE


def _run_quick_program(block, seconds_to_notice=60):
  return subprocess.run(
    [
      sys.executable,
      '-c',
      _QUICK_PROGRAM + textwrap.indent(textwrap.dedent(block), '  '),
      shutdown.__file__,
      str(seconds_to_notice),
    ],
    capture_output=True,
    text=True,
    timeout=60,
  )


def test_a_signal_in_a_finalizer_is_not_lost():
  program = _run_quick_program("""
    try:
      Finalized()
      print('goes on')
      shutdown.raise_if_stopped()
      print('is not stopped')
    finally:
      print('cleans up')
  """)
  assert program.returncode == 130
  assert program.stdout == 'goes on\ncleans up\n'
  assert program.stderr == 'interrupted\n'


@pytest.mark.parametrize('number,status', [('SIGINT', 130), ('SIGTERM', 143)])
def test_a_signal_during_the_last_work_is_not_lost(number, status):
  program = _run_quick_program(f'press(signal.{number}, wait=0)')
  assert program.returncode == status


def test_an_error_that_a_signal_led_to_is_no_error():
  program = _run_quick_program('press()\nraise ValueError')
  assert program.returncode == 130
  assert program.stderr == 'interrupted\n'


def test_a_program_that_does_not_look_is_ended():
  program = _run_quick_program('press()\nwhile True: pass', 0.1)
  assert program.returncode == 130
  assert program.stderr == 'interrupted\n'


def test_a_second_signal_ends_a_program_at_once():
  program = _run_quick_program("""
    try:
      press()
      shutdown.raise_if_stopped()
    finally:
      press()
      print('is not reached', flush=True)
  """)
  assert program.returncode == 130
  assert not program.stdout


def test_an_ignored_signal_stays_ignored():
  program = _run_quick_program("""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with shutdown.stopping_on_signals():
      press()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    print('goes on')
  """)
  assert program.stdout == 'goes on\n'
  assert program.returncode == 0


def test_kill_9_leaves_no_worker_and_closes_stdout():
  program = _Program('long')
  status, _, _, seconds = program.end(signal.SIGKILL)
  assert program.was_running
  assert not program.has_orphan()
  assert status == -signal.SIGKILL
  assert seconds < _AT_ONCE


@pytest.mark.slow
def test_worker_of_tffs_own_context_is_stopped_too():
  program = _Program('context of TFF')
  status, _, err, _ = program.end()
  assert program.was_running
  assert not program.has_orphan()
  assert status == 0
  assert 'Exception ignored' not in err
