"""FedDAR's rounds by hand and against NumPy, and what the paper says of it."""

import numpy as np
import pytest
import tensorflow as tf

from binaries.papers.linear import (
  domain_methods,
  domain_problem,
  initialization,
  methods,
  scoring,
  simulation,
)
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from tests.papers.linear import arrays
from tff_pfl import errors

_DIMENSION, _RANK, _NUM_DOMAINS = 6, 2, 3
_RATE = 0.1
_VARIANTS = {
  'fed_dar': lambda: domain_methods.fed_dar(_RATE),
  'wa': lambda: domain_methods.fed_dar_wa(_RATE),
  'wa_broadcast': lambda: domain_methods.fed_dar_wa(_RATE, near_broadcast=True),
  'separate': lambda: domain_methods.separate_fed_avg(_RATE / 5),
}


def _problem(num_clients=4, num_domains=_NUM_DOMAINS, **kwargs):
  return domain_problem.DomainProblem(
    num_clients,
    _DIMENSION,
    _RANK,
    num_domains,
    **{
      'samples_per_client': 5,
      'concentration': 3.0,
      'noise_std': 0.1,
      'seed': 1,
      **kwargs,
    },
  )


def _initial(seed=0):
  return arrays.initial_model(_DIMENSION, _RANK, seed)


def _pooled(samples):
  """All clients' samples: `(x, y)` of each domain."""
  x, y, domain = (np.asarray(value) for value in samples)
  return [(x[domain == m], y[domain == m]) for m in range(domain.max() + 1)]


def _one_phase(method, index, shared, clients):
  """A phase's server state from clients' samples, without a simulation."""
  phase = method.phases[index]
  messages = [
    phase.client_work(
      model_lib.LinearModel(**shared), samples, tf.zeros(2, tf.int32)
    )[0]
    for samples in clients
  ]
  mean = tf.nest.map_structure(lambda *v: tf.add_n(v) / len(v), *messages)
  return phase.server_work(shared, mean)


# Two clients; d = 2, k = 1, B = (1, 0)^T: the features are the first inputs.
_B = tf.constant([[1.0], [0.0]], tf.float64)
_HAND_CLIENTS = [
  problem_lib.DomainSamples(
    *(
      tf.constant(v, t)
      for v, t in zip(client, (tf.float64, tf.float64, tf.int32))
    )
  )
  for client in (
    ([[1.0, 0.0], [2.0, 1.0]], [1.0, 3.0], [0, 1]),
    ([[3.0, 1.0], [0.0, 1.0]], [6.0, 2.0], [0, 0]),
  )
]
_HAND_SHARED = {
  'representation': _B,
  'head': tf.constant([[7.0], [8.0], [9.0]], tf.float64),
}


@pytest.mark.parametrize(
  'method, head',
  [
    # All samples of the domain: (1 * 1 + 3 * 6 + 0 * 2) / (1 + 9 + 0).
    (domain_methods.fed_dar(_RATE), 1.9),
    # One sample with the head 1, two with the head 18 / 9.
    (domain_methods.fed_dar_wa(_RATE), 5 / 3),
  ],
  ids=['second_order', 'weighted_average'],
)
def test_heads_by_hand(method, head):
  heads = _one_phase(method, 0, _HAND_SHARED, _HAND_CLIENTS)['head']

  # Domain 1: 2 * 3 / 4; domain 2 has no samples.
  np.testing.assert_allclose(heads, [[head], [1.5], [9.0]], rtol=1e-14)


def test_a_step_on_the_representation_by_hand():
  shared = {
    **_HAND_SHARED,
    'head': tf.constant([[2.0], [1.0], [9.0]], tf.float64),
  }
  result = _one_phase(domain_methods.fed_dar(0.6), 1, shared, _HAND_CLIENTS)

  # Residuals of domain 0: 1, 0, -2, so g = (1, -2); of domain 1: -1, so
  # g = (-2, -1). The gradient is (1 / 3) (g_0 2 / 3 + g_1 1 / 1).
  gradient = np.array([2 / 3 - 2, -4 / 3 - 1]) / 3
  expected = np.array([1.0, 0.0]) - 0.6 * gradient
  np.testing.assert_allclose(
    result['representation'][:, 0],
    expected / np.linalg.norm(expected),
    rtol=1e-14,
  )
  np.testing.assert_array_equal(result['head'], shared['head'])


def test_a_round_of_separate_fed_avg_by_hand():
  shared = {
    'representation': tf.stack([_B] * 3),
    'head': tf.constant([[2.0], [1.0], [9.0]], tf.float64),
  }
  result = _one_phase(
    domain_methods.separate_fed_avg(0.3), 0, shared, _HAND_CLIENTS
  )

  # The gradients of the mean losses, g as above: (g 2 / 3, g_1 / 3), (g, g_1).
  np.testing.assert_allclose(
    result['representation'][..., 0],
    [[1 - 0.3 * 2 / 3, 0.3 * 4 / 3], [1 + 0.3 * 2, 0.3], [1, 0]],
    rtol=1e-14,
  )
  np.testing.assert_allclose(
    result['head'], [[2 - 0.3 / 3], [1 + 0.3 * 2], [9]], rtol=1e-14
  )


