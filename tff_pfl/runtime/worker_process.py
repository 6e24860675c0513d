"""One process of TFF's C++ worker: started, watched and stopped.

`start_worker` returns a worker that answers, an ordinary TFF `ExecutorGroup`
service. It is reached from this machine only; see `worker_port` for how, and
for what that does not protect against.

The worker never outlives its owner:

* `WorkerProcess.stop`, leaving a ``with`` block and the interpreter's exit stop
  it: SIGTERM, then SIGKILL after a grace time, and its exit is always awaited.
* On Linux the kernel kills it when the owner dies otherwise, by `kill -9` too
  (see `child_launcher`).

It runs in a session of its own, so that Ctrl-C in a terminal reaches Python
alone, which then decides. It does not hold the owner's stdin, stdout or stderr
open: what it writes is read here. Log lines in TensorFlow's format are kept for
error reports (and logged at debug level); any other line, such as what
`tf.print` writes in a client's computation, is passed on to `sys.stderr`.
"""

import atexit
import collections
import functools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Optional

import tensorflow_federated as tff
from absl import logging

from tff_pfl import errors
from tff_pfl.runtime import worker_port
from tff_pfl.system import child_processes, cores

_MAX_LOG_LINES = 50
_MAX_LINE_BYTES = 4096
_MAX_REPORTED_CHARACTERS = 300
_NUM_PORTS_TRIED = 3
# "2023-11-21 05:36:54.259937: I tensorflow/core/util/port.cc:111] message"
_LOG_LINE = re.compile(
  r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<severity>[IWEF]) \S+\] '
)


class WorkerDiedError(errors.RunError):
  """A worker ended, or was lost, while it was needed."""


def default_worker_binary() -> str:
  """Returns the path of the worker that comes with the installed TFF."""
  package = os.path.dirname(os.path.abspath(tff.__file__))
  return os.path.join(package, 'data', 'worker_binary')


class WorkerProcess:
  """One running worker.

  The process exists when the constructor returns; `wait_until_ready` returns
  when it answers. A worker that ended is not started again: make a new one.
  """

  def __init__(
    self,
    *,
    max_concurrent_clients: Optional[int] = None,
    binary: Optional[str] = None,
    environment: Optional[Mapping[str, str]] = None,
  ):
    """Starts the process.

    Args:
      max_concurrent_clients: How many clients' computations run at the same
        time, at least 1; None for the number of usable CPU cores.
      binary: The path of the worker; None for the one that comes with TFF.
      environment: Environment variables that are added to this process's own.
        Where neither has `TF_NUM_INTRAOP_THREADS`, the cores are divided among
        the concurrent clients.

    Raises:
      RunError: If the binary is missing or not executable.
      ValueError: If a number is out of range.
    """
    max_concurrent_clients = cores.concurrent_clients(max_concurrent_clients)
    binary = binary or default_worker_binary()
    _check_executable(binary)
    self._owner_pid = os.getpid()
    self._log = collections.deque(maxlen=_MAX_LOG_LINES)
    self._started = threading.Event()
    self._ended = threading.Event()
    self._stop_requested = False
    self._start_error: Optional[OSError] = None
    self._port = worker_port.WorkerPort()
    command = child_processes.launch_command(
      binary,
      f'--port={self._port.number}',
      f'--max_concurrent_computation_calls={max_concurrent_clients}',
    )
    # The kernel's order to kill the worker takes effect when the *thread* that
    # started it ends, so the thread that reads its output, and lives as long
    # as the worker does, starts it.
    self._thread = threading.Thread(
      target=self._start_and_watch,
      args=(
        command,
        {
          **_thread_settings(max_concurrent_clients),
          **os.environ,
          **(environment or {}),
        },
      ),
      name=f'tff-worker-{self._port.number}',
      daemon=True,
    )
    self._thread.start()
    self._started.wait()
    if self._start_error is not None:
      self._port.close()
      raise errors.RunError(
        f'Could not start the TFF worker {binary}: '
        f'{self._start_error.strerror}.'
      )
    atexit.register(self.stop)

  def __enter__(self) -> 'WorkerProcess':
    return self

  def __exit__(self, *unused_exception) -> None:
    self.stop()

  @property
  def pid(self) -> int:
    """The worker's process id."""
    return self._process.pid

  @property
  def port(self) -> int:
    """The TCP port that the worker serves on."""
    return self._port.number

  @property
  def target(self) -> str:
    """The worker's gRPC address."""
    return self._port.target

  @property
  def is_running(self) -> bool:
    """Whether the process exists; true from start to the end of `stop`."""
    return not self._ended.is_set()

  def wait(self, timeout_seconds: Optional[float] = None) -> bool:
    """Waits for the worker's end; returns whether it ended in that time."""
    return self._ended.wait(timeout_seconds)

  def wait_until_ready(self, timeout_seconds: float = 60.0) -> None:
    """Returns when the worker accepts connections.

    Args:
      timeout_seconds: How long to wait; loading the binary (300 MB) from a slow
        disk is what takes time.

    Raises:
      WorkerDiedError: If the worker ended first.
      RunError: If it did not answer in time.
    """
    deadline = time.monotonic() + timeout_seconds
    while not self._port.is_served():
      if self.wait(0.01):
        raise WorkerDiedError(self.describe_end())
      if time.monotonic() > deadline:
        raise errors.RunError(
          f'The TFF worker (process {self.pid}) did not answer on port '
          f'{self.port} within {timeout_seconds:g} seconds'
          f'{self._last_words()}.'
        )

  def describe_end(self) -> str:
    """Returns one line on how the worker ended, or that it still runs."""
    worker = f'The TFF worker (process {self.pid})'
    if self.is_running:
      return f'{worker} is running.'
    if self._stop_requested:
      return f'{worker} was stopped.'
    ended = child_processes.describe_return_code(self._process.returncode)
    return f'{worker} {ended}{self._last_words()}.'

  def find_loss(self, patience_seconds: float) -> Optional[errors.RunError]:
    """Returns what to raise for a call to this worker that failed.

    Args:
      patience_seconds: How long to wait for the worker's end.

    Returns:
      `WorkerDiedError` if the worker died, `RunError` if it was stopped by
      `stop`, and None if it is running: the error is the call's own.
    """
    if not self.wait(patience_seconds):
      return None
    if self._stop_requested:
      return errors.RunError(self.describe_end())
    return WorkerDiedError(self.describe_end())

  def stop(self, grace_seconds: float = 2.0) -> None:
    """Ends the worker and waits for its end; does nothing if it has ended.

    Args:
      grace_seconds: The time between asking (SIGTERM) and killing (SIGKILL).
    """
    if os.getpid() != self._owner_pid:
      return  # A forked copy of the owner that exits: not its worker.
    atexit.unregister(self.stop)
    if self.is_running:
      self._stop_requested = True
      self._process.terminate()
      if not self.wait(grace_seconds):
        self._process.kill()
        self.wait()
    self._thread.join()
    self._port.close()

  def _start_and_watch(
    self, command: list[str], environment: Mapping[str, str]
  ) -> None:
    """Starts the worker, reads what it writes, and awaits its end."""
    try:
      self._process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
      )
    except OSError as error:
      self._start_error = error
      self._ended.set()
      return
    finally:
      self._started.set()
    with self._process.stdout as output:
      self._read_output(output)
    self._process.wait()
    self._ended.set()

  def _read_output(self, output: IO[bytes]) -> None:
    """Takes lines until the worker closes its output."""
    for line in iter(functools.partial(output.readline, _MAX_LINE_BYTES), b''):
      text = line.decode(errors='replace').rstrip()
      if _LOG_LINE.match(text):
        self._log.append(text)
        logging.debug('TFF worker %d: %s', self._process.pid, text)
        continue
      if text:
        self._log.append(text)
      try:
        sys.stderr.write(f'{text}\n')
      except (AttributeError, OSError, ValueError):
        # No usable stderr. Reading must go on, or the worker would block.
        pass

  def _last_words(self) -> str:
    """Returns what to add to a report: the last error, else the last message.

    Messages that only inform say nothing about an end.
    """
    chosen, chosen_rank = '', 0
    for line in list(self._log):
      match = _LOG_LINE.match(line)
      severity = match.group('severity') if match else ''
      rank = {'I': 0, 'E': 2, 'F': 2}.get(severity, 1)
      if rank and rank >= chosen_rank:
        chosen, chosen_rank = line[match.end() if match else 0 :], rank
    if not chosen:
      return ''
    return f'; its last message: {chosen[:_MAX_REPORTED_CHARACTERS]!r}'


