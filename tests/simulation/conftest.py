"""What tests of runs share."""

import pytest

from tff_pfl import datasets
from tff_pfl.simulation import plots


@pytest.fixture
def without_pictures(monkeypatch):
  """Runs draw nothing, which takes most of the time of a short one."""
  for module, name in (
    (plots, 'plot_by_round'),
    (plots, 'plot_client_distribution'),
    (plots, 'plot_domains'),
    (datasets, 'plot_partition'),
  ):
    monkeypatch.setattr(module, name, lambda *_, **__: None)
