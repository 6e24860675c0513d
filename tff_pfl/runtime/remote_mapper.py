"""Runs the clients' computations on several TFF workers.

The clients of a cohort stand in one queue. Each worker takes as many as it can
compute at the same time, and another one whenever it has finished one, so a
fast worker computes more clients than a slow one. A client is one call in the
worker, with values for one party: unlike a part of a cohort it needs no
executor of its own for each number of clients, for which the worker would load
and compile the same graphs again. A worker gets what all clients share, such as
the broadcast weights, once for a cohort, and a function once.

The results stand in the clients' order and nothing is summed in the workers, so
the result does not depend on the number of workers or on who computed what.

The client work of a lost worker goes back into the queue. Client work is a pure
function of its arguments, so its repetition gives the same result.
"""

import asyncio
import collections
import re
import threading
import time
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tff_pfl import errors
from tff_pfl.runtime import (
  cancellation,
  client_mapper,
  graph_defs,
  graph_functions,
  python_values,
  values,
  worker_pool,
)
from tff_pfl.system import cores

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_HEALTH_CHECKS = 5.0
# How long to wait for one of the workers when all were lost.
_SECONDS_FOR_RETURN = 2.0
# How long to wait for a thread with nothing left to do. One that waits for a
# worker that hangs, or computes what is of no use any more, ends later.
_SECONDS_TO_END = 0.2
# A worker that comes back may compute in the same cohort; but not again and
# again, for it may be the computation that ends it.
_MAX_LOSSES = 2
# TensorFlow's operations that are more than arithmetic element by element.
_COSTLY_OP = re.compile(
  r'For|.*(While|MatMul|Einsum|Conv\d|FFT|Svd|Cholesky|Qr|Eig|RNN|LSTM|GRU'
  r'|Xla).*'
)
_MAX_JUDGED_FUNCTIONS = 1024

_Threads = dict[worker_pool.Worker, threading.Thread]


class RemoteMapper(client_mapper.ClientMapper):
  """Has workers compute what is costly, and the rest done here.

  What costs less to do than to send is done here: what is no more than
  arithmetic element by element on the clients' values (weighting or clipping
  their updates).
  """

  def __init__(
    self,
    pool: worker_pool.WorkerPool,
    local: client_mapper.ClientMapper,
    max_concurrent_clients: Optional[int] = None,
  ):
    """Takes over the pool and the local mapper, to close them.

    Args:
      pool: The workers.
      local: Computes here.
      max_concurrent_clients: How many clients a worker computes at the same
        time, at least 1; None for the number of CPU cores of this machine.

    Raises:
      ValueError: If a number is out of range.
    """
    max_concurrent_clients = cores.concurrent_clients(max_concurrent_clients)
    self._pool = pool
    self._local = local
    self._max_concurrent_clients = max_concurrent_clients
    self._is_costly: dict[str, bool] = {}
    # A cohort has all the workers.
    self._lock = threading.Lock()
    # The workers whose threads have not ended with their cohort.
    self._stragglers: _Threads = {}

  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> list[values.LocalValue]:
    """Returns the function's result for each client; see `ClientMapper`.

    Raises:
      RunError: If no worker is left.
      grpc.RpcError: TensorFlow's error of a client, in `details()`.
    """
    if not self._is_for_workers(function):
      return self._local.map(function, argument, num_clients)
    work = _Work(function, argument)
    with self._lock:
      queue = _Queue(
        num_clients, len(self._pool.workers), self._max_concurrent_clients
      )
      cohort = _Cohort(self._pool, work, queue, self._stragglers)
      try:
        return cohort.run()
      finally:
        self._stragglers = cohort.stragglers()

  def close(self) -> None:
    """Closes the connections and ends the threads."""
    self._pool.close()
    for thread in self._stragglers.values():
      thread.join(_SECONDS_TO_END)
    self._local.close()

  def _is_for_workers(self, function: graph_functions.LocalFunction) -> bool:
    known = self._is_costly.get(function.content_hash)
    if known is None:
      if len(self._is_costly) >= _MAX_JUDGED_FUNCTIONS:
        self._is_costly.clear()
      known = self._is_costly[function.content_hash] = _is_costly(function)
    return known


def _is_costly(function: graph_functions.LocalFunction) -> bool:
  """Whether it reads data sets or does more than arithmetic by elements."""
  parameter = function.type_signature.parameter
  if parameter is not None and tff.types.contains(
    parameter, lambda part: isinstance(part, tff.SequenceType)
  ):
    return True
  graph_def = tf.compat.v1.GraphDef()
  function.block.proto.tensorflow.graph_def.Unpack(graph_def)
  return any(
    _COSTLY_OP.fullmatch(node.op) for node in graph_defs.all_nodes(graph_def)
  )


