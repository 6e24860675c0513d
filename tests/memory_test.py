import subprocess
import sys
import time

import psutil

from tff_pfl import memory

_SECONDS = 20


def test_own_memory_counts():
  own = psutil.Process().memory_info().rss / 2**20
  assert 0.9 * own <= memory.resident_mb()


def test_memory_of_a_child_counts_once_it_has_started():
  before = memory.resident_mb()
  code = 'held = b"1" * (200 * 2**20); print("held", flush=True); input()'
  with subprocess.Popen(
    [sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
  ) as child:
    assert child.stdout.readline() == b'held\n'
    deadline = time.monotonic() + _SECONDS
    while memory.resident_mb() < before + 150 and time.monotonic() < deadline:
      time.sleep(0.05)
    high = memory.resident_mb()
    child.stdin.close()
  assert high >= before + 150
  assert memory.resident_mb() < high - 150
