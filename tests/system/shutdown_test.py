"""Ends of programs, tried with real ones."""

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
_PROGRAM = """
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
if how == 'exception':
  # Until it has been looked whether the worker runs.
  sys.stdin.readline()
  raise ValueError('An error of the program.')
with contextlib.ExitStack() as stack:
  if how == 'stopping on signals':
    stack.enter_context(shutdown.stopping_on_signals())
  stack.callback(print, 'finally', flush=True)
  count(10**12)
"""


def _has_orphan(worker_pid):
  """True if the worker still runs, some moments later."""
  try:
    worker = psutil.Process(worker_pid)
  except psutil.NoSuchProcess:
    return False
  deadline = time.monotonic() + 2.0
  while worker.is_running() and time.monotonic() < deadline:
    # A killed process nobody has waited for yet still has its id.
    if worker.status() == psutil.STATUS_ZOMBIE:
      return False
    time.sleep(0.02)
  return worker.is_running()


def _slow(*values):
  return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  'how, signal_number, status, out, err_end',
  [
    _slow('exception', None, 1, '', 'ValueError: An error of the program.\n'),
    # 130 in a shell.
    ('long', signal.SIGINT, -signal.SIGINT, 'finally\n', 'KeyboardInterrupt\n'),
    ('long', signal.SIGKILL, -signal.SIGKILL, '', ''),
    _slow('stopping on signals', signal.SIGTERM, 143, 'finally\n', ''),
    _slow('context of TFF', None, 0, '', ''),
  ],
)
def test_however_a_program_ends_it_leaves_no_worker(
  how, signal_number, status, out, err_end
):
  """A signal comes during a computation; without one it ends by itself."""
  program = subprocess.Popen(
    [sys.executable, '-W', 'ignore', '-c', _PROGRAM, how],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  worker_pid = int(program.stdout.readline())
  assert psutil.pid_exists(worker_pid)
  if signal_number is not None:
    time.sleep(0.5)
    program.send_signal(signal_number)
  begin = time.monotonic()
  found_out, err = program.communicate(input='\n', timeout=60)
  if signal_number is not None:
    assert time.monotonic() - begin < _AT_ONCE
  assert not _has_orphan(worker_pid)
  assert program.returncode == status
  assert found_out == out
  assert err.endswith(err_end)
  assert 'Exception ignored' not in err


_BLOCK = """
import os, signal, sys, time
from tff_pfl.system import shutdown
signal.signal(signal.SIGINT, signal.default_int_handler)
shutdown._SECONDS_TO_NOTICE = float(sys.argv[1])

def press(number=signal.SIGINT):
  os.kill(os.getpid(), number)

class Finalized:
  def __del__(self):
    press()

with shutdown.stopping_on_signals():
"""


@pytest.mark.parametrize(
  'block, status, out, seconds_to_notice',
  [
    (
      """
      try:
        Finalized()
        print('goes on')
        shutdown.raise_if_stopped()
        print('is not stopped')
      finally:
        print('cleans up')
      """,
      130,
      'goes on\ncleans up\n',
      60,
    ),
    ('press()', 130, '', 60),
    ('press(signal.SIGTERM)', 143, '', 60),
    ('press()\nraise ValueError', 130, '', 60),
    ('press()\nwhile True: pass', 130, '', 0.1),
    ('press(signal.SIGTERM)\ntime.sleep(60)', 143, '', 0.1),
    ('press()\npress()\ntime.sleep(60)', 130, '', 60),
    (
      """
      try:
        press()
        shutdown.raise_if_stopped()
      finally:
        press(signal.SIGTERM)
        print('is not reached', flush=True)
      """,
      143,
      '',
      60,
    ),
  ],
  ids=[
    'finalizer',
    'last work',
    'last work, SIGTERM',
    'error that it led to',
    'does not look',
    'does not look, SIGTERM',
    'twice',
    'again in clean-up',
  ],
)
def test_a_signal_ends_a_program(block, status, out, seconds_to_notice):
  program = subprocess.run(
    [
      *(sys.executable, '-c'),
      _BLOCK + textwrap.indent(textwrap.dedent(block), '  '),
      str(seconds_to_notice),
    ],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert program.returncode == status, program.stderr
  assert program.stdout == out
  assert program.stderr in ('', 'interrupted\n')


def test_an_ignored_signal_stays_ignored():
  previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with shutdown.stopping_on_signals():
      signal.raise_signal(signal.SIGINT)
      shutdown.raise_if_stopped()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGINT, previous)
