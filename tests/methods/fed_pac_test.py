import numpy as np
import pytest
import tensorflow as tf

from tests.methods import toy_problems

_STRENGTH = 0.6
_CLIENTS = [toy_problems.labeled_examples(n, seed=n) for n in (9, 14)]
_RNG = np.random.default_rng(4)
_BODY = _RNG.normal(size=[5, 2]).astype(np.float32)
_HEAD = _RNG.normal(size=[2, 3]).astype(np.float32)


@pytest.fixture(name='process', scope='module')
def _process():
  return toy_problems.full_batches(
    'fed_pac',
    toy_problems.linear_classifier(_BODY, _HEAD),
    num_head_steps=2,
    num_body_steps=2,
    head_learning_rate=0.3,
    body_learning_rate=0.1,
    pull_strength=_STRENGTH,
    max_cohort_size=3,
  )


def _statistics(body, client):
  """h `[classes, features]` and V."""
  features, number = client.x @ body, len(client.y)
  h = np.eye(3)[client.y].T @ features / number
  return h, (np.sum(features**2) / number - np.sum(h**2)) / number


def _trained(body, head, client, centers):
  features = client.x @ body
  for _ in range(2):
    slopes = toy_problems.class_slopes(features @ head, client.y)
    head = head - 0.3 * features.T @ slopes
  for _ in range(2):
    features = client.x @ body
    slopes = toy_problems.class_slopes(features @ head, client.y) @ head.T
    if centers is not None:
      # Over two features and all examples.
      distances = features - centers[client.y]
      slopes = slopes + _STRENGTH * distances / len(client.y)
    body = body - 0.1 * client.x.T @ slopes
  return body, head


def _mixture(own, h, v):
  """The minimum for two clients, in closed form."""
  bias = np.array([[np.sum((own - a) * (own - b)) for a in h] for b in h])
  matrix = bias + np.diag(v)
  share = (matrix[1, 1] - matrix[0, 1]) / (
    matrix[0, 0] + matrix[1, 1] - 2 * matrix[0, 1]
  )
  share = np.clip(share, 0, 1)
  return share, 1 - share


def _expect_nothing_collected(state):
  for value in tf.nest.flatten(state.algorithm['cohort']):
    assert not np.any(value)


def test_what_was_collected_goes_though_nobody_finishes_the_round(process):
  # Such that heads stay finite, and bodies do not.
  large = [toy_problems.changed(c, x=c.x * np.float32(1e15)) for c in _CLIENTS]
  state, _, metrics = toy_problems.train(process, large)
  assert metrics['non_finite_clients'] == 2
  _expect_nothing_collected(state)


def test_rounds_by_hand(process):
  def rounds():
    body, heads, centers = _BODY, [_HEAD, _HEAD], None
    for _ in range(2):
      h, v = zip(*[_statistics(body, client) for client in _CLIENTS])
      bodies, trained = zip(
        *[
          _trained(body, head, client, centers)
          for head, client in zip(heads, _CLIENTS)
        ]
      )
      mixtures = [_mixture(own, h, v) for own in h]
      assert 0 < mixtures[0][1] < 0.5 and 0 < mixtures[1][0] < 0.5
      heads = [a * trained[0] + b * trained[1] for a, b in mixtures]
      body = toy_problems.weighted_mean(bodies, _CLIENTS)
      features = np.concatenate([c.x @ b for c, b in zip(_CLIENTS, bodies)])
      labels = np.concatenate([c.y for c in _CLIENTS])
      centers = np.stack([features[labels == c].mean(0) for c in range(3)])
      yield {
        'global_weights': {'body': body},
        'algorithm': {'means': centers},
        'local': [{'head': head} for head in heads],
      }

  state, _, _ = toy_problems.check_rounds(
    process, _CLIENTS, rounds(), rtol=1e-3, atol=1e-5
  )
  _expect_nothing_collected(state)


def test_cohort_that_is_too_large_is_refused(process):
  with pytest.raises(Exception, match='`max_cohort_size`.* found 3'):
    toy_problems.train(process, _CLIENTS * 2)