class _Work:
  """A function and its argument as workers take them."""

  def __init__(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
  ):
    self._argument = argument
    self._type = function.type_signature
    self.proto = function.block.proto
    self.key = (function.content_hash, str(function.type_signature))

  async def share(self, executor: tff.framework.RemoteExecutor) -> Any:
    """Sends what is the same for all clients.

    Args:
      executor: Of the worker.

    Returns:
      The argument's structure as nested lists, with the worker's values in the
      place of shared parts, and None in that of others.
    """
    return await self._share(executor, self._argument, self._type.parameter)

  async def _share(self, executor, value, value_type):
    if isinstance(value, values.AllEqual):
      return await _send(executor, value.value, value_type)
    if isinstance(value, values.Columns):
      return [
        await self._share(executor, column, column_type)
        for column, (_, column_type) in zip(
          value.columns, tff.structure.iter_elements(value_type)
        )
      ]
    return None

  async def send(
    self, executor: tff.framework.RemoteExecutor, shared: Any, client: int
  ) -> Any:
    """Sends what only one client has.

    Args:
      executor: Of the worker.
      shared: What `share` returned.
      client: The number of the client.

    Returns:
      The worker's value of the argument; None if there is none.
    """
    return await self._send(
      executor, shared, self._argument, self._type.parameter, client
    )

  async def _send(self, executor, shared, value, value_type, client):
    if isinstance(value, values.PerClient):
      return await _send(executor, value.row(client), value_type)
    if not isinstance(value, values.Columns):
      return shared
    elements = []
    for part, column, (name, column_type) in zip(
      shared, value.columns, tff.structure.iter_elements(value_type)
    ):
      elements.append(
        (name, await self._send(executor, part, column, column_type, client))
      )
    return await executor.create_struct(tff.structure.Struct(elements))

  def result(self, value: Any) -> values.LocalValue:
    """Returns the local value of what a worker computed."""
    return python_values.from_python(value, self._type.result)


async def _send(
  executor: tff.framework.RemoteExecutor,
  value: values.LocalValue,
  value_type: tff.Type,
) -> Any:
  """Returns the worker's value of a local value."""
  return await executor.create_value(
    python_values.to_python(value, value_type, 0), value_type
  )


class _Queue:
  """The clients that are left, and what the workers' threads tell."""

  def __init__(self, num_clients: int, num_workers: int, concurrency: int):
    self._condition = threading.Condition()
    self._waiting = collections.deque(range(num_clients))
    self._results: list[Any] = [None] * num_clients
    self._num_left = num_clients
    self._concurrency = concurrency
    self._enough = concurrency * num_workers
    self._ended: list[worker_pool.Session] = []
    self._is_over = False
    self.error: Optional[BaseException] = None

  @property
  def is_over(self) -> bool:
    """Whether nothing is left to do, or will be done."""
    return self._is_over

  @property
  def results(self) -> list[Any]:
    """The results in the clients' order."""
    return self._results

  def take(self, num_taken: int, wait: bool) -> Optional[int]:
    """Returns a client for a worker; None if it is to finish others first.

    Args:
      num_taken: How many it has not finished. It gets more than it can compute
        at a time, so as never to be idle, while there are enough for all.
      wait: Whether to wait for one, which another worker may give back.
    """
    with self._condition:
      if wait:
        self._condition.wait_for(lambda: self._waiting or self._is_over)
      if self._is_over or not self._waiting:
        return None
      if num_taken >= self._concurrency and (
        len(self._waiting) <= self._enough or num_taken >= 2 * self._concurrency
      ):
        return None
      return self._waiting.popleft()

  def put(self, client: int, result: Any) -> None:
    """Takes a client's result."""
    with self._condition:
      self._results[client] = result
      self._num_left -= 1
      if not self._num_left:
        self._finish()

  def give_back(self, clients: list[int], session: worker_pool.Session) -> None:
    """Takes back the clients of a lost worker, whose session ended."""
    with self._condition:
      self._waiting.extendleft(reversed(clients))
      self._ended.append(session)
      self._condition.notify_all()

  def fail(self, error: Optional[BaseException]) -> None:
    """Ends the work; the first error counts."""
    with self._condition:
      self.error = self.error or error
      self._finish()

  def wait(self, seconds: float) -> list[worker_pool.Session]:
    """Waits for the end or a loss; returns the sessions lost meanwhile."""
    with self._condition:
      self._condition.wait_for(lambda: self._is_over or self._ended, seconds)
      ended, self._ended = self._ended, []
      return ended

  def _finish(self) -> None:
    self._is_over = True
    self._condition.notify_all()


