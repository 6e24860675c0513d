import numpy as np
import pytest

from binaries.papers import fed_fac, fed_split
from tests.papers import untrained
from tff_pfl.studies import claims

_CONVERGENCE, _GENERALIZATION = (
  study.at('small') for study in fed_fac.STUDIES[:2]
)


@pytest.mark.slow
def test_fed_split_keeps_the_bound_and_fed_avg_is_slower():
  sizes = {'nums_clients': (3,), 'num_examples': 4, 'num_neurons': 300}
  study = _CONVERGENCE.with_settings(num_rounds=6, **sizes)
  numbers = untrained.Context(study).measured()
  bound, line, lead = claims.check(study.claims, numbers, study)
  assert [c.verdict for c in (bound, line)] == [claims.HOLDS] * 2
  assert lead.measured > 0
  for method in numbers.distinct('method'):
    (shares,) = numbers.curve('loss_share', 'round', method=method)
    assert (len(shares), shares[0]) == (7, 1) and np.all(np.diff(shares) < 0)


def test_the_kernel_is_the_expectation_over_neurons():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[4, 3])
  x /= np.linalg.norm(x, axis=1, keepdims=True)
  is_on = rng.normal(size=[200_000, 3]) @ x.T >= 0
  both = np.einsum('wi,wj->ij', is_on.astype(float), is_on) / len(is_on)
  actual = fed_split.neural_tangent_kernel(x)
  np.testing.assert_allclose(actual, (x @ x.T) * both, atol=0.01)


def test_smallest_eigenvalues_are_of_all_examples_and_of_clients():
  # The clients' inputs are orthogonal but for one pair between them.
  x = np.zeros([2, 2, 4])
  x[0, 0, 0] = x[0, 1, 1] = x[1, 0, 2] = 1
  x[1, 1, [1, 3]] = np.sqrt(0.5)
  shared, personal = fed_split.smallest_eigenvalues(x)
  np.testing.assert_allclose(personal, 0.5)
  # The pair's angle is 45 degrees: sqrt(1/2) (pi - pi / 4) / (2 pi).
  np.testing.assert_allclose(shared, 0.5 - np.sqrt(0.5) * 0.375)


def test_complexity_is_of_both_kernels():
  # Orthogonal inputs of norm 1, for which both kernels are I / 2.
  x = np.eye(4).reshape([2, 2, 4])
  y = np.array([[1.0, 2.0], [3.0, 4.0]])
  # 2 sqrt(C / n y^T y), C = n = 2.
  np.testing.assert_allclose(fed_split.complexity(x, y), 2 * np.sqrt(30))
  # Two equal inputs of norm 1, of two clients: [[1, 1/2], [1/2, 1]].
  x, y = np.ones([2, 1, 1]), np.array([[1.0], [2.0]])
  product = np.linalg.solve([[1, 0.5], [0.5, 1]], [1, 2]) @ [1, 2]
  expected = 2 * np.sqrt(2 * product)
  np.testing.assert_allclose(fed_split.complexity(x, y), expected)


def test_errors_on_new_examples_are_told_beside_the_complexity():
  study = _GENERALIZATION.with_settings(nums_clients=(2,))
  context = untrained.Context(study)
  error, complexity = fed_split.measure_generalization(context)
  assert error['measure'] == 'error on new examples'
  # Regressors and inputs are of norm 1 at most.
  assert 0 < error['value'] < 1 and complexity['value'] > 0
