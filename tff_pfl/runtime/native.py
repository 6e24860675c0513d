"""TFF's own C++ runtime, with its worker process under our control.

TFF's local context starts the same worker but never stops it: its clean-up
fails when the interpreter exits, and the orphan keeps running and holds the
program's stdout open. If a worker dies, TFF tries forever to reach it.

Here the first computation starts the worker. The worker ends with this process
(see `child_processes.launch_command`) and accepts connections from this machine
only (see `worker_port`). If it dies, the running computation raises `RunError`,
and the next one starts another worker.

The worker runs TensorFlow on the CPU only.
"""

import asyncio
import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, Optional

import grpc

from tff_pfl import errors, fields
from tff_pfl import tff_api as tff
from tff_pfl.runtime import base, lowering, threads, worker_port
from tff_pfl.system import child_processes, cores, program_cache
from tff_pfl.system.private_api import executor_pb2_grpc

_BINARY = os.path.join(tff.FOLDER, 'data', 'worker_binary')
# Loading the binary (300 MB) from a slow disk takes long.
_SECONDS_TO_START = 60.0
# The kernel closes a dying process's sockets just before the process ends.
_SECONDS_TO_END = 2.0
# A worker that still computes with a value does not answer its release, but
# releases it later.
_SECONDS_TO_RELEASE = 1.0
# Number of values that the worker frees at a time. TFF's default of 20 keeps
# the arguments and results of several past rounds alive.
_DISPOSE_BATCH_SIZE = 4
# gRPC's limit is a signed 32-bit number of bytes.
_MAX_MESSAGE_BYTES = 2**31 - 1
_CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # A proxy set in the environment must not carry the traffic.
  ('grpc.enable_http_proxy', 0),
)


class NativeRuntime(base.Runtime):
  """A runtime with one C++ worker on this machine."""

  @fields.checked_call
  def __init__(self, *, max_concurrent_clients: Optional[fields.Size] = None):
    """Prepares the runtime. The first computation starts the worker.

    Args:
      max_concurrent_clients: Number of clients that compute at the same time,
        at least 1. None means one per usable CPU core.
    """
    self._engine = _Engine(max_concurrent_clients or cores.num_usable_cores())
    super().__init__(self._engine)

  @property
  def worker_pid(self) -> Optional[int]:
    """Process id of the worker, or None if none is running."""
    worker = self._engine.worker
    return worker.process.pid if worker and worker.is_running else None


