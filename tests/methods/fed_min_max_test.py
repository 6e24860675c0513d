import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.methods import toy_problems
from tff_pfl.methods import fed_avg, fed_min_max, registry
from tff_pfl.models import domain_models

pytestmark = pytest.mark.usefixtures('runtime')

_INITIAL = np.array([[0.5], [-1.0]], np.float32)
_RATE = 0.05
_HPARAMS = dict(num_steps=2, learning_rate=_RATE, momentum=0.0, batch_size=None)


def _client(num_examples, seed, pattern):
  client = toy_problems.regression_examples(num_examples, 2, 1, seed)
  return toy_problems.in_domains(client, pattern)


# The third domain has no example anywhere.
_CLIENTS = (_client(8, 0, [0, 0, 0, 1]), _client(12, 1, [1, 0]))
_NAMES = ('a', 'b', 'c')


def _model():
  return domain_models.with_domains(
    toy_problems.linear_network(None, _INITIAL),
    toy_problems.domains_of(_CLIENTS, _NAMES),
  )


@functools.cache
def _build(
  weight_learning_rate, aggregator=None, weighting='num_examples', **hparams
):
  return registry.build(
    'fed_min_max',
    _model(),
    fed_min_max.FedMinMaxHParams(
      weight_learning_rate=weight_learning_rate, **{**_HPARAMS, **hparams}
    ),
    seed=2,
    **{
      **toy_problems.WEIGHTINGS[weighting],
      **({'aggregator': aggregator()} if aggregator else {}),
    },
  )


# The algorithm, written down again.


def _projected(values):
  """The nearest point of the simplex, by bisection on the shift."""
  low, high = np.min(values) - 1, np.max(values)
  for _ in range(200):
    shift = (low + high) / 2
    if np.sum(np.maximum(values - shift, 0)) > 1:
      low = shift
    else:
      high = shift
  return np.maximum(values - shift, 0)


def _errors(client, weight):
  return (client.x.astype(np.float64) @ weight)[:, 0] - client.y


def _risks(clients, weight, old):
  """Mean losses of the domains, the old ones of those that are absent."""
  domain = np.concatenate([client.domain for client in clients])
  losses = np.concatenate([_errors(c, weight) ** 2 for c in clients])
  return [
    np.mean(losses[domain == m]) if np.any(domain == m) else old[m]
    for m in range(3)
  ]


def _reference(
  clients, num_rounds, weight_learning_rate, weighting='num_examples'
):
  rho = np.array(toy_problems.domains_of(_CLIENTS, _NAMES).num_examples) / 20
  lambdas, weight, risks = rho, _INITIAL.astype(np.float64), np.zeros(3)
  for _ in range(num_rounds):
    factors = np.divide(lambdas, rho, out=np.zeros(3), where=rho > 0)
    locals_ = []
    for client in clients:
      local = weight
      for _ in range(2):
        errors = factors[client.domain] * _errors(client, local)
        slope = 2 * client.x.T.astype(np.float64) @ errors / len(client.y)
        local = local - _RATE * slope[:, np.newaxis]
      locals_.append(local)
    risks = np.array(_risks(clients, weight, risks))
    weight = toy_problems.mean_model(locals_, clients, weighting)
    present = rho > 0
    ascended = lambdas + weight_learning_rate * risks
    lambdas = np.zeros(3)
    lambdas[present] = _projected(ascended[present])
  return weight, lambdas, risks


@pytest.mark.parametrize('weighting', ['num_examples', 'unweighted'])
def test_rounds_are_those_of_the_algorithm(weighting):
  process = _build(0.1, weighting=weighting)
  state, _, metrics = toy_problems.train(process, _CLIENTS, 3)
  # Risks are of the domains' examples, whatever clients weigh.
  weight, lambdas, risks = _reference(_CLIENTS, 3, 0.1, weighting)
  np.testing.assert_allclose(
    state.global_weights['head/kernel'], weight, rtol=1e-4
  )
  np.testing.assert_allclose(
    state.algorithm['domain_weight'], lambdas, rtol=1e-4
  )
  np.testing.assert_allclose(state.algorithm['domain_risk'], risks, rtol=1e-4)
  assert list(metrics['domain_weight']) == list(_NAMES)
  np.testing.assert_allclose(
    list(metrics['domain_risk'].values()), risks, rtol=1e-4
  )


def test_without_ascent_it_is_fed_avg():
  hparams = dict(num_steps=None, num_epochs=2, batch_size=3)
  state, _, metrics = toy_problems.train(_build(0.0, **hparams), _CLIENTS, 3)
  avg = registry.build(
    'fed_avg',
    _model(),
    fed_avg.FedAvgHParams(**{**_HPARAMS, **hparams}),
    seed=2,
  )
  expected, _, avg_metrics = toy_problems.train(avg, _CLIENTS, 3)
  # The weights of domains stay what they are up to rounding.
  toy_problems.assert_close(
    state.global_weights, expected.global_weights, rtol=1e-6
  )
  assert metrics['loss'] == pytest.approx(avg_metrics['loss'], rel=1e-6)
  np.testing.assert_allclose(
    state.algorithm['domain_weight'], [0.6, 0.4, 0], rtol=1e-6
  )


def test_domain_absent_from_a_round_counts_with_its_last_risk():
  process = _build(0.1)
  first, states, _ = toy_problems.train(process, _CLIENTS)
  only_b = [toy_problems.in_domains(c, [1]) for c in _CLIENTS]
  second = process.next(first, states, toy_problems.padded(only_b)).state
  before, after = first.algorithm, second.algorithm
  assert after['domain_risk'][0] == before['domain_risk'][0]
  assert after['domain_risk'][1] != before['domain_risk'][1]
  ascended = before['domain_weight'] + 0.1 * after['domain_risk']
  np.testing.assert_allclose(
    after['domain_weight'][:2], _projected(ascended[:2]), rtol=1e-5
  )


def test_noise_is_not_taken_for_the_risk_of_an_absent_domain():
  process = _build(
    0.1,
    lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      noise_multiplier=0.02, clients_per_round=2, clip=5.0
    ),
  )
  only_b = [toy_problems.in_domains(c, [1]) for c in _CLIENTS]
  state, _, _ = toy_problems.train(process, only_b, 2)
  risks = state.algorithm['domain_risk']
  assert risks[0] == risks[2] == 0 and risks[1] > 0
