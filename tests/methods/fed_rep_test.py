import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl.core import personalization

_BODY, _HEAD = toy_problems.BODY, toy_problems.HEAD
_CLIENTS = [
  toy_problems.regression_examples(n, 4, 3, seed=n) for n in (5, 10, 40)
]
_NEW_CLIENT_EPOCHS = 9


@pytest.fixture(name='process', scope='module')
def _process():
  return toy_problems.deep_linear(
    'fed_rep',
    {
      'personalization': personalization.Personalization(
        new_client_epochs=_NEW_CLIENT_EPOCHS
      )
    },
    num_head_steps=4,
    num_body_steps=3,
    head_learning_rate=0.1,
    body_learning_rate=0.05,
    momentum=0.5,
  )


def _train_head(client, body, head, num_steps=4):
  return toy_problems.descended_together(
    body, head, client, num_steps, 0.1, 0.5, trained=(False, True)
  )[1]


def _train_body(client, body, head, num_steps=3):
  return toy_problems.descended_together(
    body, head, client, num_steps, 0.05, 0.5, trained=(True, False)
  )[0]


def test_rounds_are_those_of_algorithm_1_and_go_on_from_the_heads(process):
  cohorts = [(0, 1), (1, 2), (0, 2)]

  def rounds():
    body, heads = _BODY, [_HEAD] * 3
    for cohort in cohorts:
      clients, bodies = [_CLIENTS[i] for i in cohort], []
      for i, client in zip(cohort, clients):
        heads[i] = _train_head(client, body, heads[i])
        bodies.append(_train_body(client, body, heads[i]))
      body = toy_problems.weighted_mean(bodies, clients)
      new = _train_head(_CLIENTS[0], body, _HEAD, _NEW_CLIENT_EPOCHS)
      yield {
        'global_weights': {'body': body},
        'local': [{'head': head} for head in heads],
        # A head on the frozen body.
        'new': [{'body': body, 'head': new}],
      }

  toy_problems.check_rounds(process, _CLIENTS, rounds(), cohorts)


def test_metrics_are_those_of_the_body_steps(process):
  _, _, metrics = toy_problems.train(process, _CLIENTS[:1])
  client = _CLIENTS[0]
  head = _train_head(client, _BODY, _HEAD)
  bodies = [_train_body(client, _BODY, head, n) for n in range(4)]
  losses = [np.mean((client.x @ b @ head - client.y) ** 2) for b in bodies[:3]]
  assert metrics['loss'] == pytest.approx(np.mean(losses), rel=1e-4)
  assert metrics['update_norm'] == pytest.approx(
    np.linalg.norm(_BODY - bodies[3]), rel=1e-4
  )
