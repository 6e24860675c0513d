"""What tests of runs share."""

import pytest

from tff_pfl.runs import report


@pytest.fixture
def without_pictures(monkeypatch):
  """Runs draw nothing, which takes most of the time of a short one."""
  monkeypatch.setattr(report, '_write_pictures', lambda *_: None)
