import functools

import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl import datasets
from tff_pfl.core import personalization, phases
from tff_pfl.models import domain_models

_INITIAL, _CLIENTS = toy_problems.KERNEL, toy_problems.CLIENTS


@functools.cache
def _process(**options):
  return toy_problems.linear('fed_avg', options, num_steps=1, learning_rate=0.1)


def _local(weight, client):
  return toy_problems.descended_alone(weight, client, 1, 0.1)


def _mean_local(weight):
  return toy_problems.weighted_mean(
    [_local(weight, client) for client in _CLIENTS], _CLIENTS
  )


def test_one_weight_by_hand():
  # Client 1: x = 1, y = 0: gradient 2 w = 4. Clients 2 to 4 are one client with
  # x = 1, y = 1: gradient 2 (w - 1) = 2. Pooled gradient (4 + 3 * 2) / 4 = 2.5.
  clients = [
    datasets.Examples(x=np.float32([[1, 0]] * n), y=np.full(n, y, np.float32))
    for n, y in ((1, 0), (3, 1))
  ]
  process = _process()
  state, _, metrics = process.next(
    process.initialize()._replace(
      global_weights={'head/kernel': np.float32([[2], [0]])}
    ),
    process.initialize_client_states([0, 1]),
    toy_problems.padded(clients),
  )
  weight, unused = state.global_weights['head/kernel']
  assert weight == pytest.approx(2 - 0.1 * 2.5)
  assert unused == 0
  # The metrics are those of the training steps: losses 4 and 1, 1, 1.
  assert metrics['loss'] == pytest.approx((4 + 3) / 4)
  assert metrics['update_norm'] == pytest.approx(0.25)
  assert metrics['examples'] == 4
  assert metrics['clients'] == 2


def test_trained_model_by_hand():
  process = _process(
    personalization=personalization.Personalization(fine_tune='trained')
  )
  examples = toy_problems.padded(_CLIENTS)
  state = process.initialize()
  for index, client in enumerate(_CLIENTS):
    personal = process.personalize(
      state, process.initialize_client_state(index), examples[index]
    )
    np.testing.assert_allclose(
      personal.weights['head/kernel'], _local(_INITIAL, client), rtol=1e-5
    )


def _pooled(weight):
  """FedSGD: a gradient step on the pooled data."""
  pooled = datasets.Examples(
    *(np.concatenate([getattr(c, n) for c in _CLIENTS]) for n in ('x', 'y'))
  )
  return _local(weight, pooled)


def _uniform(weight):
  expected = np.mean([_local(weight, client) for client in _CLIENTS], axis=0)
  assert not np.allclose(expected, _mean_local(weight), rtol=1e-3)
  return expected


@pytest.mark.parametrize(
  ('next_weight', 'options'),
  [(_pooled, {}), (_uniform, {'client_weighting': 'uniform'})],
)
def test_rounds_by_hand(next_weight, options):
  first = next_weight(_INITIAL)
  toy_problems.check_rounds(
    _process(**options),
    _CLIENTS,
    [{'global_weights': {'head': w}} for w in (first, next_weight(first))],
  )


def test_server_momentum_accumulates_over_rounds():
  optimizer = phases.build_optimizer('sgd', 0.5, momentum=0.9)

  def rounds():
    weight, velocity = _INITIAL, 0
    for _ in range(3):
      velocity = 0.9 * velocity + weight - _mean_local(weight)
      weight = weight - 0.5 * velocity
      yield {'global_weights': {'head': weight}}

  process = _process(server_optimizer=optimizer)
  toy_problems.check_rounds(process, _CLIENTS, rounds())


def test_moving_statistics_are_averaged_whatever_the_server_optimizer():
  keras.utils.set_random_seed(0)
  model = toy_problems.classifier_from(toy_problems.dropout_and_normalization())
  clients = [toy_problems.labeled_examples(n, seed=n) for n in (13, 24)]
  process = toy_problems.full_batches(
    'fed_avg',
    model,
    {'server_optimizer': phases.build_optimizer('sgd', 0.5)},
    num_steps=1,
  )
  outputs = [c.x @ model.initial_weights['dense/kernel'] for c in clients]
  mean, variance = (
    toy_problems.weighted_mean([moment(y, axis=0) for y in outputs], clients)
    for moment in (np.mean, np.var)
  )
  expected = {
    'norm/moving_mean': 0.01 * mean,
    'norm/moving_variance': 0.99 + 0.01 * variance,
  }
  toy_problems.check_rounds(process, clients, [{'global_weights': expected}])


# Domains, of different sizes.


_IN_DOMAINS = [
  toy_problems.in_domains(client, pattern)
  for client, pattern in zip(_CLIENTS, ([0, 0, 0, 1], [1, 0, 1]))
]


def _process_for_domains(kind='shared', *, reweighted=False):
  model = domain_models.with_domains(
    toy_problems.linear_network(None, _INITIAL),
    toy_problems.domains_of(_IN_DOMAINS, ('a', 'b')),
  )
  model = domain_models.domain_model(model, kind, reweighted=reweighted)
  return toy_problems.full_batches(
    'fed_avg', model, num_steps=2, learning_rate=0.1
  )


def test_reweighted_domains_count_the_same():
  # Of the 16 examples 7 and 9.
  factors = np.array([16 / 14, 16 / 18])

  def local(weight, client):
    for _ in range(2):
      errors = (client.x @ weight)[:, 0] - client.y
      errors *= factors[client.domain]
      slope = 2 * client.x.T @ errors[:, np.newaxis] / len(client.y)
      weight = weight - 0.1 * slope
    return weight

  def rounds():
    weight = _INITIAL
    for _ in range(2):
      models = [local(weight, client) for client in _IN_DOMAINS]
      weight = toy_problems.weighted_mean(models, _CLIENTS)
      yield {'global_weights': {'head': weight}}

  process = _process_for_domains(reweighted=True)
  toy_problems.check_rounds(process, _IN_DOMAINS, rounds())


def test_domain_as_input_is_fed_avg_on_inputs_with_the_one_hot():
  widened = [
    toy_problems.changed(
      client,
      x=np.concatenate([client.x, np.eye(2, dtype='f')[client.domain]], axis=1),
      domain=None,
    )
    for client in _IN_DOMAINS
  ]
  kernel = np.concatenate([_INITIAL, np.zeros([2, 1])])

  def rounds(kernel):
    for _ in range(2):
      models = [
        toy_problems.descended_alone(kernel, client, 2, 0.1)
        for client in widened
      ]
      kernel = toy_problems.weighted_mean(models, widened)
      yield {'global_weights': {'head': kernel[:2], 'domain_input': kernel[2:]}}

  process = _process_for_domains(kind='input')
  toy_problems.check_rounds(process, _IN_DOMAINS, rounds(kernel))
