import keras
import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl import datasets
from tff_pfl.core import personalization, phases
from tff_pfl.models import domain_models

_INITIAL, _CLIENTS = toy_problems.KERNEL, toy_problems.CLIENTS


def _process(**options):
  return toy_problems.linear('fed_avg', options, num_steps=1, learning_rate=0.1)


def _mean_local(weight):
  return toy_problems.weighted_mean(
    [toy_problems.descended_alone(weight, c, 1, 0.1) for c in _CLIENTS],
    _CLIENTS,
  )


def test_rounds_by_hand():
  # FedSGD: gradient steps on the pooled data.
  pooled = datasets.Examples(
    *(np.concatenate([getattr(c, n) for c in _CLIENTS]) for n in ('x', 'y'))
  )

  def rounds():
    weight = _INITIAL
    for _ in range(2):
      errors = (pooled.x @ weight)[:, 0] - pooled.y
      slope = toy_problems.squared_error_gradient(weight, pooled)
      weight = weight - 0.1 * slope
      yield {
        'global_weights': {'head': weight},
        # Those of the training steps.
        'metrics': {
          'loss': np.mean(errors**2),
          'update_norm': 0.1 * np.linalg.norm(slope),
          'examples': 16,
          'clients': 2,
        },
      }

  toy_problems.check_rounds(_process(), _CLIENTS, rounds())


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


def _reweighted_domains(name, options=None, **hparams):
  model = domain_models.with_domains(
    toy_problems.linear_network(None, _INITIAL),
    toy_problems.domains_of(_IN_DOMAINS, ('a', 'b')),
  )
  model = domain_models.domain_model(model, 'shared', reweighted=True)
  return toy_problems.full_batches(name, model, options, **hparams)


def _two_reweighted_steps(weight, client):
  # Of the 16 examples 7 and 9.
  factors = np.array([16 / 14, 16 / 18])
  for _ in range(2):
    errors = (client.x @ weight)[:, 0] - client.y
    errors *= factors[client.domain]
    slope = 2 * client.x.T @ errors[:, np.newaxis] / len(client.y)
    weight = weight - 0.1 * slope
  return weight


_TWO_STEPS = {'num_steps': 2, 'learning_rate': 0.1}


def test_reweighted_domains_count_the_same():
  def rounds():
    weight = _INITIAL
    for _ in range(2):
      models = [_two_reweighted_steps(weight, one) for one in _IN_DOMAINS]
      weight = toy_problems.weighted_mean(models, _CLIENTS)
      yield {'global_weights': {'head': weight}}

  process = _reweighted_domains('fed_avg', **_TWO_STEPS)
  toy_problems.check_rounds(process, _IN_DOMAINS, rounds())


_FINE_TUNING = personalization.Personalization(
  fine_tune='all', momentum=0.0, batch_size=None, **_TWO_STEPS
)


@pytest.mark.parametrize(
  ('name', 'options', 'hparams'),
  [
    ('fed_avg', {'personalization': _FINE_TUNING}, {}),
    ('local_only', {}, _TWO_STEPS),
    (
      'per_fed_avg',
      {},
      {'num_adaptation_steps': 2, 'inner_learning_rate': 0.1},
    ),
  ],
)
def test_domains_also_count_the_same_for_a_new_client(name, options, hparams):
  client = _IN_DOMAINS[0]
  process = _reweighted_domains(name, options, **hparams)
  weights = toy_problems.new_client(
    process, process.initialize(), client
  ).weights
  expected = _two_reweighted_steps(_INITIAL, client)
  toy_problems.assert_part(weights, {'head': expected})
