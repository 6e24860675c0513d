"""FedDAR's rounds by hand, and what the paper says of them."""

import numpy as np
import pytest

from binaries.papers.linear import methods, simulation
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from tests.papers.linear import arrays

_DIMENSION, _RANK, _NUM_DOMAINS = 6, 2, 3
_RATE = 0.1


def _problem(num_clients=4, **changes):
  sizes = {'num_domains': _NUM_DOMAINS, 'samples_per_client': 5}
  options = {**sizes, 'concentration': 3.0, 'noise_std': 0.1, 'seed': 1}
  return problem_lib.LinearProblem(
    num_clients, _DIMENSION, _RANK, **{**options, **changes}
  )


def _run(method, num_rounds, problem=None, **options):
  initial = arrays.initial_model(_DIMENSION, _RANK)
  return simulation.run_method(
    method, problem or _problem(), num_rounds, initial=initial, **options
  )


# Two clients with three samples of domains 0 and 1, none of 2; d = 2, k = 1 and
# B = (1, 0)^T, so that the features are the first inputs.
_HAND_SAMPLES = problem_lib.Samples(
  np.array([[[1.0, 0], [2, 1], [1, 1]], [[3, 1], [0, 1], [1, 2]]]),
  np.array([[1.0, 3, 1], [6, 2, 2]]),
  np.array([[0, 1, 1], [0, 0, 1]]),
)
_HAND_B = np.array([[1.0], [0.0]])
_HAND_HEADS = np.array([[7.0], [8.0], [9.0]])


@pytest.mark.parametrize(
  'method, heads, g',
  [
    # All samples of a domain: head 0 is (1 * 1 + 3 * 6 + 0 * 2) / (1 + 9 + 0),
    # head 1 (2 * 3 + 1 * 1 + 1 * 2) / (4 + 1 + 1). Residuals: 0.9, -0.3, -2
    # of domain 0; 0, 0.5, -0.5 of domain 1.
    (methods.fed_dar(0.6), (1.9, 1.5), [(0, -2.3), (0, -0.5)]),
    # Domain 0: one sample with the head 1, two with 18 / 9; domain 1: two with
    # 7 / 5, one with 2. Residuals: 2 / 3, -1, -2; 0.2, 0.6, -0.4.
    (methods.fed_dar_wa(0.6), (5 / 3, 1.6), [(-7 / 3, -3), (0.6, 0)]),
  ],
  ids=['second_order', 'weighted_average'],
)
def test_a_round_by_hand(method, heads, g):
  model = model_lib.LinearModel(_HAND_B, _HAND_HEADS)
  result = method.one_round(model, _HAND_SAMPLES, None)
  # Domain 2, without samples, keeps its head.
  np.testing.assert_allclose(result.head[:, 0], [*heads, 9], rtol=1e-14)
  # The gradient is (1 / 3) (g_0 w_0 / 3 + g_1 w_1 / 3).
  gradient = np.dot(heads, g) / 9
  stepped = _HAND_B[:, 0] - 0.6 * gradient
  stepped /= np.linalg.norm(stepped)
  np.testing.assert_allclose(result.representation[:, 0], stepped, rtol=1e-14)


def test_a_round_of_separate_fed_avg_by_hand():
  heads = np.array([[2.0], [1.0], [9.0]])
  model = model_lib.LinearModel(np.stack([_HAND_B] * 3), heads)
  result = methods.separate_fed_avg(0.3).one_round(model, _HAND_SAMPLES, None)
  # Residuals 1, 0, -2 of domain 0 and -1, 0, -1 of domain 1: g is (1, -2) and
  # (-3, -3), of three samples each. The gradients are g w / 3 and g_1 / 3.
  np.testing.assert_allclose(
    result.representation[..., 0],
    [[1 - 0.3 * 2 / 3, 0.3 * 4 / 3], [1 + 0.3, 0.3], [1, 0]],
    rtol=1e-14,
  )
  heads = [[2 - 0.3 / 3], [1 + 0.3], [9]]
  np.testing.assert_allclose(result.head, heads, rtol=1e-14)


def test_heads_nearest_to_the_broadcast_ones_do_not_change_what_is_left_open():
  # One client with one sample of each of two domains.
  x, y = np.array([[[1.0, 0.0], [0.0, 2.0]]]), np.array([[3.0, 4.0]])
  samples = problem_lib.Samples(x, y, np.array([[0, 1]]))
  model = model_lib.LinearModel(np.eye(2), np.array([[5.0, 6.0], [7.0, 8.0]]))
  for is_near, heads in ((False, [[3, 0], [0, 2]]), (True, [[3, 6], [7, 2]])):
    method = methods.fed_dar_wa(_RATE, near_broadcast=is_near)
    actual = method.one_round(model, samples, None).head
    np.testing.assert_allclose(actual, heads, atol=1e-14)


def test_separate_fed_avg_of_one_domain_is_fed_avg():
  problem = _problem(num_domains=1, head_distribution='gaussian')
  separate = _run(methods.separate_fed_avg(0.02), 5, problem)
  fed_avg = _run(methods.fed_avg(0.02, num_local_steps=1), 5, problem)
  for part, expected in zip(separate.model, fed_avg.model):
    np.testing.assert_allclose(part[0], expected, atol=1e-13)
  np.testing.assert_allclose(separate.distance, fed_avg.distance, atol=1e-12)


def test_one_client_and_domain_is_fed_rep():
  problem = _problem(
    1, num_domains=1, samples_per_client=20, head_distribution='gaussian'
  )
  fed_dar = _run(methods.fed_dar(_RATE), 4, problem).model
  fed_rep = _run(methods.fed_rep(_RATE), 4, problem).model
  for part, expected in zip(fed_dar, fed_rep):
    np.testing.assert_allclose(part, expected, atol=1e-11)


def test_errors_of_clients_are_those_of_their_regressors():
  problem = _problem(60)
  heads = np.random.default_rng(0).standard_normal((_NUM_DOMAINS, _RANK))
  theta = heads @ problem.representation.T
  of_clients = np.broadcast_to(theta, (60, *theta.shape))
  actual = simulation.client_errors(of_clients, problem, 400)
  squares = np.square(theta - problem.targets).sum(axis=1)
  expected = problem.mixtures @ squares
  assert actual.mean() == pytest.approx(expected.mean(), rel=0.1)
  assert np.corrcoef(actual, expected)[0, 1] > 0.8
