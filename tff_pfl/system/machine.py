"""Memory measurements and package versions."""

from __future__ import annotations

import contextlib
import platform
import resource
import threading
import time

import numpy as np
import psutil
import tensorflow as tf

from tff_pfl import tff_api as tff

_SECONDS_PER_SAMPLE = 0.2
# A new process briefly shares its parent's memory, which must not count twice.
_SECONDS_UNTIL_STARTED = 0.5

# The process that listed its children last, when, and the children.
_listed = None, 0.0, []


def resident_mb() -> float:
  """Returns the resident memory of this process and its children, in MiB."""
  process = psutil.Process()
  total = process.memory_info().rss
  for child in _children(process):
    # A child may end during its measurement.
    with contextlib.suppress(psutil.Error):
      if time.time() - child.create_time() > _SECONDS_UNTIL_STARTED:
        total += child.memory_info().rss
  return total / 2**20


def _children(process):
  """The children at most `_SECONDS_PER_SAMPLE` ago.

  Finding them takes milliseconds, because it reads about every process of the
  machine.
  """
  global _listed
  listed_by, seconds, children = _listed
  now = time.monotonic()
  if listed_by != process or now - seconds >= _SECONDS_PER_SAMPLE:
    children = process.children(recursive=True)
    _listed = process, now, children
  return children


class PeakMemory:
  """The peak resident memory of this process and its child processes.

      with PeakMemory() as memory:
        ...
      print(memory.peak_mb)

  A thread samples their sum. The operating system also records a peak of this
  process between two samples, which counts unless the process had a higher one
  before the block.

  Attributes:
    peak_mb: The highest sum so far, in MiB (2**20 bytes).
  """

  def __init__(self):
    self.peak_mb = 0.0
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
      self.peak_mb = max(self.peak_mb, highest_mb)

  def _watch(self):
    while not self._done.wait(_SECONDS_PER_SAMPLE):
      self._sample()

  def _sample(self):
    self.peak_mb = max(self.peak_mb, resident_mb())


def _highest_rss_mb() -> float:
  """Returns the largest resident memory of this process so far, in MiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def versions() -> dict:
  """Returns the versions of Python and packages that affect speed."""
  return {
    'python': platform.python_version(),
    'tensorflow': tf.__version__,
    'tensorflow_federated': tff.__version__,
    'numpy': np.__version__,
  }
