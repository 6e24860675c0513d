import numpy as np
import pytest

from tff_pfl.core import client_sampling

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
  np.testing.assert_array_equal(
    CohortSampler(100, 5, seed=0, dropout_rate=0.3).sample(1), [51, 86, 99]
  )


def test_every_client_is_equally_likely():
  sampler = CohortSampler(20, 5, seed=0)
  counts = np.zeros(20)
  num_rounds = 4000
  for round_number in range(num_rounds):
    counts[sampler.sample(round_number)] += 1
  # Binomial with p = 1/4: standard deviation 0.007, so this is 4.4 of them.
  np.testing.assert_allclose(counts / num_rounds, 0.25, atol=0.03)


def test_each_client_of_a_cohort_fails_with_the_rate():
  num_rounds, rate = 2000, 0.3
  all_report = CohortSampler(50, 20, seed=1)
  sampler = CohortSampler(50, 20, seed=1, dropout_rate=rate)
  invited, reported = np.zeros(50), np.zeros(50)
  numbers = []
  for round_number in range(1, num_rounds + 1):
    cohort = all_report.sample(round_number)
    reports = sampler.sample(round_number)
    assert set(reports) <= set(cohort) and np.all(np.diff(reports) > 0)
    invited[cohort] += 1
    reported[reports] += 1
    numbers.append(len(reports))
  # Binomial: 4.4 standard deviations, over all and for each client.
  assert abs(np.mean(numbers) / 20 - 0.7) < 4.4 * (0.21 / (20 * 2000)) ** 0.5
  bounds = 4.4 * (0.21 / invited) ** 0.5
  assert np.all(np.abs(reported / invited - 0.7) < bounds)
  # The variance of independent clients, 20 x 0.21; its own error is 3%.
  assert np.var(numbers) == pytest.approx(4.2, rel=0.15)


def test_a_round_in_which_all_would_fail_has_one_client():
  sampler = CohortSampler(30, 3, seed=0, dropout_rate=0.99)
  cohorts = [sampler.sample(r) for r in range(1, 1001)]
  assert min(map(len, cohorts)) == 1
  # On average 3 x 0.01, and one of the 0.97 rounds in which all fail.
  assert np.mean([len(c) for c in cohorts]) == pytest.approx(1.0003, abs=0.01)
  assert len({int(cohort[0]) for cohort in cohorts}) == 30


def test_clients_are_drawn_from_their_rounds_on():
  sampler = CohortSampler(6, 4, seed=2, join_rounds=[1, 5, 1, 9, 1, 5])
  everybody = CohortSampler(6, 4, seed=2)
  drawn = set()
  for round_number in range(1, 40):
    cohort = sampler.sample(round_number)
    if round_number < 5:
      # All who are there, which are fewer than a cohort.
      assert cohort.tolist() == [0, 2, 4]
    elif round_number < 9:
      assert len(cohort) == 4
      drawn.update(cohort.tolist())
    else:
      np.testing.assert_array_equal(cohort, everybody.sample(round_number))
  assert drawn == {0, 1, 2, 4, 5}


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ((10, 11, 0), 'num_clients=10, found 11'),
    ((5, 1, -1), '`seed` to be at least 0'),
    ((2, 1, 0, 0.0, (3, 2)), "`join_rounds`.*found 'round 2 for the first'"),
  ],
)
def test_numbers_out_of_range_are_refused(arguments, words):
  with pytest.raises(ValueError, match=words):
    CohortSampler(*arguments)
