import asyncio
import copy

import numpy as np
import pytest

from tests.methods import toy_problems
from tff_pfl import datasets, errors
from tff_pfl import tff_api as tff
from tff_pfl.core import client_sampling
from tff_pfl.methods import registry
from tff_pfl.runs import data_source


def _data(seed=0):
  return datasets.make_synthetic(5, 12, 0, shape=(5,), num_classes=3, seed=seed)


def _first_inputs(cohort):
  return [next(iter(dataset))['x'].numpy() for dataset in cohort]


def test_cohorts_are_those_of_an_experiment_with_the_seed():
  data = _data()
  iterator = data_source.ClientDataSource(data, seed=3).iterator()
  sampler = client_sampling.CohortSampler(5, 2, 3)
  for round_number in (1, 2, 3):
    expected = [
      data.train(data.client_ids[i]).x for i in sampler.sample(round_number)
    ]
    for actual, x in zip(_first_inputs(iterator.select(2)), expected):
      np.testing.assert_array_equal(actual, x)


def test_cohorts_are_of_clients_that_have_joined():
  data = _data()
  late = data.client_ids[2:]
  source = data_source.ClientDataSource(
    data.joining({name: 2 for name in late}), seed=3
  )
  iterator = source.iterator()
  for actual, name in zip(_first_inputs(iterator.select(4)), data.client_ids):
    np.testing.assert_array_equal(actual, data.train(name).x)
  assert len(iterator.select(4)) == 4
  assert source.key != data_source.ClientDataSource(data, seed=3).key


def test_type_is_that_of_the_data_for_any_batches():
  source = data_source.ClientDataSource(_data())
  assert str(source.federated_type) == '{<x=float32[?,5],y=int32[?]>*}@CLIENTS'
  assert source.iterator().federated_type == source.federated_type


@pytest.mark.parametrize('restore', ['copied', 'stored'])
def test_copied_or_stored_iterator_goes_on_where_it_was(restore):
  source = data_source.ClientDataSource(_data(), seed=1)
  iterator = source.iterator()
  iterator.select(2)
  again = (
    copy.deepcopy(iterator)
    if restore == 'copied'
    else data_source.ClientDataIterator.from_bytes(iterator.to_bytes())
  )
  assert again == iterator
  expected = _first_inputs(iterator.select(2))
  assert again != iterator
  np.testing.assert_array_equal(_first_inputs(again.select(2)), expected)


def test_iterator_of_other_clients_is_not_restored():
  source = data_source.ClientDataSource(_data(), seed=1)
  stored = source.iterator().to_bytes()
  other = data_source.ClientDataSource(_data(seed=9), seed=1)
  del source
  with pytest.raises(errors.RunError, match='same data and seed'):
    data_source.ClientDataIterator.from_bytes(stored)
  del other


@pytest.mark.parametrize('k', [None, 0, 6])
def test_cohort_of_no_or_too_many_clients_is_refused(k):
  iterator = data_source.ClientDataSource(_data()).iterator()
  with pytest.raises(ValueError, match='`cohort_size`'):
    iterator.select(k)


@pytest.mark.slow
def test_interrupted_program_resumes_with_the_same_cohorts(runtime, tmp_path):
  process = registry.build(
    'fed_rep', toy_problems.classifier(), stateless=True
  ).to_learning_process()
  data = _data()

  def run(name, num_rounds):
    source = data_source.ClientDataSource(data, seed=4)
    models = tff.program.MemoryReleaseManager()
    program = tff.learning.programs.train_model(
      train_process=process,
      train_data_source=source,
      train_per_round_clients=2,
      train_total_rounds=num_rounds,
      program_state_manager=tff.program.FileProgramStateManager(
        tmp_path / name
      ),
      model_output_manager=models,
      evaluation_manager=None,
      evaluation_periodicity=1,
    )
    with tff.framework.get_context_stack().install(runtime.program_context()):
      asyncio.run(program)
    return list(models.values().values())[-1]

  run('interrupted', 2)
  toy_problems.assert_same(
    tuple(run('interrupted', 4)), tuple(run('at once', 4))
  )
