import pytest

from binaries import papers
from tff_pfl.experiments import claims


@pytest.mark.parametrize('name', papers.EXPERIMENTS)
def test_full_sizes_have_seeds_to_compare_with(name):
  for sizes in papers.EXPERIMENTS[name].full.values():
    assert sizes.num_seeds >= claims.MIN_SEEDS
