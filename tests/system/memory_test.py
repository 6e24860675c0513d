import time

import psutil

from tests import children
from tff_pfl.system import memory

_SECONDS = 20


def test_own_memory_counts():
  own = psutil.Process().memory_info().rss / 2**20
  assert 0.9 * own <= memory.resident_mb()


def test_memory_of_a_child_counts_once_it_has_started():
  before = memory.resident_mb()
  with children.holding(200):
    deadline = time.monotonic() + _SECONDS
    while memory.resident_mb() < before + 150 and time.monotonic() < deadline:
      time.sleep(0.05)
    high = memory.resident_mb()
  assert high >= before + 150
  assert memory.resident_mb() < high - 150
