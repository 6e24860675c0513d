"""The runtimes that results are compared on."""

import pytest

from tff_pfl import runtime
from tff_pfl.runtime import graph_functions


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch):
  """What a test's functions have learned about memory is not for the next."""
  monkeypatch.setattr(graph_functions, '_MAX_KEPT', 0)


@pytest.fixture(name='rt', scope='module')
def _rt():
  with runtime.create_runtime('in_process') as rt:
    yield rt


@pytest.fixture(name='native', scope='module')
def _native():
  with runtime.create_runtime('native') as rt:
    yield rt


@pytest.fixture(name='runtimes', scope='module')
def _runtimes(rt, native):
  return rt, native
