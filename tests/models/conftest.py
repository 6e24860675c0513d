"""The fixture of all tests of models."""

import pytest


@pytest.fixture(autouse=True, scope='session')
def _installed(runtime):
  """Processes run on the default runtime."""
  return runtime
