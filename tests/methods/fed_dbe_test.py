import numpy as np

from tests.methods import toy_problems

_CLIENTS = toy_problems.DEEP_CLIENTS
_RATE, _STRENGTH, _MEAN_RATE = 0.1, 0.8, 0.6


def _slopes(body, head, bias, client):
  """The slopes of features, head and bias, and the features."""
  features = client.x @ body
  outputs = (features + bias) @ head
  of_outputs = 2 * (outputs - client.y) / client.y.size
  of_features = of_outputs @ head.T
  of_head = (features + bias).T @ of_outputs
  return of_features, of_head, of_features.sum(0), features


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


def _new_client(body, head):
  """Fits only its bias."""
  bias = np.zeros(2)
  for _ in range(2):
    bias = bias - _RATE * _slopes(body, head, bias, _CLIENTS[0])[2]
  return {'personal_bias/bias': bias, 'body': body, 'head': head}


def test_rounds_by_hand():
  process = toy_problems.deep_linear(
    'fed_dbe',
    num_steps=2,
    learning_rate=_RATE,
    pull_strength=_STRENGTH,
    mean_rate=_MEAN_RATE,
  )

  def rounds():
    body, head = toy_problems.BODY, toy_problems.HEAD
    biases, consensus = [np.zeros(2)] * 2, None
    for _ in range(3):
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
      yield {
        'global_weights': {'body': body, 'head': head},
        'algorithm': {'consensus': consensus},
        'local': [{'personal_bias/bias': bias} for bias in biases],
        'new': [_new_client(body, head)],
      }

  toy_problems.check_rounds(process, _CLIENTS, rounds())
