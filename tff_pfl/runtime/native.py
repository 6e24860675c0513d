"""TFF's own C++ runtime, with its worker process under our control.

TFF's local context starts the same worker but never stops it: at the
interpreter's exit its clean-up fails, and the orphan keeps running and holds
the program's stdout open. Here the worker

* is started by the first computation and ends with the program, however that
  ends (see `worker_process`);
* is replaced when it dies: the death is reported in one line and the
  computation is repeated once, on a fresh worker. Client work in this library
  is a pure function of its arguments and seed, so the repetition gives the same
  result. A second death in the same computation raises `WorkerDiedError`.

The worker runs TensorFlow on CPU only.
"""

import asyncio
import os
import threading
import weakref
from typing import Any, Optional

import tensorflow_federated as tff
from absl import logging

from tff_pfl import errors
from tff_pfl.runtime import (
  base,
  lowering,
  threads,
  worker_connection,
  worker_process,
)
from tff_pfl.system import cores


class NativeRuntime(base.Runtime):
  """Runs computations in one C++ worker on this machine."""

  def __init__(
    self,
    *,
    max_concurrent_clients: Optional[int] = None,
    binary: Optional[str] = None,
  ):
    """Prepares the runtime; the first computation starts the worker.

    Args:
      max_concurrent_clients: How many clients' computations run at the same
        time, at least 1; None for the number of usable CPU cores.
      binary: The path of the worker; None for the one that comes with TFF.

    Raises:
      ValueError: If a number is out of range.
    """
    cores.concurrent_clients(max_concurrent_clients)  # Checked early.
    self._executor_factory = _NativeExecutorFactory(
      max_concurrent_clients, binary
    )
    context = _NativeContext(self._executor_factory)
    super().__init__(context)
    # The context, not the runtime, decides how long the worker is needed: a
    # program may install the runtime and drop it. At exit this also runs.
    weakref.finalize(context, self._executor_factory.close)

  @property
  def worker_pid(self) -> Optional[int]:
    """The process id of the running worker; None while there is none."""
    worker = self._executor_factory.worker
    return worker.pid if worker is not None and worker.is_running else None

  def close(self) -> None:
    """Stops the worker; the runtime cannot run anything afterwards."""
    self._executor_factory.close()


def _compile(computation: Any) -> Any:
  # The worker has no protocol for secure aggregation.
  return tff.backends.native.desugar_and_transform_to_native(
    lowering.replace_secure_sums(computation)
  )


class _NativeContext(tff.framework.SyncContext):
  """Executes one computation at a time; repeats one whose worker died."""

  def __init__(self, executor_factory: '_NativeExecutorFactory'):
    self._executor_factory = executor_factory
    self._lock = threading.Lock()
    # The same parts as in `create_sync_local_cpp_execution_context`, without
    # the `SyncExecutionContext` around them: its thread never ends.
    self._context = tff.framework.AsyncExecutionContext(
      executor_fn=executor_factory,
      compiler_fn=_compile,
      transform_args=tff.tensorflow.transform_args,
      transform_result=tff.tensorflow.transform_result,
    )

  def invoke(self, comp: Any, arg: Any) -> Any:
    with self._lock:
      try:
        return self._invoke_in_thread(comp, arg)
      except worker_process.WorkerDiedError as error:
        self._executor_factory.stop_worker()  # Its death has been reported.
        if self._executor_factory.is_closed:
          raise
        logging.warning(
          '%s The computation is repeated on a fresh worker.', error
        )
      try:
        return self._invoke_in_thread(comp, arg)
      except worker_process.WorkerDiedError:
        self._executor_factory.stop_worker()
        raise

  def _invoke_in_thread(self, comp: Any, arg: Any) -> Any:
    """Returns the result of one try.

    The thread lets the caller's react to Ctrl-C at any time, and have an event
    loop of its own (as notebooks do).
    """
    thread = threads.Threads(1, 'tff-computation')
    outcome = thread.submit(
      lambda: asyncio.run(self._context.invoke(comp, arg))
    )
    try:
      return threads.result_of(outcome)
    finally:
      if not outcome.done():
        # Ctrl-C or a request to exit. The call under way cannot be cancelled,
        # so its worker is given up.
        self._executor_factory.stop_worker()
      thread.close()


class _NativeExecutorFactory(tff.framework.ExecutorFactory):
  """Makes executors in the current worker; owns the worker."""

  def __init__(
    self, max_concurrent_clients: Optional[int], binary: Optional[str]
  ):
    super().__init__()
    self._max_concurrent_clients = max_concurrent_clients
    self._binary = binary
    self._owner_pid = os.getpid()
    self._lock = threading.RLock()
    self._of_thread = threading.local()
    self.worker: Optional[worker_process.WorkerProcess] = None
    self._connection: Optional[worker_connection.WorkerConnection] = None
    self.is_closed = False

  def create_executor(self, cardinalities):
    with self._lock:
      self._ensure_worker()
      connection = self._connection
    # A thread makes one call, and must clean up where it worked even if the
    # worker has been replaced meanwhile.
    self._of_thread.connection = connection
    return connection.executor(cardinalities)

  def clean_up_executor(self, cardinalities):
    connection = getattr(self._of_thread, 'connection', None)
    if connection is not None:
      connection.close_executor(cardinalities)

  def stop_worker(self) -> None:
    """Stops the worker; the next computation starts another."""
    if os.getpid() != self._owner_pid:
      return  # A forked copy of the owner that exits: not its worker.
    with self._lock:
      worker, self.worker = self.worker, None
      connection, self._connection = self._connection, None
      # First the process: what is under way then ends with its error.
      if worker is not None:
        worker.stop()
      if connection is not None:
        connection.close()

  def close(self) -> None:
    """Stops the worker for good."""
    self.is_closed = True
    self.stop_worker()

  def _ensure_worker(self) -> None:
    """Starts a worker unless one is running."""
    if self.is_closed:
      raise errors.RunError(
        'The native runtime is closed; create another one to go on.'
      )
    if self.worker is not None:
      if self.worker.is_running:
        return
      logging.warning(
        '%s A fresh worker is started.', self.worker.describe_end()
      )
      self.stop_worker()
    worker = worker_process.WorkerProcess(
      max_concurrent_clients=self._max_concurrent_clients, binary=self._binary
    )
    worker.wait_until_ready()
    self.worker = worker
    self._connection = worker_connection.WorkerConnection(worker)
