import functools

import numpy as np
import pytest

from tests.methods import toy_problems

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(5)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_CLIENTS = [toy_problems.regression_examples(n, 4, 3, seed=n) for n in (6, 20)]
_RATE, _STRENGTH, _MEAN_RATE = 0.1, 0.8, 0.6


@functools.cache
def _process():
  return toy_problems.full_batches(
    'fed_dbe',
    toy_problems.linear_network(_BODY, _HEAD),
    num_steps=2,
    learning_rate=_RATE,
    pull_strength=_STRENGTH,
    mean_rate=_MEAN_RATE,
  )


def _slopes(body, head, bias, client):
  """Of features, head and bias, and the features."""
  features = client.x @ body
  outputs = (features + bias) @ head
  of_outputs = 2 * (outputs - client.y) / client.y.size
  of_features = of_outputs @ head.T
  return (
    of_features,
    (features + bias).T @ of_outputs,
    of_features.sum(0),
    features,
  )


def _trained(body, head, bias, client, consensus):
  """Two steps, by hand."""
  mean = 0
  for _ in range(2):
    of_features, of_head, of_bias, features = _slopes(body, head, bias, client)
    mean = (1 - _MEAN_RATE) * mean + _MEAN_RATE * features.mean(0)
    if consensus is not None:
      of_mean = _STRENGTH * (mean - consensus) / 2  # Two features.
      of_features = of_features + _MEAN_RATE * of_mean / len(client.y)
    body = body - _RATE * client.x.T @ of_features
    head, bias = head - _RATE * of_head, bias - _RATE * of_bias
  return body, head, bias, mean


def test_rounds_by_hand():
  body, head, biases, consensus = _BODY, _HEAD, [np.zeros(2)] * 2, None
  for state, states, _ in toy_problems.rounds(
    _process(), _CLIENTS, [(0, 1)] * 3
  ):
    bodies, heads, biases, means = zip(
      *[
        _trained(body, head, bias, client, consensus)
        for bias, client in zip(biases, _CLIENTS)
      ]
    )
    body = toy_problems.weighted_mean(bodies, _CLIENTS)
    head = toy_problems.weighted_mean(heads, _CLIENTS)
    if consensus is None:
      consensus = toy_problems.weighted_mean(means, _CLIENTS)
    toy_problems.assert_kernels(state.global_weights, body=body, head=head)
    np.testing.assert_allclose(
      state.algorithm['consensus'], consensus, rtol=1e-5
    )
    for client_state, bias in zip(states, biases):
      np.testing.assert_allclose(
        client_state.local['personal_bias/bias'], bias, rtol=1e-4
      )


def test_new_client_fits_only_its_bias():
  process = _process()
  (client, _), bias = _CLIENTS, np.zeros(2)
  personal = toy_problems.new_client(process, process.initialize(), client)
  for _ in range(2):
    bias = bias - _RATE * _slopes(_BODY, _HEAD, bias, client)[2]
  np.testing.assert_allclose(
    personal.weights['personal_bias/bias'], bias, rtol=1e-5
  )
  toy_problems.assert_kernels(personal.weights, body=_BODY, head=_HEAD)
