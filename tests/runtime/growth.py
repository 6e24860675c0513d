"""How much processes grow while they repeat the same work."""

import gc
from collections.abc import Callable

import numpy as np
import psutil


def steady_growth(
  work: Callable[[], None], *process_ids: int, num_windows: int = 4
) -> np.ndarray:
  """Returns what processes grow by whenever some work is repeated.

  A leak grows in every window of work; the least growth of all windows leaves
  out what comes once and late: pages that the allocator had given back, a
  thread that a pool had not needed before.

  Args:
    work: A window of work, equal from call to call. It must have run before, so
      that caches are full.
    *process_ids: The processes besides this one.
    num_windows: How many times the work runs.

  Returns:
    For each of the given processes, then for this one: MiB of memory, threads,
    open files. At the end: objects of this process' garbage collector.
  """

  processes = [*map(psutil.Process, process_ids), psutil.Process()]

  def measure():
    gc.collect()
    figures = []
    for process in processes:
      figures += [
        process.memory_info().rss / 2**20,
        process.num_threads(),
        process.num_fds(),
      ]
    return np.array([*figures, len(gc.get_objects())])

  figures = [measure()]
  for _ in range(num_windows):
    work()
    figures.append(measure())
  return np.min(np.diff(figures, axis=0), axis=0)