class _Cohort:
  """One `map` on the workers."""

  def __init__(
    self,
    pool: worker_pool.WorkerPool,
    work: _Work,
    queue: _Queue,
    stragglers: _Threads,
  ):
    """Prepares the cohort.

    Args:
      pool: The workers.
      work: What the clients compute.
      queue: All clients.
      stragglers: The workers that are still busy with an earlier cohort.
    """
    self._pool = pool
    self._work = work
    self._queue = queue
    self._earlier = dict(stragglers)
    self._active: _Threads = {}
    self._losses = collections.Counter()
    self._reasons: dict[worker_pool.Worker, str] = {}
    self._cancellation = cancellation.Cancellation.current()

  def run(self) -> list[values.LocalValue]:
    """Returns the results, or raises the first error."""
    try:
      self._supervise()
    except BaseException as error:
      if self._pool.is_closed:
        # Whatever it is, this is its cause.
        self._pool.close()
        self._queue.fail(_closed_error())
      else:
        self._queue.fail(error)
        self._pool.abandon()
    if self._queue.error is not None:
      raise self._queue.error
    return self._queue.results

  def stragglers(self) -> _Threads:
    """Returns the threads that have not ended when the cohort is done."""
    deadline = time.monotonic() + _SECONDS_TO_END
    for thread in self._active.values():
      thread.join(max(0.0, deadline - time.monotonic()))
    threads = {**self._earlier, **self._active}
    return {
      worker: thread for worker, thread in threads.items() if thread.is_alive()
    }

  def _supervise(self) -> None:
    """Gives work to all workers that are there, until it is done."""
    last_activity = time.monotonic()
    last_check = 0.0  # Stragglers are looked at in the shortest cohort too.
    while not self._queue.is_over:
      self._check_open()
      self._start_threads()
      for session in self._queue.wait(_SECONDS_BETWEEN_LOOKS):
        # Not those that have been replaced, with the session, already.
        for worker in list(self._active):
          if worker.session is session:
            self._lose(worker, 'the connection broke')
      now = time.monotonic()
      if now - last_check > _SECONDS_BETWEEN_HEALTH_CHECKS:
        last_check = now
        self._check_health()
      if self._active or self._earlier:
        last_activity = now
      elif now - last_activity > _SECONDS_FOR_RETURN or not self._candidates():
        raise errors.RunError(self._describe_losses())

  def _describe_losses(self) -> str:
    reasons = [
      f'{worker.address}: {self._reasons.get(worker, "it does not answer")}'
      for worker in self._pool.workers
    ]
    return f'No TFF worker is left: {"; ".join(reasons)}.'

  def _check_open(self) -> None:
    if self._pool.is_closed:
      raise _closed_error()
    if self._cancellation is not None and self._cancellation.is_cancelled:
      raise errors.RunError('The computation was interrupted.')

  def _candidates(self) -> list[worker_pool.Worker]:
    """The workers that have no work, the lost ones included."""
    return [
      worker
      for worker in self._pool.workers
      if worker not in self._active
      and worker not in self._earlier
      and self._losses[worker] < _MAX_LOSSES
    ]

  def _start_threads(self) -> None:
    """Gives work to those that have none."""
    for worker, thread in list(self._earlier.items()):
      if not thread.is_alive():
        del self._earlier[worker]
    for worker in self._candidates():
      if worker.is_lost:
        if not worker.try_again():
          continue
        logging.warning('The TFF worker %s is back.', worker.address)
      worker.begin_to_watch()
      thread = threading.Thread(
        target=_serve,
        args=(worker.session, self._work, self._queue),
        name=f'tff-pfl-worker-{worker.address}',
        daemon=True,
      )
      self._active[worker] = thread
      thread.start()

  def _check_health(self) -> None:
    for worker in [*self._active, *self._earlier]:
      reason = worker.find_loss()
      if reason is not None:
        self._lose(worker, reason)

  def _lose(self, worker: worker_pool.Worker, reason: str) -> None:
    """Takes a worker from those that have work, if it is one of them."""
    threads = self._active if worker in self._active else self._earlier
    if threads.pop(worker, None) is None or self._pool.is_closed:
      return
    self._losses[worker] += 1
    self._reasons[worker] = reason
    logging.warning(
      'The TFF worker %s was lost: %s. Its clients are computed by others.',
      worker.address,
      reason,
    )
    worker.lose()


def _closed_error() -> errors.RunError:
  return errors.RunError(
    'The remote runtime is closed; create another one to go on.'
  )


def _serve(session: worker_pool.Session, work: _Work, queue: _Queue) -> None:
  """Has a worker compute clients until all are done; runs in a thread."""
  taken = collections.OrderedDict()
  try:
    asyncio.run(_compute_clients(session, work, queue, taken))
  except errors.RunError:  # The worker is lost, or the connection was closed.
    queue.give_back(list(taken), session)
  except BaseException as error:  # pylint: disable=broad-except
    queue.fail(error)


async def _compute_clients(
  session: worker_pool.Session,
  work: _Work,
  queue: _Queue,
  taken: dict[int, Any],
) -> None:
  """Computes clients until all are done.

  Args:
    session: Where.
    work: What.
    queue: For which clients.
    taken: From the clients that are under way to the worker's values, in the
      order in which they were begun.
  """
  function = await session.function(work.key, work.proto)
  executor = session.executor()
  shared = await work.share(executor)
  while not queue.is_over:
    client = queue.take(len(taken), wait=not taken)
    if client is not None:
      taken[client] = None
      argument = await work.send(executor, shared, client)
      # The worker computes; `compute` waits for it.
      taken[client] = await executor.create_call(function, argument)
    elif taken:
      client, result = next(iter(taken.items()))
      queue.put(client, work.result(await result.compute()))
      del taken[client]