def _numpy_round(problem, representation, solve_heads):
  x, y, domain = (value.numpy() for value in problem.samples())
  heads = solve_heads(x, y, domain, representation)
  gradient = 0
  for head, (x_m, y_m) in zip(heads, _pooled(problem.samples())):
    residual = x_m @ representation @ head - y_m
    gradient += np.outer(x_m.T @ residual, head) / len(y_m) / len(heads)
  return arrays.positive_q(representation - _RATE * gradient), heads


def _pooled_heads(x, y, domain, representation):
  return [
    np.linalg.lstsq(x_m @ representation, y_m, rcond=None)[0]
    for x_m, y_m in _pooled((x, y, domain))
  ]


def _averaged_heads(x, y, domain, representation):
  heads = []
  for m in range(domain.max() + 1):
    weighted = [
      member.sum()
      * np.linalg.lstsq(x_i[member] @ representation, y_i[member], rcond=None)[
        0
      ]
      for x_i, y_i, member in zip(x, y, domain == m)
      if member.any()
    ]
    heads.append(np.sum(weighted, axis=0) / (domain == m).sum())
  return heads


@pytest.mark.parametrize(
  'method, solve_heads',
  [
    (domain_methods.fed_dar(_RATE), _pooled_heads),
    (domain_methods.fed_dar_wa(_RATE), _averaged_heads),
  ],
  ids=['second_order', 'weighted_average'],
)
def test_rounds_equal_numpy(method, solve_heads):
  problem = _problem()
  assert (arrays.domain_counts(problem) == 1).any()
  assert (arrays.domain_counts(problem) == 0).any()
  history = simulation.run(method, problem, 3, initial=_initial())
  representation = _initial().representation
  for _ in range(3):
    representation, heads = _numpy_round(problem, representation, solve_heads)

  np.testing.assert_allclose(
    history.model.representation, representation, atol=1e-12
  )
  np.testing.assert_allclose(history.model.head, heads, atol=1e-11)
  np.testing.assert_array_equal(
    history.client_models.head[2], history.model.head
  )


def test_separate_fed_avg_of_one_domain_is_fed_avg():
  problem = _problem(num_domains=1)
  separate, fed_avg = (
    simulation.run(method, problem, 5, initial=_initial())
    for method in (
      domain_methods.separate_fed_avg(0.02),
      methods.fed_avg(0.02, num_local_steps=1),
    )
  )

  for part, expected in zip(separate.model, fed_avg.model):
    np.testing.assert_allclose(part[0], expected, atol=1e-13)
  np.testing.assert_allclose(separate.distance, fed_avg.distance, atol=1e-12)


def test_one_client_and_domain_is_fed_rep():
  problem = _problem(1, num_domains=1, samples_per_client=20)
  fed_dar, fed_rep = (
    simulation.run(method, problem, 4, initial=_initial())
    for method in (domain_methods.fed_dar(_RATE), methods.fed_rep(_RATE))
  )

  np.testing.assert_allclose(
    fed_dar.model.representation, fed_rep.model.representation, atol=1e-12
  )
  np.testing.assert_allclose(fed_dar.model.head, fed_rep.model.head, atol=1e-11)


def test_separate_fed_avg_tends_to_each_domains_least_squares():
  problem = _problem(20, samples_per_client=20, concentration=10.0)
  history = simulation.run(
    domain_methods.separate_fed_avg(0.3),
    problem,
    2000,
    initial=_initial(),
    rounds_per_record=1000,
  )
  regressors = np.einsum('mdk,mk->md', *history.model)
  expected = [
    np.linalg.lstsq(x, y, rcond=None)[0] for x, y in _pooled(problem.samples())
  ]

  np.testing.assert_allclose(regressors, expected, atol=1e-8)


def _without_domain_0():
  problem = _problem(2, samples_per_client=12)
  # In place of those that are drawn.
  vars(problem)['mixtures'] = np.array([[0, 0.5, 0.5], [0, 0.2, 0.8]])
  return problem


@pytest.mark.parametrize('variant', list(_VARIANTS))
def test_a_domain_that_no_client_has_keeps_its_head(variant):
  history = simulation.run(
    _VARIANTS[variant](), _without_domain_0(), 3, initial=_initial()
  )

  np.testing.assert_array_equal(history.model.head[0], _initial().head)
  assert (
    (np.abs(history.model.head[1:] - _initial().head) > 1e-6).any(axis=1).all()
  )
  assert np.isfinite(history.model.representation).all()


