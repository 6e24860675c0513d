"""One process of TFF's C++ worker: started, watched and stopped.

A worker is an ordinary TFF `ExecutorGroup` service. It is reached from this
machine only; see `worker_port` for how, and for what that does not protect
against.

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
from typing import IO, Optional

import tensorflow_federated as tff
from absl import logging

from tff_pfl import errors
from tff_pfl.runtime import worker_port
from tff_pfl.system import child_processes, cores

_MAX_LOG_LINES = 50
_MAX_LINE_BYTES = 4096
_MAX_REPORTED_CHARACTERS = 300
# "2023-11-21 05:36:54.259937: I tensorflow/core/util/port.cc:111] message"
_LOG_LINE = re.compile(
  r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<severity>[IWEF]) \S+\] '
)


class WorkerDiedError(errors.RunError):
  """A worker ended, or was lost, while it was needed."""


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
  ):
    """Starts the process.

    Where the environment has no `TF_NUM_INTRAOP_THREADS`, the cores are divided
    among the concurrent clients. Splitting each one's matrix products over all
    cores makes rounds slower (by half for an MLP on two cores) and their
    rounding dependent on the number of cores.

    Args:
      max_concurrent_clients: How many clients' computations run at the same
        time, at least 1; None for the number of usable CPU cores.
      binary: The path of the worker; None for the one that comes with TFF.

    Raises:
      RunError: If the binary is missing or not executable.
      ValueError: If a number is out of range.
    """
    max_concurrent_clients = cores.concurrent_clients(max_concurrent_clients)
    package = os.path.dirname(os.path.abspath(tff.__file__))
    binary = binary or os.path.join(package, 'data', 'worker_binary')
    _check_executable(binary)
    self._owner_pid = os.getpid()
    self._log = collections.deque(maxlen=_MAX_LOG_LINES)
    self._started = threading.Event()
    self._ended = threading.Event()
    self._stop_requested = False
    self._start_error: Optional[OSError] = None
    self._port = worker_port.WorkerPort()
    num_threads = cores.threads_per_client(max_concurrent_clients)
    # The kernel's order to kill the worker takes effect when the *thread* that
    # started it ends, so the thread that reads its output, and lives as long
    # as the worker does, starts it.
    self._thread = threading.Thread(
      target=self._start_and_watch,
      args=(
        child_processes.launch_command(
          binary,
          f'--port={self._port.number}',
          f'--max_concurrent_computation_calls={max_concurrent_clients}',
        ),
        {'TF_NUM_INTRAOP_THREADS': str(num_threads), **os.environ},
      ),
      name=f'tff-worker-{self._port.number}',
      daemon=True,
    )
    self._thread.start()
    self._started.wait()
    if self._start_error is not None:
      self._port.close()
      raise errors.RunError(
        f'Could not start a TFF worker: {self._start_error.strerror}.'
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
    """Returns when the worker accepts connections; stops it if it does not.

    Args:
      timeout_seconds: How long to wait; loading the binary (300 MB) from a slow
        disk is what takes time.

    Raises:
      WorkerDiedError: If the worker ended first.
      RunError: If it did not answer in time.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
      while not self._port.is_served():
        if self.wait(0.01):
          raise WorkerDiedError(self.describe_end())
        if time.monotonic() > deadline:
          raise errors.RunError(
            f'The TFF worker (process {self.pid}) did not answer on port '
            f'{self.port} within {timeout_seconds:g} seconds'
            f'{self._last_words()}.'
          )
    except BaseException:
      self.stop()
      raise

  def describe_end(self) -> str:
    """Returns one line on how the worker ended, or that it still runs."""
    worker = f'The TFF worker (process {self.pid})'
    if self.is_running:
      return f'{worker} is running.'
    if self._stop_requested:
      return f'{worker} was stopped.'
    ended = child_processes.describe_return_code(self._process.returncode)
    return f'{worker} {ended}{self._last_words()}.'

  def check(self, patience_seconds: float = 0.0) -> None:
    """Raises if the worker has ended, or ends while this waits.

    Raises:
      RunError: If `stop` stopped it; `WorkerDiedError` if it died.
    """
    if self.wait(patience_seconds):
      kind = errors.RunError if self._stop_requested else WorkerDiedError
      raise kind(self.describe_end())

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
    self, command: list[str], environment: dict[str, str]
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
    """Returns the last message for a report; what only informs is none."""
    for line in reversed(self._log):
      match = _LOG_LINE.match(line)
      if match is None or match.group('severity') != 'I':
        words = line[match.end() if match else 0 :][:_MAX_REPORTED_CHARACTERS]
        return f'; its last message: {words!r}'
    return ''


def _check_executable(binary: str) -> None:
  """Raises `RunError` unless `binary` is a file that can be executed."""
  if not (os.path.isfile(binary) and os.access(binary, os.X_OK)):
    raise errors.RunError(
      f'The TFF worker {binary} does not exist or is not executable; reinstall '
      'tensorflow-federated.'
    )
