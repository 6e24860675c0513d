import contextlib
import subprocess
import sys
import threading
import time

import numpy as np

from tff_pfl.system import machine

_SECONDS = 20
_HOLD = """
import sys
held = b'x' * ({megabytes} * 2**20)
print('held', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _holding(megabytes):
  """Memory of this process."""
  # Ones, so that the pages are there.
  held = np.ones(megabytes * 2**20, np.uint8)
  yield
  del held


@contextlib.contextmanager
def _child_holding(megabytes):
  """Memory of a child process."""
  with subprocess.Popen(
    [sys.executable, '-c', _HOLD.format(megabytes=megabytes)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as child:
    assert child.stdout.readline() == b'held\n'
    yield
    child.stdin.close()


def _wait_until(condition):
  deadline = time.monotonic() + _SECONDS
  while not condition() and time.monotonic() < deadline:
    time.sleep(0.05)
  assert condition()


def test_peak_memory_counts_what_was_freed_before_the_end():
  for holding in (_holding, _child_holding):
    with machine.PeakMemory() as memory:
      before = memory.peak_mb
      # More than the process ever had, or less and long enough for a sample.
      with holding(200):
        _wait_until(lambda: memory.peak_mb >= before + 150)  # noqa: B023
    assert memory.peak_mb >= before + 150
  assert 'peak-memory' not in [thread.name for thread in threading.enumerate()]


def test_peak_memory_forgets_an_earlier_peak():
  with _holding(300):
    high = machine.resident_mb()
  with machine.PeakMemory() as memory:
    pass
  assert 0 < memory.peak_mb < high - 200
