import numpy as np

from tests.methods import toy_problems
from tff_pfl.datasets import examples
from tff_pfl.models import domain_models

# Domains in turn, of which the third is on one client only.
_CLIENTS = [toy_problems.in_turn(c) for c in toy_problems.CLIENTS]
_CLIENTS[0] = _CLIENTS[0].select(_CLIENTS[0].domain < 2)


def _build(kernel, clients, options=None, **hparams):
  model = domain_models.with_domains(
    toy_problems.linear_network(None, kernel), toy_problems.domains_of(clients)
  )
  return toy_problems.full_batches(
    'separate_fed_avg', model, options, **hparams
  )


def test_models_are_fed_avg_on_each_domains_data_alone():
  process = _build(
    *(toy_problems.KERNEL, _CLIENTS),
    num_epochs=3,
    learning_rate=0.1,
    momentum=0.9,
  )

  def rounds():
    kernels = [toy_problems.KERNEL] * 3
    for _ in range(2):
      for m in range(3):
        alone = [c.select(c.domain == m) for c in _CLIENTS]
        alone = [c for c in alone if len(c.y)]
        models = [
          toy_problems.descended_alone(kernels[m], client, 3, 0.1, 0.9)
          for client in alone
        ]
        kernels[m] = toy_problems.weighted_mean(models, alone)
      yield {
        'global_weights': {
          f'domain_{m}/head': kernel for m, kernel in enumerate(kernels)
        }
      }

  _, states, metrics = toy_problems.check_rounds(process, _CLIENTS, rounds())
  assert not states[0].local
  assert metrics['examples'] == sum(len(c.y) for c in _CLIENTS)


def _client(targets, domain):
  targets = np.array(targets, np.float32)
  ones = np.ones([len(targets), 1], np.float32)
  return examples.Examples(ones, targets, np.array(domain, np.int32))


def test_domains_mean_is_by_its_examples_whatever_clients_weigh():
  # Of domain a both have 10 examples; nobody has the third.
  clients = [
    _client([1.0] * 10, [0] * 10),
    _client([0.0] * 10 + [3.0] * 90, [0] * 10 + [1] * 90),
  ]
  # A step takes a client's model to the mean target of its domain.
  process = _build(
    *(np.array([[7.0]], np.float32), clients),
    toy_problems.WEIGHTINGS['unweighted'],
    num_steps=1,
    learning_rate=0.5,
  )
  expected = {f'domain_{m}/head': [[w]] for m, w in enumerate((0.5, 3, 7))}
  toy_problems.check_rounds(process, clients, [{'global_weights': expected}])
