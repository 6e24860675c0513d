"""Execution of clients' functions on threads and devices."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_pfl.runtime import (
  device_cache,
  graph_functions,
  threads,
  values,
)
from tff_pfl.runtime import devices as devices_lib

_thread_state = threading.local()


class ClientMapper:
  """Maps a function over clients, on threads of this process.

  Each thread runs one client on the thread's device, since TensorFlow lets
  other threads run while it computes. The calling thread also works, so a `map`
  inside another proceeds even if all other threads are busy. Several threads
  may call `map` at once.

  On the CPU a client runs on the first free thread. Several GPUs divide a
  cohort by its clients' positions. Each then has the same clients in later
  rounds and keeps their tensors, and results do not depend on which GPU is
  free.
  """

  def __init__(
    self,
    devices: Sequence[Optional[str]],
    cache_bytes: int = 0,
  ):
    """Prepares the pool, whose threads start when they are needed.

    Args:
      devices: Device of each thread, as from `devices.thread_devices`. None
        leaves the choice to TensorFlow.
      cache_bytes: Bytes of clients' arguments that may stay on each GPU.
    """
    self._devices = tuple(devices)
    self._for_compiled = devices_lib.for_compiled(self._devices)
    self._caches = {
      device: device_cache.DeviceCache(cache_bytes)
      for device in self._devices
      if devices_lib.is_gpu(device)
    }
    self._pool = None
    if len(devices) > 1:
      self._pool = threads.Threads(len(devices) - 1, 'tff-pfl-client')

  @property
  def num_threads(self) -> int:
    """Number of clients that run at the same time in one `map`."""
    return len(self._devices)

  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> values.ClientsValue:
    """Returns the function's result for each client.

    Args:
      function: The function.
      argument: The clients' arguments. None if the function has no parameter.
      num_clients: Number of clients, at least 1.

    Raises:
      Exception: The first error of a client. Waiting clients are skipped.
    """
    tasks = [function] * num_clients
    if argument is not None:
      rows = values.rows(argument, num_clients)
      tasks = [functools.partial(self.call, function, row) for row in rows]
    return values.PerClient(self.run_all(tasks))

  def call(self, function: Callable[[Any], Any], row: values.LocalValue) -> Any:
    """Calls a function with a client's argument on the thread's device.

    If a GPU runs out of memory, its cache is cleared and the call repeated.
    """
    try:
      return function(self.on_device(row))
    except tf.errors.ResourceExhaustedError:
      cache = self.cache()
      if not cache:
        raise
      cache.clear()
    return function(self.on_device(row))

  def device(self) -> Optional[str]:
    """Returns the calling thread's device, as named in `devices`."""
    return getattr(_thread_state, 'device', None)

  def cache(self) -> Optional[device_cache.DeviceCache]:
    """Returns the cache of the calling thread's device, or None on a CPU."""
    return self._caches.get(self.device())

  def on_device(self, value: values.LocalValue) -> values.LocalValue:
    """Replaces tensors with their copies if the calling thread has a GPU."""
    cache = self.cache()
    if cache is None:
      return value
    if isinstance(value, tuple):
      return tuple([self.on_device(element) for element in value])
    return cache.get(value) if isinstance(value, tf.Tensor) else value

  def run_all(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Calls functions on the threads and returns their results.

    Args:
      tasks: Functions without arguments.

    Raises:
      Exception: The first error of a task. Waiting tasks are skipped.
    """
    names = list(dict.fromkeys(self._devices))
    queue = _Queue(tasks, names, len(self._caches) == len(names))
    places, helpers = list(zip(self._devices, self._for_compiled)), []
    if self._pool is not None:
      for place in places[1 : len(tasks)]:
        helpers.append((place, self._pool.submit(queue.work, *place)))
    queue.work(*places[0])
    for place, helper in helpers:
      # The helper has not started, because the pool is busy.
      if helper.cancel():
        queue.work(*place)
      else:
        helper.result()
    return queue.results()

  def close(self) -> None:
    """Ends the threads, after which nothing can be mapped."""
    for cache in self._caches.values():
      cache.clear()
    if self._pool is not None:
      self._pool.close()


@contextlib.contextmanager
def _on(device: Optional[str]) -> Iterator[None]:
  outer = getattr(_thread_state, 'device', None)
  _thread_state.device = device
  try:
    with contextlib.nullcontext() if device is None else tf.device(device):
      yield
  finally:
    _thread_state.device = outer


class _Queue:
  """The tasks of one `run_all`, which threads take one at a time."""

  def __init__(
    self,
    tasks: Sequence[Callable[[], Any]],
    devices: Sequence[Optional[str]],
    is_divided: bool,
  ):
    """Takes the tasks.

    Args:
      tasks: Functions without arguments.
      devices: The threads' devices, without repetition.
      is_divided: True if each device gets a consecutive part of the tasks.
        False if all devices share all tasks.
    """
    numbered = list(enumerate(tasks))
    size = -(-len(tasks) // len(devices)) if is_divided else 0
    shared = iter(numbered)
    self._tasks = {
      device: iter(numbered[i * size : (i + 1) * size]) if size else shared
      for i, device in enumerate(devices)
    }
    self._results = [None] * len(tasks)
    self._lock = threading.Lock()
    self._error = None

  def work(self, device: Optional[str], for_compiled: Optional[str]) -> None:
    """Runs a device's tasks until none is left or one has failed.

    Args:
      device: The device.
      for_compiled: See `devices.for_compiled`.
    """
    with _on(device), devices_lib.compiled_on(for_compiled):
      while self._error is None:
        with self._lock:
          index, task = next(self._tasks[device], (None, None))
        if task is None:
          return
        try:
          threads.raise_if_abandoned()
          self._results[index] = task()
        except BaseException as error:  # pylint: disable=broad-except
          self._error = self._error or error

  def results(self) -> list[Any]:
    """Returns all results, or raises the first error."""
    if self._error is not None:
      raise self._error
    return self._results
