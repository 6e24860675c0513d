import numpy as np

from tff_pfl.datasets.partitioning import mixtures


def test_dirichlet_draws_agree_with_those_of_numpy():
  concentrations = np.array([0.05, 0.6, 2.0])
  rng = np.random.default_rng(0)
  draws, expected = (
    np.sort(values, axis=0)
    for values in (
      mixtures.draw(concentrations.sum(), concentrations, 20_000, rng),
      np.random.default_rng(1).dirichlet(concentrations, 20_000),
    )
  )
  # Quantiles of the one against those of the other.
  assert np.abs(draws - expected).mean(axis=0).max() < 0.01


def test_client_whose_groups_are_exhausted_gets_what_is_left():
  shares = np.array([[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0]])
  served = mixtures.serve(shares, np.array([6, 6, 6]), np.array([6, 12, 6]))
  # 6 of group 1 and 6 of group 2 are left after the first step.
  np.testing.assert_allclose(
    served, [[3, 1.5, 1.5], [3, 1.5, 1.5], [0, 6, 0]], atol=1e-12
  )


def test_client_of_exhausted_groups_goes_without_if_it_wants_its_own_only():
  shares = np.array([[2, 0, 0], [2, 0, 0], [2, 4, 0]])
  served = mixtures.serve(
    shares, np.array([6, 6, 6]), np.array([7, 12, 6]), own_only=True
  )
  # Asked for 6, 6 and 2 where 7 are.
  np.testing.assert_allclose(served, [[3, 0, 0], [3, 0, 0], [1, 5, 0]])
