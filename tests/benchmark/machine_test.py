import threading
import time

import numpy as np

from tests import children
from tff_pfl.system import machine
from tff_pfl.system import memory as memory_lib

_MB = 2**20
_SECONDS = 20


def _megabytes(number):
  # Ones, so that the pages are there.
  return np.ones(number * _MB, np.uint8)


def test_peak_memory_counts_what_was_freed_before_the_end():
  with machine.PeakMemory() as memory:
    before = memory.peak_mb
    # More than the process ever had, or less and long enough for a sample.
    held = _megabytes(200)
    deadline = time.monotonic() + _SECONDS
    while memory.peak_mb < before + 150 and time.monotonic() < deadline:
      time.sleep(0.05)
    del held
  assert memory.peak_mb >= before + 150


def test_peak_memory_counts_child_processes():
  with machine.PeakMemory() as memory:
    before = memory.peak_mb
    with children.holding(200):
      deadline = time.monotonic() + _SECONDS
      while memory.peak_mb < before + 150 and time.monotonic() < deadline:
        time.sleep(0.05)
  assert memory.peak_mb >= before + 150


def test_peak_memory_forgets_an_earlier_peak():
  held = _megabytes(300)
  high = memory_lib.resident_mb()
  del held
  with machine.PeakMemory() as memory:
    pass
  assert 0 < memory.peak_mb < high - 200


def test_peak_memory_ends_its_thread():
  with machine.PeakMemory():
    pass
  assert 'peak-memory' not in [thread.name for thread in threading.enumerate()]


def test_versions_are_text():
  versions = machine.versions()
  assert {'python', 'tensorflow', 'tensorflow_federated'} <= set(versions)
  assert all(isinstance(value, str) for value in versions.values())
