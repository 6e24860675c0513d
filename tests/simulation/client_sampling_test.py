import numpy as np
import pytest

from tff_pfl.simulation import client_sampling

CohortSampler = client_sampling.CohortSampler


@pytest.mark.parametrize(
  ('num_clients', 'cohort_size'),
  # The cost does not grow with the population.
  [(1, 1), (10, 10), (100, 10), (10**12, 1000)],
)
def test_cohort_is_sorted_unique_and_in_range(num_clients, cohort_size):
  sampler = CohortSampler(num_clients, cohort_size, seed=1)
  for round_number in range(20):
    cohort = sampler.sample(round_number)
    assert cohort.dtype == np.int64
    assert cohort.shape == (cohort_size,)
    assert np.all(np.diff(cohort) > 0)
    assert cohort[0] >= 0
    assert cohort[-1] < num_clients


def test_cohort_depends_on_seed_and_round_alone():
  expected = CohortSampler(1000, 10, seed=3).sample(7)
  sampler = CohortSampler(1000, 10, seed=3)
  for round_number in (9, 1, 7):
    cohort = sampler.sample(round_number)
  np.testing.assert_array_equal(cohort, expected)
  assert not np.array_equal(sampler.sample(8), expected)
  assert not np.array_equal(CohortSampler(1000, 10, seed=4).sample(7), expected)


def test_cohorts_stay_what_they_were_when_runs_were_stored():
  # A change of these numbers breaks the resumption of every stored run.
  np.testing.assert_array_equal(
    CohortSampler(100, 5, seed=0).sample(1), [8, 51, 86, 87, 99]
  )


def test_every_client_is_equally_likely():
  sampler = CohortSampler(20, 5, seed=0)
  counts = np.zeros(20)
  num_rounds = 4000
  for round_number in range(num_rounds):
    counts[sampler.sample(round_number)] += 1
  # Binomial with p = 1/4: standard deviation 0.007, so this is 4.4 of them.
  np.testing.assert_allclose(counts / num_rounds, 0.25, atol=0.03)


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ((0, 1, 0), '`num_clients`'),
    ((5, 0, 0), '`cohort_size`'),
    ((10, 11, 0), 'num_clients=10, found 11'),
    ((5, 1, -1), '`seed`'),
  ],
)
def test_numbers_out_of_range_are_refused(arguments, words):
  with pytest.raises(ValueError, match=words):
    CohortSampler(*arguments)


@pytest.mark.parametrize(
  ('num_clients', 'participation', 'expected'),
  [
    (100, 0.1, 10),
    (25, 0.1, 3),  # 2.5: halves go up
    (24, 0.1, 2),
    (3, 0.01, 1),
    (7, 1.0, 7),
  ],
)
def test_cohort_size_is_the_nearest_number_of_clients(
  num_clients, participation, expected
):
  assert expected == client_sampling.cohort_size_from_participation(
    num_clients, participation
  )
  for out_of_range in (0, -0.1, 1.01, float('nan')):
    with pytest.raises(ValueError, match='`participation`'):
      client_sampling.cohort_size_from_participation(10, out_of_range)
