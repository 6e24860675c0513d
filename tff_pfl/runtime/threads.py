"""Threads that may be abandoned."""

import concurrent.futures
import contextvars
import threading
import weakref
from collections.abc import Callable
from typing import Any

from tff_pfl.system import shutdown

# Returns True when the thread's work is no longer needed.
_is_abandoned: contextvars.ContextVar[Callable[[], bool]] = (
  contextvars.ContextVar('_is_abandoned', default=lambda: False)
)
# Longest wait for work that cannot be interrupted (an XLA program).
_SECONDS_FOR_ABANDONED_WORK = 0.2
# Longest time until a signal that another thread received takes effect.
_SECONDS_BETWEEN_LOOKS = 0.1


class ClosedError(RuntimeError):
  """Threads have ended, or their work is no longer needed."""


def result_of(future: concurrent.futures.Future) -> Any:
  """Waits for a future's result until the program is asked to stop.

  The system may deliver a signal to any thread. Python's handlers run in the
  main thread, and a signal to another thread does not wake it from an endless
  wait.
  """
  shutdown.raise_if_stopped()
  while not future.done():
    concurrent.futures.wait([future], _SECONDS_BETWEEN_LOOKS)
    shutdown.raise_if_stopped()
  if future.cancelled():
    raise ClosedError('The threads have been ended.')
  return future.result()


def abandon_if(condition: Callable[[], bool]) -> None:
  """Sets when the caller's work, and work that it submits, may end."""
  _is_abandoned.set(condition)


def raise_if_abandoned() -> None:
  """Raises `ClosedError` if the caller's work is no longer needed."""
  if _is_abandoned.get()():
    raise ClosedError('The computation was ended.')


class Threads:
  """A pool of threads that closes without waiting for endless work."""

  def __init__(self, max_threads: int, name: str):
    """Prepares the pool, whose threads start when they are needed.

    Args:
      max_threads: Largest number of threads, at least 1.
      name: Prefix of the threads' names.
    """
    self._pool = concurrent.futures.ThreadPoolExecutor(
      max_threads, thread_name_prefix=name
    )
    self._lock = threading.Lock()
    self._futures = weakref.WeakSet()
    self._is_closed = False

  def submit(
    self, function: Callable[..., Any], *arguments: Any
  ) -> concurrent.futures.Future:
    """Calls a function in a thread and returns the future of its result.

    Raises:
      ClosedError: If the pool is closed.
    """
    with self._lock:
      if self._is_closed:
        raise ClosedError('The threads have been ended.')
      context = contextvars.copy_context()
      future = self._pool.submit(context.run, function, *arguments)
      self._futures.add(future)
    return future

  def close(self) -> None:
    """Ends the threads. A busy thread ends with its work."""
    with self._lock:
      self._is_closed = True
      futures = list(self._futures)
    self._pool.shutdown(wait=False, cancel_futures=True)
    _, unfinished = concurrent.futures.wait(
      futures, _SECONDS_FOR_ABANDONED_WORK
    )
    self._pool.shutdown(wait=not unfinished)
