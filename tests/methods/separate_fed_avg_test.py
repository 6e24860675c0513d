import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.methods import toy_problems
from tff_pfl.datasets import examples
from tff_pfl.methods import fed_avg, registry, separate_fed_avg
from tff_pfl.models import domain_models

pytestmark = pytest.mark.usefixtures('runtime')

_FULL_BATCHES = dict(
  num_epochs=3, learning_rate=0.1, momentum=0.9, batch_size=None
)


@functools.cache
def _clients():
  """Domains in turn, of which the third is on one client only."""
  clients = [
    toy_problems.in_turn(toy_problems.labeled_examples(n, n)) for n in (7, 24)
  ]
  clients[0] = clients[0].select(clients[0].domain < 2)
  return clients


def _build(aggregator=None):
  model = domain_models.with_domains(
    toy_problems.classifier(), toy_problems.domains_of(_clients())
  )
  return registry.build(
    'separate_fed_avg',
    model,
    separate_fed_avg.SeparateFedAvgHParams(**_FULL_BATCHES),
    seed=4,
    aggregator=aggregator,
  )


def _model_of(weights, m):
  return {
    name.partition('/')[2]: value
    for name, value in weights.items()
    if name.startswith(f'domain_{m}/')
  }


def test_models_are_fed_avg_on_each_domains_data_alone():
  process = _build()
  state, states, metrics = toy_problems.train(process, _clients(), 2)
  assert not states[0].local
  assert metrics['examples'] == sum(len(c.y) for c in _clients())
  avg = registry.build(
    'fed_avg', toy_problems.classifier(), fed_avg.FedAvgHParams(**_FULL_BATCHES)
  )
  for m in range(3):
    alone = [
      toy_problems.changed(c.select(c.domain == m), domain=None)
      for c in _clients()
    ]
    expected, _, _ = toy_problems.train(avg, alone, 2)
    toy_problems.assert_close(
      _model_of(state.global_weights, m), dict(expected.global_weights)
    )


@pytest.mark.parametrize('weighting', ['num_examples', 'unweighted'])
def test_domains_mean_is_by_its_examples_whatever_clients_weigh(weighting):
  def client(targets, domain):
    targets = np.array(targets, np.float32)
    ones = np.ones([len(targets), 1], np.float32)
    return examples.Examples(ones, targets, np.array(domain, np.int32))

  # A step takes a client's model to the mean target of its domain. Of domain a
  # both have 10 examples, but of the second client these are the smaller part.
  clients = [
    client([1.0] * 10, [0] * 10),
    client([0.0] * 10 + [3.0] * 90, [0] * 10 + [1] * 90),
  ]
  process = registry.build(
    'separate_fed_avg',
    domain_models.with_domains(
      toy_problems.linear_network(None, np.array([[7.0]], np.float32)),
      toy_problems.domains_of(clients),
    ),
    separate_fed_avg.SeparateFedAvgHParams(
      num_steps=1, learning_rate=0.5, momentum=0.0, batch_size=None
    ),
    **toy_problems.WEIGHTINGS[weighting],
  )
  state, _, _ = toy_problems.train(process, clients)
  models = [_model_of(state.global_weights, m) for m in range(3)]
  np.testing.assert_allclose(
    [model['head/kernel'][0, 0] for model in models], [0.5, 3, 7], rtol=1e-5
  )


@pytest.mark.parametrize(
  'aggregator',
  [
    pytest.param(lambda: None, id='mean', marks=pytest.mark.slow),
    pytest.param(
      tff.learning.secure_aggregator, id='secure', marks=pytest.mark.slow
    ),
    lambda: tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
      # Of standard deviation 0.005, where half of a client's share is 0.25.
      noise_multiplier=0.002,
      clients_per_round=2,
      clip=5.0,
    ),
  ],
)
def test_domain_absent_from_a_round_keeps_its_model(aggregator):
  process = _build(aggregator())
  without = [c.select(c.domain != 1) for c in _clients()]
  initial = process.initialize().global_weights
  state, _, _ = toy_problems.train(process, without, 2)
  for m in range(3):
    moved = toy_problems.differ(
      _model_of(state.global_weights, m), _model_of(initial, m)
    )
    assert moved == (m != 1)
