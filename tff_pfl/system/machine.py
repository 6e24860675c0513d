"""What a measurement takes of the machine: memory, and which versions ran."""

from __future__ import annotations

import platform
import resource
import threading

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.system import memory

_SECONDS_PER_SAMPLE = 0.2


class PeakMemory:
  """Watches the resident memory of this process and its child processes.

      with PeakMemory() as memory:
        ...
      print(memory.peak_mb)

  A thread samples their sum. A peak of this process between two samples is
  known to the operating system and counts too, unless the process had a higher
  one before.

  Attributes:
    peak_mb: The highest sum so far, in MB (2**20 bytes).
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
    self.peak_mb = max(self.peak_mb, memory.resident_mb())


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
