"""The real data sets' files."""

import os

import pytest


@pytest.fixture(scope='session')
def real_data():
  """The folder of the files; without one, the test is skipped."""
  folder = os.environ.get('TFF_PFL_DATA_DIR')
  if not folder:
    pytest.skip('TFF_PFL_DATA_DIR does not name a folder with the real files')
  return folder
