"""Methods without client state, as processes and programs of TFF's own."""

import asyncio
import dataclasses
import functools

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl import datasets
from tff_pfl import tff_api as tff
from tff_pfl.methods import registry
from tff_pfl.models import class_weights
from tff_pfl.runs import data_source

# FedBN of a network without batch normalization, FedDAR of one exchange.
_WITHOUT_CLIENT_STATE = """
  fed_avg fed_babu fed_bn fed_dar fed_min_max fed_prox ifca knn_per p_fed_me
  per_fed_avg separate_fed_avg
""".split()
_CAN_FORGET = ['fed_alt', 'fed_em', 'fed_rep', 'fed_rod']
_DEPLOYABLE = _WITHOUT_CLIENT_STATE + _CAN_FORGET


_deployable = toy_problems.named(_DEPLOYABLE, fast=('fed_rep',))

_NUM_ROUNDS = 2
_SIZES = (7, 23, 12)
_CLIENTS = [
  toy_problems.labeled_examples(size, i) for i, size in enumerate(_SIZES)
]


@functools.cache
def _datasets(name):
  return toy_problems.as_datasets(toy_problems.examples_for(name, _CLIENTS))


@functools.cache
def _processes(name):
  """A method with full batches, as both kinds of process."""
  options = {'alternating': False} if name == 'fed_dar' else {}
  process = registry.build(
    name,
    toy_problems.model_for(name, toy_problems.classifier()),
    toy_problems.hparams_for(name, batch_size=None, **options),
    seed=3,
    stateless=name in _CAN_FORGET,
  )
  return process, process.to_learning_process()


@functools.cache
def _after_rounds(name):
  """The learning process' state and metrics after its rounds."""
  _, learning_process = _processes(name)
  state = learning_process.initialize()
  for _ in range(_NUM_ROUNDS):
    state, metrics = learning_process.next(state, _datasets(name))
  return state, metrics


def _assert_close(actual, expected):
  """Compares numbers only: TFF's forms return containers of other kinds."""
  toy_problems.assert_close(*map(toy_problems.leaves, (actual, expected)))


@_deployable
def test_rounds_are_those_of_the_personalized_process(name):
  # Full batches, so that it does not matter what seeds the clients' shuffling.
  process, _ = _processes(name)
  clients = toy_problems.examples_for(name, _CLIENTS)
  state, _, metrics = toy_problems.train(process, clients, _NUM_ROUNDS)
  expected_state, grouped = _after_rounds(name)
  _assert_close(state, expected_state)
  assert list(grouped) == ['client_work', 'aggregator', 'finalizer']
  toy_problems.assert_close(
    dict(metrics), {**grouped['client_work']['train'], **grouped['finalizer']}
  )


@_deployable
def test_production_forms_compute_the_same_round(name):
  _, learning_process = _processes(name)
  state, _ = _after_rounds(name)
  data = _datasets(name)
  expected = learning_process.next(state, data)
  forms = tff.backends.mapreduce
  map_reduce = forms.get_computation_for_map_reduce_form(
    forms.get_map_reduce_form_for_computation(learning_process.next)
  )
  _assert_close(map_reduce(state, data), expected)
  distribute_aggregate = forms.get_computation_for_distribute_aggregate_form(
    forms.get_distribute_aggregate_form_for_computation(learning_process.next)
  )
  _assert_close(distribute_aggregate(state, data), expected)


def test_the_servers_learning_rate_may_be_set():
  _, learning_process = _processes('fed_rep')
  state, _ = _after_rounds('fed_rep')
  hparams = learning_process.get_hparams(state)
  assert hparams['client_work'] == {'learning_rate_factor': 1}
  assert hparams['finalizer'] == {'learning_rate': 1}
  hparams['finalizer']['learning_rate'] = 0.5
  halved = learning_process.set_hparams(state, hparams)
  data = _datasets('fed_rep')
  before, full, half = (
    learning_process.get_model_weights(each)
    for each in (
      state,
      learning_process.next(state, data).state,
      learning_process.next(halved, data).state,
    )
  )
  for old, new, between in zip(
    before.trainable, full.trainable, half.trainable
  ):
    np.testing.assert_allclose(between, (old + new) / 2, rtol=1e-5, atol=1e-7)


