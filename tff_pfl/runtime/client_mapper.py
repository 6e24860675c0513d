"""Where, and how many at a time, the clients' computations run."""

import abc
import concurrent.futures
import os
import threading
from typing import List, Optional

from tff_pfl import errors
from tff_pfl.runtime import graph_functions, values


class ClientMapper(abc.ABC):
  """Runs one function for every client.

  `map` may be called from several threads at once, and while a function that an
  outer `map` runs is under way.
  """

  @abc.abstractmethod
  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> List[values.LocalValue]:
    """Returns the function's result for each client.

    Args:
      function: What each client computes.
      argument: The clients' arguments, stored by columns;
        `values.rows(argument, num_clients)` has one local value for each. None
        if the function has no parameter.
      num_clients: The number of clients, at least 1.

    Returns:
      The results in the clients' order.

    Raises:
      Exception: The first error of a client; the other clients are given up.
    """

  def close(self) -> None:  # noqa: B027
    """Frees threads and what else is held; nothing can be mapped afterwards.

    Closing again does nothing.
    """


class ThreadMapper(ClientMapper):
  """Runs clients on a pool of threads of this process.

  TensorFlow lets other threads run while it computes, so clients run on as many
  cores as there are threads. The calling thread is one of them: a `map` inside
  another goes on even if all other threads are busy.
  """

  def __init__(self, num_threads: Optional[int] = None):
    """Prepares the pool; threads are started when they are needed.

    Args:
      num_threads: How many clients run at the same time in one `map`, at least
        1; None for the number of usable CPU cores.

    Raises:
      ValueError: If it is out of range.
    """
    if num_threads is None:
      num_threads = len(os.sched_getaffinity(0))
    errors.expect(num_threads >= 1, 'num_threads', 'at least 1', num_threads)
    self._num_threads = num_threads
    self._pool = None
    if num_threads > 1:
      self._pool = concurrent.futures.ThreadPoolExecutor(
        num_threads - 1, thread_name_prefix='tff-pfl-client'
      )

  @property
  def num_threads(self) -> int:
    """How many clients run at the same time in one `map`."""
    return self._num_threads

  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> List[values.LocalValue]:
    """Returns the function's result for each client; see `ClientMapper`."""
    cohort = _Cohort(function, argument, num_clients)
    helpers = []
    if self._pool is not None:
      for _ in range(min(self._num_threads, num_clients) - 1):
        helpers.append(self._pool.submit(cohort.work))
    cohort.work()
    # What has not begun finds nothing left to do.
    for helper in helpers:
      if not helper.cancel():
        helper.result()
    return cohort.results()

  def close(self) -> None:
    """Ends the threads."""
    if self._pool is not None:
      self._pool.shutdown(wait=True, cancel_futures=True)


class _Cohort:
  """The clients of one `map`, taken one by one by the threads that work."""

  def __init__(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ):
    self._function = function
    self._argument = argument
    self._results = [None] * num_clients
    self._clients = iter(range(num_clients))
    self._cancellation = graph_functions.Cancellation()
    self._lock = threading.Lock()
    self._error = None

  def work(self) -> None:
    """Computes clients until none is left or one of them failed."""
    with self._cancellation.scope():
      while self._error is None:
        # Only one thread at a time gets the next client from an iterator.
        client = next(self._clients, None)
        if client is None:
          return
        try:
          self._results[client] = self._compute(client)
        except BaseException as error:  # pylint: disable=broad-except
          self._fail(error)

  def _compute(self, client: int) -> values.LocalValue:
    if self._argument is None:
      return self._function()
    return self._function(self._argument.row(client))

  def _fail(self, error: BaseException) -> None:
    with self._lock:
      if self._error is not None:
        return
      self._error = error
    # The other clients' results are of no use.
    self._cancellation.cancel()

  def results(self) -> List[values.LocalValue]:
    """Returns all results, or raises the first error."""
    if self._error is not None:
      raise self._error
    return self._results