class _Engine(base.Engine):
  """An engine with one worker at a time, used by one thread."""

  def __init__(self, num_clients: int):
    super().__init__()
    self._num_clients = num_clients
    # The kernel kills the worker when the *thread* that started it ends, so
    # this thread lives until the end.
    self._thread = threads.Threads(1, 'tff-worker')
    self._lock = threading.Lock()
    self.worker: Optional[_Worker] = None

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Returns the computation's result.

    It is computed in another thread, so the caller's thread reacts to Ctrl-C at
    any time and may have its own event loop (as in notebooks).
    """
    self.check_open()
    outcome = self._thread.submit(self._compute, comp, arg)
    try:
      return threads.result_of(outcome)
    except threads.ClosedError:
      self.check_open()
      raise
    finally:
      if not outcome.done():
        # Ctrl-C or a request to exit. The running call cannot be canceled, so
        # its worker is stopped.
        self._stop_worker()

  def _compute(self, comp: Any, arg: Any) -> Any:
    worker = self._running_worker()
    try:
      return asyncio.run(worker.context.invoke(comp, arg))
    except (grpc.RpcError, ValueError) as error:
      # If neither check raises, it is the computation's own error.
      self.check_open()
      worker.check(error)
      raise

  def _running_worker(self) -> '_Worker':
    with self._lock:
      self.check_open()
      if self.worker is not None and not self.worker.is_running:
        self.worker.stop()
        self.worker = None
      if self.worker is None:
        self.worker = _Worker(self._num_clients)
      return self.worker

  def _stop_worker(self) -> None:
    with self._lock:
      worker, self.worker = self.worker, None
      if worker is not None:
        worker.stop()

  def close(self) -> None:
    super().close()
    self._stop_worker()
    self._thread.close()


class _Worker:
  """A running worker and TFF's context on it."""

  def __init__(self, num_clients: int):
    """Starts the process and returns when it answers.

    If the environment has no `TF_NUM_INTRAOP_THREADS`, the concurrent clients
    divide the cores. If each client's matrix products used all cores, rounds
    would be slower (by half for an MLP on two cores) and their rounding would
    depend on the number of cores.
    """
    self._port = worker_port.WorkerPort()
    self._owner_pid = os.getpid()
    environment = {
      'TF_NUM_INTRAOP_THREADS': str(cores.threads_per_client(num_clients)),
      **os.environ,
    }
    # The worker's TensorFlow 2.14 aborts at flags that its XLA does not know.
    environment.pop('XLA_FLAGS', None)
    environment.update(program_cache.without())
    self.process = subprocess.Popen(
      child_processes.launch_command(
        _BINARY,
        f'--port={self._port.number}',
        f'--max_concurrent_computation_calls={num_clients}',
      ),
      stdin=subprocess.DEVNULL,
      # Clients' prints go to stderr, since stdout belongs to the program.
      stdout=2,
      env=environment,
      # Ctrl-C in a terminal reaches only Python, which then decides.
      start_new_session=True,
    )
    target = f'{worker_port.HOST}:{self._port.number}'
    self._channel = grpc.insecure_channel(target, _CHANNEL_OPTIONS)
    self._stub = _Stub(self._channel)
    # The parts of `create_sync_local_cpp_execution_context` without its
    # `SyncExecutionContext`, whose thread never ends.
    self.context = tff.framework.AsyncExecutionContext(
      executor_fn=tff.framework.ResourceManagingExecutorFactory(
        self._make_executor
      ),
      compiler_fn=_compile,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )
    try:
      self._wait_until_it_answers()
    except BaseException:
      self.stop()
      raise

  @property
  def is_running(self) -> bool:
    """True until the process ends."""
    return self.process.poll() is None

  def _wait_until_it_answers(self) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while not self._port.is_served():
      if not self.is_running:
        raise errors.RunError(self._describe_end())
      if time.monotonic() > deadline:
        raise errors.RunError(
          f'The TFF worker (process {self.process.pid}) did not answer within '
          f'{_SECONDS_TO_START:g} seconds.'
        )
      time.sleep(0.01)

  def check(self, error: Exception) -> None:
    """Raises `RunError` if the worker's end caused an error."""
    code = error.code() if isinstance(error, grpc.RpcError) else None
    if code == grpc.StatusCode.UNAVAILABLE:
      with contextlib.suppress(subprocess.TimeoutExpired):
        self.process.wait(_SECONDS_TO_END)
    if not self.is_running:
      raise errors.RunError(self._describe_end()) from error

  def _describe_end(self) -> str:
    ended = child_processes.describe_return_code(self.process.returncode)
    return f'The TFF worker (process {self.process.pid}) {ended}.'

  def _make_executor(self, cardinalities: Any) -> tff.framework.RemoteExecutor:
    executor = _Executor(self._stub, _DISPOSE_BATCH_SIZE)
    executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
    return executor

  def stop(self) -> None:
    """Ends the process and closes the connection."""
    if os.getpid() != self._owner_pid:
      return  # A forked copy of the owner does not own the worker.
    self.process.kill()
    self.process.wait()
    self._channel.close()
    self._port.close()


def _compile(computation: Any) -> Any:
  # The worker has no protocol for secure aggregation.
  return tff.backends.native.desugar_and_transform_to_native(
    lowering.replace_secure_sums(computation)
  )


class _Executor(tff.framework.RemoteExecutor):
  """An executor that frees its loaded graphs in the worker when it is freed."""

  def __del__(self):
    self.close()


class _Stub:
  """A stub of TFF's worker protocol. TFF's own retries calls forever."""

  def __init__(self, channel: grpc.Channel):
    self._stub = executor_pb2_grpc.ExecutorGroupStub(channel)
    self._owner_pid = os.getpid()

  def __getattr__(self, name: str) -> Callable[[Any], Any]:
    return getattr(self._stub, name.title().replace('_', ''))

  def dispose(self, request: Any) -> None:
    self._release(self._stub.Dispose, request)

  def dispose_executor(self, request: Any) -> None:
    self._release(self._stub.DisposeExecutor, request)

  def _release(self, method: Callable[..., Any], request: Any) -> None:
    """Releases values in the worker, if it still exists.

    Finalizers call this at any time, even at the interpreter's exit. Values
    that cannot be released ended with their worker. A forked copy of the owner
    releases nothing, since its values belong to the owner.
    """
    if os.getpid() != self._owner_pid:
      return
    with contextlib.suppress(grpc.RpcError, ValueError):
      method(request, timeout=_SECONDS_TO_RELEASE)
