"""Tests of the garbage collector during imports."""

import gc

import pytest

from tff_pfl.system import objects


class _Cycle:
  def __init__(self):
    self.itself = self


@pytest.fixture(autouse=True)
def _as_before():
  was_enabled = gc.isenabled()
  yield
  gc.enable() if was_enabled else gc.disable()


def test_what_a_block_creates_is_exempt():
  gc.enable()
  before = gc.get_freeze_count()
  with objects.kept():
    assert not gc.isenabled()
    kept = _Cycle()
  assert gc.isenabled()
  assert gc.get_freeze_count() > before
  assert not any(one is kept for one in gc.get_objects())


def test_a_collector_that_is_off_stays_off():
  gc.disable()
  before = gc.get_freeze_count()
  with objects.kept():
    pass
  assert not gc.isenabled()
  assert gc.get_freeze_count() == before
