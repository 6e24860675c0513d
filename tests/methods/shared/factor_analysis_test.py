import numpy as np
import pytest
import tensorflow as tf

from tff_pfl.methods.shared import factor_analysis

# Harman's eight physical variables of 305 girls (Modern Factor Analysis).
_PHYSICAL = np.array(
  [
    [1.0, 0.846, 0.805, 0.859, 0.473, 0.398, 0.301, 0.382],
    [0.846, 1.0, 0.881, 0.826, 0.376, 0.326, 0.277, 0.415],
    [0.805, 0.881, 1.0, 0.801, 0.38, 0.319, 0.237, 0.345],
    [0.859, 0.826, 0.801, 1.0, 0.436, 0.329, 0.327, 0.365],
    [0.473, 0.376, 0.38, 0.436, 1.0, 0.762, 0.73, 0.629],
    [0.398, 0.326, 0.319, 0.329, 0.762, 1.0, 0.583, 0.577],
    [0.301, 0.277, 0.237, 0.327, 0.73, 0.583, 1.0, 0.539],
    [0.382, 0.415, 0.345, 0.365, 0.629, 0.577, 0.539, 1.0],
  ]
)
# Of two factors by the principal axes of statsmodels 0.15,
# Factor(corr=..., n_factor=2, method='pa').fit(maxiter=1000, tol=1e-10).
_COMMUNALITIES = """
  0.83801735 0.88882602 0.82048519 0.80765295 0.8893582 0.63992041 0.58308827
  0.49193308
""".split()
_RNG = np.random.default_rng(3)


def _factors(correlation, explained_variance):
  actual = factor_analysis.principal_factors(
    tf.constant(correlation, tf.float64), explained_variance
  )
  return actual.communalities.numpy(), int(actual.number), actual.num_iterations


def _sums(columns, dtype=np.float32):
  return factor_analysis.client_sums(tf.constant(columns.astype(dtype)))


def _correlations(*clients):
  total = tf.nest.map_structure(lambda *of: sum(of), *map(_sums, clients))
  actual = factor_analysis.correlations(total)
  assert actual.dtype == tf.float64
  return actual.numpy()


def test_communalities_are_those_of_statsmodels():
  communalities, number, num_iterations = _factors(_PHYSICAL, 0.75)
  assert number == 2
  assert num_iterations < factor_analysis.max_iterations(8)
  expected = np.array(_COMMUNALITIES, float)
  np.testing.assert_allclose(communalities, expected, atol=2e-3)


# The eigenvalues are 4.673, 1.771, 0.481, 0.421, 0.233, 0.187, 0.137, 0.096.
@pytest.mark.parametrize(
  'explained_variance, number',
  [(0.01, 1), (0.584, 1), (0.585, 2), (0.85, 3), (0.9879, 7), (1.0, 8)],
)
def test_there_are_as_many_factors_as_explain_the_variance(
  explained_variance, number
):
  assert _factors(_PHYSICAL, explained_variance)[1] == number


@pytest.mark.parametrize(
  'explained_variance, number, expected',
  [(0.5, 1, [0, 0, 0]), (0.8, 2, [0.5, 0.5, 0]), (0.9, 3, [0.5, 0.5, 1])],
)
def test_squares_of_eigenvectors_by_hand(explained_variance, number, expected):
  # Eigenvalues 1.5, 1 and 0.5, of (1, 1, 0), (0, 0, 1) and (1, -1, 0).
  correlation = [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]
  actual = factor_analysis.eigenvector_squares(
    tf.constant(correlation, tf.float64), explained_variance
  )
  assert actual.number == number
  np.testing.assert_allclose(actual.communalities, expected, atol=1e-12)


