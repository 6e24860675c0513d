"""Ends of programs, tried with real ones."""

import contextlib
import itertools
import os
import re
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

# Imports TFF before the library; does what its argument says. Without one it
# forks itself for each line that it reads: what the fork does, and where its
# stderr goes. The fork prints its own and its worker's process id; its status
# follows when it has ended.
_PROGRAMS = """
import contextlib, importlib.util, os, signal, sys
# A program started in the background by a shell ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

importlib.util.find_spec('tensorflow_federated')
import tensorflow_federated as tff
from tff_pfl import runtime
from tff_pfl.system import shutdown
import numpy as np
import psutil
import tensorflow as tf

if sys.argv[1:]:
  how = sys.argv[1]
else:
  tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 9, 1.0)
  print(
    tf.keras.Model.__module__, 'TF_USE_LEGACY_KERAS' in os.environ, flush=True
  )
  for how, path in iter(lambda: sys.stdin.readline().split('|'), ['']):
    pid = os.fork()
    if not pid:
      break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print('ended', status, sep='\\n', flush=True)
  else:
    sys.exit()
  os.dup2(os.open(path.strip(), os.O_WRONLY | os.O_CREAT), 2)
  print(os.getpid(), flush=True)

@tff.tensorflow.computation(np.int64)
def count(limit):
  return tf.data.Dataset.range(limit).reduce(np.int64(0), lambda n, x: n + x)

if how == 'contexts of TFF':
  # The default one, and others, of which one has no worker.
  contexts = [tff.framework.get_context_stack().current] + [
    tff.backends.native.create_sync_local_cpp_execution_context()
    for _ in range(2)
  ]
  for context in contexts[:2]:
    with tff.framework.get_context_stack().install(context):
      count(10)
  print(*[child.pid for child in psutil.Process().children()], flush=True)
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


_COMMAND = (sys.executable, '-W', 'ignore', '-c', _PROGRAMS)


@pytest.fixture(scope='module', name='programs')
def _programs():
  environment = {**os.environ}
  # The tests have it; see conftest.py.
  del environment['TF_USE_LEGACY_KERAS']
  with subprocess.Popen(
    _COMMAND,
    env=environment,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    process.keras = process.stdout.readline()
    yield process
    process.kill()


def test_tff_may_be_imported_first_and_tf_keras_stays_keras_3(programs):
  assert re.fullmatch(r'keras\.src\.\S+ False\n', programs.keras)


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
  ],
)
def test_however_a_program_ends_it_leaves_no_worker(
  how, signal_number, status, out, err_end, programs, tmp_path
):
  """A signal comes during a computation; without one it ends by itself."""

  def tell(line):
    programs.stdin.write(f'{line}\n')
    programs.stdin.flush()

  tell(f'{how}|{tmp_path / "stderr"}')
  pid, worker_pid = (int(programs.stdout.readline()) for _ in range(2))
  program = psutil.Process(pid)
  try:
    assert psutil.pid_exists(worker_pid)
    if signal_number is None:
      tell('')
    else:
      time.sleep(0.5)
      program.send_signal(signal_number)
    begin = time.monotonic()
    lines = [*itertools.takewhile('ended\n'.__ne__, programs.stdout)]
    seconds = time.monotonic() - begin
    found_status = int(programs.stdout.readline())
  finally:
    with contextlib.suppress(psutil.NoSuchProcess):
      program.kill()
  assert not _has_orphan(worker_pid)
  assert signal_number is None or seconds < _AT_ONCE
  assert found_status == status
  assert ''.join(lines) == out
  err = (tmp_path / 'stderr').read_text()
  assert err.endswith(err_end)
  assert 'Exception ignored' not in err


@pytest.mark.slow
def test_a_program_that_holds_contexts_of_tff_leaves_no_worker():
  # No fork, which has not the threads of its executors.
  program = subprocess.Popen(
    [*_COMMAND, 'contexts of TFF'],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  worker_pids = [int(pid) for pid in program.stdout.readline().split()]
  assert len(worker_pids) == 2
  assert all(map(psutil.pid_exists, worker_pids))
  _, err = program.communicate(input='\n', timeout=60)
  assert not any(map(_has_orphan, worker_pids))
  assert program.returncode == 0
  assert 'Exception' not in err


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
    ('press()\nraise ValueError', 130, '', 60),
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
    'error that it led to',
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