def test_the_clients_learning_rates_may_be_set():
  process, learning_process = _processes('fed_rep')
  state = learning_process.initialize()
  hparams = learning_process.get_hparams(state)
  hparams['client_work']['learning_rate_factor'] = 0.5
  state = learning_process.set_hparams(state, hparams)
  hparams = toy_problems.hparams_for('fed_rep', batch_size=None)
  built = registry.build(
    'fed_rep',
    process.model,
    dataclasses.replace(
      hparams,
      head_learning_rate=hparams.head_learning_rate / 2,
      body_learning_rate=hparams.body_learning_rate / 2,
    ),
    seed=3,
    stateless=True,
  ).to_learning_process()
  expected = built.initialize()
  for _ in range(_NUM_ROUNDS):
    state, _ = learning_process.next(state, _datasets('fed_rep'))
    expected, _ = built.next(expected, _datasets('fed_rep'))
  _assert_close(
    learning_process.get_model_weights(state), built.get_model_weights(expected)
  )
  assert state.rate_factor == 0.5


@_deployable
def test_train_model_trains_it(runtime, name, tmp_path):
  _, learning_process = _processes(name)
  states = tff.program.FileProgramStateManager(tmp_path)
  models = tff.program.MemoryReleaseManager()
  metrics = tff.program.MemoryReleaseManager()
  of_clients = [c.as_dict() for c in toy_problems.examples_for(name, _CLIENTS)]
  arrays = {
    key: np.concatenate([client[key] for client in of_clients])
    for key in of_clients[0]
  }
  if 'domain' in arrays:
    arrays['domain_names'] = toy_problems.DOMAINS.names
  clients = datasets.FederatedDataset.from_arrays(
    **arrays, keys=np.repeat(range(len(_SIZES)), _SIZES), test_fraction=0
  )
  with tff.framework.get_context_stack().install(runtime.program_context()):
    asyncio.run(
      tff.learning.programs.train_model(
        train_process=learning_process,
        train_data_source=data_source.ClientDataSource(clients),
        train_per_round_clients=len(_SIZES),
        train_total_rounds=_NUM_ROUNDS,
        program_state_manager=states,
        model_output_manager=models,
        train_metrics_manager=metrics,
        evaluation_manager=None,
        evaluation_periodicity=_NUM_ROUNDS,
      )
    )
  assert asyncio.run(states.get_versions()) == list(range(_NUM_ROUNDS + 1))
  state, last_metrics = _after_rounds(name)
  toy_problems.assert_close(
    dict(metrics.values()[_NUM_ROUNDS]['model_metrics']),
    dict(last_metrics['client_work']['train']),
  )
  (released,) = models.values().values()
  _assert_close(released, state)


def test_weights_of_examples_are_a_field_of_the_data():
  model = class_weights.with_sample_weight(toy_problems.classifier())
  process = toy_problems.full_batches('fed_avg', model)
  arrays = toy_problems.labeled_examples(30, 0)
  data = datasets.FederatedDataset.from_arrays(
    arrays.x, arrays.y, num_clients=2, weight=np.arange(30) / 10
  )
  cohort = data_source.ClientDataSource(data).iterator().select(2)
  learning_process = process.to_learning_process()
  actual, _ = learning_process.next(learning_process.initialize(), cohort)
  expected, _, _ = toy_problems.train(
    process, list(map(data.train, data.client_ids))
  )
  _assert_close(actual.global_weights, expected.global_weights)


@_deployable
def test_model_weights_can_be_set_where_they_are_the_global_ones(name):
  _, learning_process = _processes(name)
  trained, _ = _after_rounds(name)
  weights = learning_process.get_model_weights(trained)
  initial = learning_process.initialize()
  if name == 'ifca':  # Of one model among several.
    with pytest.raises(Exception, match='not the global weights'):
      learning_process.set_model_weights(initial, weights)
    return
  state = learning_process.set_model_weights(initial, weights)
  toy_problems.assert_same(state.global_weights, trained.global_weights)
  assert state.round_number == 0


@toy_problems.named(
  sorted({*registry.ALGORITHMS} - {*_DEPLOYABLE}), fast=('local_only',)
)
def test_method_that_needs_its_clients_state_says_so(name):
  process = registry.build(name, toy_problems.classifier())
  with pytest.raises(ValueError, match=f'`stateless`.*{name}'):
    process.to_learning_process()
  with pytest.raises(ValueError, match=f'`stateless`.*{name}'):
    registry.build(name, toy_problems.classifier(), stateless=True)