def test_an_exact_factor_model_is_found():
  loadings = _RNG.normal(size=[20, 3])
  unique = _RNG.uniform(0.5, 4, size=20)
  common = np.sum(loadings**2, axis=1)
  covariance = loadings @ loadings.T + np.diag(unique)
  scales = np.sqrt(np.diag(covariance))
  correlation = covariance / np.outer(scales, scales)
  eigenvalues = np.linalg.eigvalsh(correlation)[::-1]
  share = np.sum(eigenvalues[:3]) / 20 - 1e-6
  communalities, number, _ = _factors(correlation, share)
  assert number == 3
  np.testing.assert_allclose(
    communalities, common / (common + unique), atol=2e-3
  )


def test_correlations_are_those_of_all_clients_columns():
  clients = [
    _RNG.normal(size=[n, 6]) @ _RNG.normal(size=[6, 6]) + 3 for n in (4, 9, 30)
  ]
  np.testing.assert_allclose(
    _correlations(*clients),
    np.corrcoef(np.concatenate(clients), rowvar=False),
    atol=1e-5,
  )


def test_iterations_are_bounded_and_fewer_for_many_elements():
  # Their cost grows with the cube of the elements.
  assert [factor_analysis.max_iterations(d) for d in (1, 256, 320, 512)] == [
    50,
    50,
    25,
    8,
  ]
  # Where nothing is common, it does not converge.
  correlation = np.corrcoef(_RNG.normal(size=[600, 300]), rowvar=False)
  communalities, _, num_iterations = _factors(correlation, 0.75)
  assert num_iterations == factor_analysis.max_iterations(300)
  assert np.all((communalities >= 0) & (communalities <= 1))


# Degenerate columns.


def test_elements_that_do_not_vary_have_no_communality():
  columns = _RNG.normal(size=[40, 6]) + 2 * _RNG.normal(size=[40, 1])
  columns[:, 2] = 0
  columns[:, 4] = 0.1
  correlation = _correlations(columns[:10], columns[10:])
  others = [0, 1, 3, 5]
  assert not correlation[[2, 4]].any() and not correlation[:, [2, 4]].any()
  communalities, number, _ = _factors(correlation, 0.8)
  alone, number_alone, _ = _factors(correlation[np.ix_(others, others)], 0.8)
  assert number == number_alone
  np.testing.assert_allclose(communalities[others], alone, atol=1e-6)
  assert not communalities[[2, 4]].any()


def test_where_nothing_varies_there_is_one_factor_of_nothing():
  sums = _sums(np.zeros([4, 3]))
  # Nor has the mean over nobody correlations.
  nobody = tf.nest.map_structure(lambda v: tf.fill(v.shape, np.nan), sums)
  for each in (sums, nobody):
    correlation = factor_analysis.correlations(each)
    np.testing.assert_array_equal(correlation, 0)
    communalities, number, _ = _factors(correlation, 0.85)
    assert number == 1
    np.testing.assert_array_equal(communalities, 0)


def test_communalities_stay_in_their_range_in_heywood_cases():
  # One factor with loadings 0.9 / 0.6 = 1.5 on the first element.
  correlation = np.array([[1, 0.9, 0.9], [0.9, 1, 0.36], [0.9, 0.36, 1]])
  communalities, number, num_iterations = _factors(correlation, 0.5)
  assert number == 1
  assert communalities[0] == 1
  assert np.all((communalities >= 0) & (communalities <= 1))
  assert num_iterations <= factor_analysis.max_iterations(3)


def test_what_noise_makes_negative_gives_no_factor():
  noisy = np.array([[1, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]])
  assert np.linalg.eigvalsh(noisy)[0] < -0.5
  communalities, number, _ = _factors(noisy, 1.0)
  assert number == 2
  assert np.all((communalities >= 0) & (communalities <= 1))


def test_the_least_are_chosen_in_order_where_equal():
  values = tf.constant([0.3, 0.1, 0.2, 0.1 - 1e-15, 0.1], tf.float64)
  for count, expected in (
    (0, []),
    (2, [1, 3]),
    (4, [1, 2, 3, 4]),
    (5, [0, 1, 2, 3, 4]),
  ):
    chosen = factor_analysis.least(values, count)
    np.testing.assert_array_equal(np.flatnonzero(chosen), expected)
