import functools

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.datasets import examples

pytestmark = pytest.mark.usefixtures('runtime')

_RNG = np.random.default_rng(3)
_BODY = _RNG.normal(size=[4, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)
_RATE, _STRENGTH = 0.1, 0.7


def _client(labels, seed):
  x = np.random.default_rng(seed).normal(size=[len(labels), 4])
  return examples.Examples(x.astype(np.float32), np.array(labels, np.int32))


# The first has no example of class 2, nobody in round 1 has one of class 0.
_CLIENTS = [_client([1, 1, 1, 1], 0), _client([1, 2, 2], 1), _client([0, 2], 2)]


@functools.cache
def _process():
  network = keras.Sequential(
    [
      keras.layers.Input([4]),
      keras.layers.Dense(2, use_bias=False, name='body'),
      keras.layers.Dense(3, use_bias=False, name='head'),
    ]
  )
  network.set_weights([_BODY, _HEAD])
  return toy_problems.full_batches(
    'fed_proto',
    toy_problems.classifier_from(network),
    num_steps=2,
    learning_rate=_RATE,
    pull_strength=_STRENGTH,
  )


def _trained(body, head, client, prototypes):
  """Two steps, by hand."""
  for _ in range(2):
    features = client.x @ body
    scores = np.exp(features @ head)
    slopes = scores / scores.sum(1, keepdims=True) - np.eye(3)[client.y]
    slopes /= len(client.y)
    of_features = slopes @ head.T
    for j, label in enumerate(client.y):
      if label in prototypes:
        distance = features[j] - prototypes[label]
        # The mean over 2 features and the examples.
        of_features[j] += _STRENGTH * distance / len(client.y)
    head = head - _RATE * features.T @ slopes
    body = body - _RATE * client.x.T @ of_features
  return body, head


def _class_means(bodies, clients):
  features = np.concatenate([c.x @ b for c, b in zip(clients, bodies)])
  labels = np.concatenate([c.y for c in clients])
  return {c: features[labels == c].mean(0) for c in np.unique(labels)}


def test_rounds_by_hand():
  cohorts = [(0, 1), (0, 2), (1, 2)]
  models, prototypes = [(_BODY, _HEAD)] * 3, {}
  for cohort, (state, states, _) in zip(
    cohorts, toy_problems.rounds(_process(), _CLIENTS, cohorts)
  ):
    for i in cohort:
      models[i] = _trained(*models[i], _CLIENTS[i], prototypes)
      toy_problems.assert_kernels(
        states[i].local, 1e-4, 1e-6, body=models[i][0], head=models[i][1]
      )
    prototypes.update(
      _class_means(
        [models[i][0] for i in cohort], [_CLIENTS[i] for i in cohort]
      )
    )
    known = state.algorithm['is_known']
    assert np.flatnonzero(known).tolist() == sorted(prototypes)
    for label, expected in prototypes.items():
      np.testing.assert_allclose(
        state.algorithm['means'][label], expected, rtol=1e-4, atol=1e-6
      )
    assert not state.global_weights


def test_new_client_is_drawn_to_the_prototypes():
  state, _, _ = toy_problems.train(_process(), _CLIENTS[:2])
  known = {c: state.algorithm['means'][c] for c in (1, 2)}
  personal = toy_problems.new_client(_process(), state, _CLIENTS[2])
  body, head = _trained(_BODY, _HEAD, _CLIENTS[2], known)
  toy_problems.assert_kernels(
    personal.weights, 1e-4, 1e-6, body=body, head=head
  )
