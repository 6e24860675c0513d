import functools

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.core import private_mean
from tff_pfl.methods import registry
from tff_pfl.models import domain_models

_INITIAL = toy_problems.KERNEL
_HPARAMS = dict(num_steps=2, learning_rate=0.05, momentum=0.0, batch_size=None)
# The third domain has no example anywhere.
_CLIENTS = [
  toy_problems.in_domains(toy_problems.regression_examples(n, 2, 1, n), pattern)
  for n, pattern in ((8, [0, 0, 0, 1]), (12, [1, 0]))
]
_ONLY_B = [toy_problems.in_domains(client, [1]) for client in _CLIENTS]
_DOMAINS = toy_problems.domains_of(_CLIENTS)
_RHO = np.array([0.6, 0.4, 0])


@functools.cache
def _build(rate=0.1, name='fed_min_max', weighting='num_examples', **changes):
  own = {'weight_learning_rate': rate} if name == 'fed_min_max' else {}
  model = domain_models.with_domains(
    toy_problems.linear_network(None, _INITIAL), _DOMAINS
  )
  return registry.build(
    *(name, model),
    seed=2,
    **{**_HPARAMS, **own, **toy_problems.WEIGHTINGS[weighting], **changes},
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


def _rounds():
  domain = np.concatenate([client.domain for client in _CLIENTS])
  lambdas, weight, risks = _RHO, _INITIAL.astype(np.float64), np.zeros(3)
  for _ in range(3):
    factors = np.divide(lambdas, _RHO, out=np.zeros(3), where=_RHO > 0)
    models = []
    for client in _CLIENTS:
      local = weight
      for _ in range(2):
        errors = factors[client.domain] * _errors(client, local)
        slope = 2 * client.x.T.astype(np.float64) @ errors / len(client.y)
        local = local - 0.05 * slope[:, np.newaxis]
      models.append(local)
    losses = np.concatenate([_errors(c, weight) ** 2 for c in _CLIENTS])
    # Risks are of the domains' examples, whatever clients weigh.
    risks[:2] = [np.mean(losses[domain == m]) for m in range(2)]
    weight = np.mean(models, axis=0)
    lambdas = np.append(_projected(lambdas[:2] + 0.1 * risks[:2]), 0)
    yield {
      'global_weights': {'head': weight},
      'algorithm': {'domain_weight': lambdas, 'domain_risk': risks.copy()},
    }


def test_rounds_are_those_of_the_algorithm():
  process = _build(weighting='unweighted')
  state, _, metrics = toy_problems.check_rounds(process, _CLIENTS, _rounds())
  risks = dict(zip('abc', state.algorithm['domain_risk']))
  assert dict(metrics['domain_risk']) == risks
  assert list(metrics['domain_weight']) == list('abc')


def test_without_ascent_it_is_fed_avg():
  hparams = dict(num_steps=None, num_epochs=2, batch_size=3)
  (state, _, metrics), (expected, _, of_avg) = (
    toy_problems.train(_build(0.0, name, **hparams), _CLIENTS, 3)
    for name in ('fed_min_max', 'fed_avg')
  )
  # The weights of domains stay what they are up to rounding.
  toy_problems.assert_close(
    state.global_weights, expected.global_weights, rtol=1e-6
  )
  assert metrics['loss'] == pytest.approx(of_avg['loss'], rel=1e-6)
  np.testing.assert_allclose(state.algorithm['domain_weight'], _RHO, rtol=1e-6)


def test_domain_absent_from_a_round_counts_with_its_last_risk():
  process = _build(weighting='unweighted')
  first, states, _ = toy_problems.train(process, _CLIENTS)
  second = process.next(first, states, toy_problems.padded(_ONLY_B)).state
  before, after = first.algorithm, second.algorithm
  assert after['domain_risk'][0] == before['domain_risk'][0]
  assert after['domain_risk'][1] != before['domain_risk'][1]
  ascended = before['domain_weight'] + 0.1 * after['domain_risk']
  np.testing.assert_allclose(
    after['domain_weight'][:2], _projected(ascended[:2]), rtol=1e-5
  )


def test_noise_is_not_taken_for_the_risk_of_an_absent_domain():
  # With this seed, noise makes a share that nobody has positive.
  private = private_mean.PrivateMeanFactory(0.02, 2, 'fixed:5', seed=1)
  process = _build(aggregator=private)
  state, _, _ = toy_problems.train(process, _ONLY_B, 2)
  risks = state.algorithm['domain_risk']
  assert risks[0] == risks[2] == 0 and risks[1] > 0