def test_heads_nearest_to_the_broadcast_ones_do_not_change_what_is_left_open():
  # One client with one sample of each of two domains.
  samples = problem_lib.DomainSamples(
    tf.constant([[1.0, 0.0], [0.0, 2.0]], tf.float64),
    tf.constant([3.0, 4.0], tf.float64),
    tf.constant([0, 1]),
  )
  shared = {
    'representation': tf.eye(2, dtype=tf.float64),
    'head': tf.constant([[5.0, 6.0], [7.0, 8.0]], tf.float64),
  }
  zero, broadcast = (
    _one_phase(
      domain_methods.fed_dar_wa(_RATE, near_broadcast=near_broadcast),
      0,
      shared,
      [samples],
    )['head']
    for near_broadcast in (False, True)
  )

  np.testing.assert_allclose(zero, [[3, 0], [0, 2]], atol=1e-14)
  np.testing.assert_allclose(broadcast, [[3, 6], [7, 2]], atol=1e-14)


@pytest.fixture(scope='module')
def long_runs():
  problem = domain_problem.DomainProblem(
    60, 20, 2, 4, samples_per_client=10, concentration=1.0, seed=2
  )
  initial = initialization.with_zero_head(
    initialization.method_of_moments(problem)
  )
  return problem, {
    name: simulation.run(method, problem, 300, initial=initial)
    for name, method in (
      ('fed_dar', domain_methods.fed_dar(0.5)),
      ('wa', domain_methods.fed_dar_wa(0.5)),
    )
  }


def test_fed_dar_contracts_geometrically_and_its_average_does_not(long_runs):
  _, histories = long_runs
  distance = histories['fed_dar'].distance
  first, last = np.argmax(distance < 0.3), np.argmax(distance < 1e-6)
  logs = np.log(distance[first:last])

  assert distance[-1] < 1e-6
  assert (np.diff(logs) < 0).all()
  assert np.corrcoef(np.arange(len(logs)), logs)[0, 1] ** 2 > 0.95
  assert histories['wa'].distance[-1] > 1e-3


def test_errors_of_clients_are_those_of_their_regressors(long_runs):
  problem, histories = long_runs
  fed_dar, averaged = (
    scoring.client_errors(history.client_models, problem, 400)
    for history in histories.values()
  )
  history = histories['wa']
  difference = (
    history.model.head @ history.model.representation.T - problem.truth.targets
  )
  expected = problem.mixtures @ (difference**2).sum(axis=1)

  assert fed_dar.shape == (60,)
  assert fed_dar.max() < 1e-10
  assert averaged.mean() == pytest.approx(expected.mean(), rel=0.1)


def test_methods_without_domains_run_on_samples_that_have_them():
  problem = _problem()
  plain = simulation.run(
    methods.fed_rep(0.05, ridge=0.1), problem, 2, initial=_initial()
  )
  alone = simulation.run(
    methods.local_only(0.01), problem, 2, initial=_initial()
  )

  assert plain.model.head.shape == (4, _RANK)
  np.testing.assert_array_equal(
    plain.client_models.representation[3], plain.model.representation
  )
  np.testing.assert_array_equal(
    alone.client_models.representation, alone.model.representation
  )
  errors_of_clients = scoring.client_errors(alone.client_models, problem, 200)
  assert errors_of_clients.shape == (4,)


def test_records_may_be_of_some_rounds_only():
  every, some = (
    simulation.run(
      domain_methods.fed_dar(_RATE),
      _problem(),
      6,
      initial=_initial(),
      rounds_per_record=rounds_per_record,
    )
    for rounds_per_record in (1, 3)
  )

  assert every.rounds.tolist() == list(range(7))
  assert some.rounds.tolist() == [0, 3, 6]
  np.testing.assert_allclose(some.distance, every.distance[::3], rtol=1e-12)
  np.testing.assert_allclose(some.model.head, every.model.head, rtol=1e-12)


def test_fed_dar_clients_send_sums_and_keep_nothing():
  phase = domain_methods.fed_dar(_RATE).phases[0]
  message, kept = phase.client_work(
    model_lib.LinearModel(**_HAND_SHARED),
    _HAND_CLIENTS[0],
    tf.zeros(2, tf.int32),
  )
  shapes = {k: v.shape.as_list() for k, v in message.items()}
  assert shapes == {'count': [3], 'gram': [3, 1, 1], 'moments': [3, 1]}
  assert not kept


def test_steps_that_are_too_large_are_told():
  with pytest.raises(errors.RunError, match='separate_fed_avg diverged'):
    simulation.run(
      domain_methods.separate_fed_avg(50.0), _problem(), 100, initial=_initial()
    )


def test_records_that_do_not_fit_the_rounds_are_refused():
  with pytest.raises(ValueError, match='`rounds_per_record`.*a divisor of'):
    simulation.run(
      domain_methods.fed_dar(_RATE),
      _problem(),
      6,
      initial=_initial(),
      rounds_per_record=4,
    )