def start_worker(
  *,
  max_concurrent_clients: Optional[int] = None,
  binary: Optional[str] = None,
  environment: Optional[Mapping[str, str]] = None,
  timeout_seconds: float = 60.0,
) -> WorkerProcess:
  """Starts a worker and returns it when it answers.

  One that ends before it answers is replaced by another, a few times: somebody
  else may have taken its port.

  Args:
    max_concurrent_clients: How many clients' computations run at the same time,
      at least 1; None for the number of usable CPU cores.
    binary: The path of the worker; None for the one that comes with TFF.
    environment: Environment variables that are added to this process's own.
    timeout_seconds: How long to wait for an answer.

  Returns:
    The worker. The caller stops it.

  Raises:
    WorkerDiedError: If the worker ends before it answers.
    RunError: If it cannot be started or does not answer in time.
    ValueError: If a number is out of range.
  """
  for tries_left in reversed(range(_NUM_PORTS_TRIED)):
    worker = WorkerProcess(
      max_concurrent_clients=max_concurrent_clients,
      binary=binary,
      environment=environment,
    )
    try:
      worker.wait_until_ready(timeout_seconds)
      return worker
    except WorkerDiedError:
      worker.stop()
      if not tries_left:
        raise
    except BaseException:
      worker.stop()
      raise
  raise AssertionError('The last try either returned or raised.')


def _check_executable(binary: str) -> None:
  """Raises `RunError` unless `binary` is a file that can be executed."""
  if not os.path.isfile(binary):
    raise errors.RunError(
      f'The TFF worker {binary} does not exist; reinstall tensorflow-federated.'
    )
  if not os.access(binary, os.X_OK):
    raise errors.RunError(
      f'The TFF worker {binary} is not executable; run: chmod +x {binary}'
    )


def _thread_settings(max_concurrent_clients: int) -> dict[str, str]:
  """Returns environment variables that divide the cores among clients.

  Clients run side by side, one on each core. Splitting each one's matrix
  products over the same cores as well makes rounds slower (by half for an MLP
  on two cores) and their rounding dependent on the number of cores.
  """
  num_threads = cores.threads_per_client(max_concurrent_clients)
  return {'TF_NUM_INTRAOP_THREADS': str(num_threads)}
