"""The runtimes that results are compared on."""

import pytest

from tff_pfl import runtime


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
