"""What the machine gives: its matrix multiplication rate, memory, versions."""

from __future__ import annotations

import concurrent.futures
import platform
import resource
import threading
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.system import cores, memory

_SECONDS_PER_SAMPLE = 0.2


def matmul_gflops(size: int = 2048, num_repeats: int = 5) -> float:
  """Measures the float32 matrix multiplication rate, with all cores.

  The best of several products of square matrices in this process, once with
  TensorFlow's own threads and once with a thread per core: a runtime may have
  limited TensorFlow to one thread for an operation.

  Args:
    size: Rows and columns of the matrices, at least 1.
    num_repeats: Products, at least 1.

  Returns:
    GFLOP/s, a multiplication with its addition counted as 2.
  """
  rng = np.random.default_rng(0)
  a, b = (
    tf.constant(rng.standard_normal((size, size), np.float32)) for _ in range(2)
  )

  def multiply(_):
    # Reading an element waits for a device that works asynchronously.
    np.asarray(tf.linalg.matmul(a, b)[0, 0])

  best = 0.0
  for num_threads in sorted({1, cores.num_usable_cores()}):
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
      # The first is for warming up.
      for repeat in range(num_repeats + 1):
        start = time.perf_counter()
        list(pool.map(multiply, range(num_threads)))
        seconds = time.perf_counter() - start
        if repeat:
          best = max(best, num_threads * 2 * size**3 / seconds / 1e9)
  return best


class PeakMemory:
  """Watches the resident memory of this process and its child processes.

      with PeakMemory() as memory:
        ...
      print(memory.peak_mb)

  A thread samples their sum. A peak of this process between two samples is
  known to the operating system and counts too, unless the process had a higher
  one before.
  """

  def __init__(self):
    self._peak_mb = 0.0
    self._done = threading.Event()
    self._thread = threading.Thread(
      target=self._watch, name='peak-memory', daemon=True
    )

  def __enter__(self) -> PeakMemory:
    self._highest_before_mb = _highest_rss_mb()
    self._sample()
    self._thread.start()
    return self

  def __exit__(self, *unused_exception) -> None:
    self._done.set()
    self._thread.join()
    self._sample()
    highest_mb = _highest_rss_mb()
    if highest_mb > self._highest_before_mb:
      self._peak_mb = max(self._peak_mb, highest_mb)

  @property
  def peak_mb(self) -> float:
    """The highest sum so far, in MB (2**20 bytes)."""
    return self._peak_mb

  def _watch(self):
    while not self._done.wait(_SECONDS_PER_SAMPLE):
      self._sample()

  def _sample(self):
    self._peak_mb = max(self._peak_mb, memory.resident_mb())


def _highest_rss_mb() -> float:
  """The most resident memory that this process ever had, in MB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def versions() -> dict:
  """Versions of what decides the speed."""
  return {
    'python': platform.python_version(),
    'tensorflow': tf.__version__,
    'tensorflow_federated': tff.__version__,
    'numpy': np.__version__,
  }
