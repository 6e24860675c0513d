"""Tests of the garbage collector during imports."""

import gc

import pytest

from tff_pfl.system import collector


@pytest.mark.parametrize('is_enabled', [True, False])
def test_a_block_runs_without_collections(is_enabled):
  before = gc.isenabled()
  try:
    gc.enable() if is_enabled else gc.disable()
    with pytest.raises(KeyError), collector.paused():
      assert not gc.isenabled()
      raise KeyError
    assert gc.isenabled() == is_enabled
  finally:
    gc.enable() if before else gc.disable()
