"""What tests of runs share."""

import pytest

from tff_pfl import runtime as runtime_lib
from tff_pfl.runs import report


def _without_pictures():
  """Runs draw nothing, which takes most of the time of a short one."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(report, '_write_pictures', lambda *_: None)
    yield


# Of a test, and of all tests of a file and its fixtures.
without_pictures = pytest.fixture(_without_pictures)
no_pictures = pytest.fixture(_without_pictures, scope='module')


class _Kept:
  """A runtime that stays open."""

  def __init__(self, runtime):
    self._runtime = runtime

  def __getattr__(self, name):
    return getattr(self._runtime, name)

  @property
  def __class__(self):
    # To `isinstance` it is what it keeps.
    return type(self._runtime)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    pass

  def close(self):
    pass


@pytest.fixture(scope='module')
def one_runtime(runtime):
  """All runs compute on one runtime, which loads each process once."""
  kept = _Kept(runtime)
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(runtime_lib.RUNTIMES, 'in_process', lambda **_: kept)
    yield
