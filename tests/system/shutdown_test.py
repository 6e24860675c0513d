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


def _has_orphan(worker_pid):
  """Returns whether the worker still runs, some moments later."""
  deadline = time.monotonic() + 2.0
  while time.monotonic() < deadline:
    # A killed process nobody has waited for yet still has its id.
    try:
      status = psutil.Process(worker_pid).status()
    except psutil.NoSuchProcess:
      return False
    if status == psutil.STATUS_ZOMBIE:
      return False
    time.sleep(0.02)
  return True


def _slow(*values):
  return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  'how, signal_number, status, out, err_end',
  [
    _slow('end', None, 0, '', ''),
    _slow('exception', None, 1, '', 'ValueError: An error of the program.\n'),
    # 130 in a shell.
    ('long', signal.SIGINT, -signal.SIGINT, 'finally\n', 'KeyboardInterrupt\n'),
    _slow('long', signal.SIGTERM, -signal.SIGTERM, '', ''),
    ('long', signal.SIGKILL, -signal.SIGKILL, '', ''),
    _slow('stopping on signals', signal.SIGTERM, 143, 'finally\n', ''),
    _slow(
      'stopping on signals', signal.SIGINT, 130, 'finally\n', 'interrupted\n'
    ),
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
  if status >= 0 and how != 'exception':
    assert 'Traceback' not in err


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


@pytest.mark.parametrize(
  'block, status, out',
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
    ),
    ('press(wait=0)', 130, ''),
    ('press(signal.SIGTERM, wait=0)', 143, ''),
    ('press()\nraise ValueError', 130, ''),
  ],
  ids=['finalizer', 'last work', 'last work, SIGTERM', 'error that it led to'],
)
def test_a_signal_is_not_lost(block, status, out):
  program = _run_quick_program(block)
  assert program.returncode == status
  assert program.stdout == out
  assert program.stderr == ('interrupted\n' if status == 130 else '')


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
