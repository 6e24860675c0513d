import dataclasses

import keras
import numpy as np
import pytest
import tf_keras

from binaries.benchmark import library_rounds, reference, workloads
from tff_pfl import runtime as runtime_lib

# Steps on all of a client's examples: the order of a shuffle has no effect, so
# that reference and library must agree.
_FULL_BATCH = {'batch_size': None}


def _small(name, **hparams):
  workload = workloads.get_workload(name).scaled_down()
  return dataclasses.replace(
    workload, hparams=dataclasses.replace(workload.hparams, **hparams)
  )


def _rounds_of_both(workload, runtime, num_rounds):
  model = workload.build_model()
  cohorts = [workload.sample_cohort(r).tolist() for r in range(num_rounds)]
  tensors = library_rounds.client_tensors(workload, cohorts)
  ours = library_rounds.LibraryRounds(
    runtime, workload.build_process(model), tensors
  )
  with runtime_lib.create_runtime('native') as native:
    plain = reference.build_reference(
      workload, native, tensors, list(model.initial_weights.values())
    )
    for cohort in cohorts:
      ours(cohort)
      plain(cohort)
  return ours, plain


def _assert_close(actual, expected):
  assert len(actual) == len(expected)
  for a, b in zip(actual, expected):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), 1e-4, 1e-5)


def _changed(weights, model):
  initial = list(model.initial_weights.values())[: len(weights)]
  return [not np.allclose(a, b) for a, b in zip(weights, initial)]


# The others have one of these models.
@pytest.mark.parametrize('name', ['w1', 'w3', 'w4', 'scale'])
def test_keras_model_has_the_shapes_of_the_library_model(name):
  for workload in (
    workloads.get_workload(name),
    workloads.get_workload(name).scaled_down(),
  ):
    shapes = [w.shape for w in workload.build_model().initial_weights.values()]
    for keras_of_any_version in (keras, tf_keras):
      model = reference.make_keras_model(workload, keras_of_any_version)
      assert [tuple(w.shape) for w in model.weights] == shapes


@pytest.mark.parametrize(
  'name',
  [
    'w4',
    *(pytest.param(n, marks=pytest.mark.slow) for n in ('w2', 'w4h', 'w4e')),
  ],
)
def test_reference_of_a_global_model_trains_as_the_library_does(name, runtime):
  workload = _small(name, **_FULL_BATCH, learning_rate=0.05)
  ours, plain = _rounds_of_both(workload, runtime, 3)
  weights = list(ours.state.global_weights.values())
  _assert_close(plain.weights, weights)
  assert all(_changed(weights, workload.build_model()))


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['w1', pytest.param('w3', marks=pytest.mark.slow)]
)
def test_fed_rep_reference_trains_as_the_library_does(name, runtime):
  workload = _small(name, **_FULL_BATCH)
  ours, plain = _rounds_of_both(workload, runtime, 3)
  _assert_close(plain.weights, list(ours.state.global_weights.values()))
  for index, client_state in ours.client_states.items():
    _assert_close(plain.local[index], list(client_state.local.values()))
  assert all(_changed(plain.weights, workload.build_model()))


@pytest.mark.slow
def test_reference_pipelines_have_the_batches_of_the_workload(runtime):
  def batch_sizes(name, **hparams):
    workload = _small(name, **hparams)
    tensors = library_rounds.client_tensors(workload, [[0]])
    plain = reference.build_reference(
      workload,
      runtime,
      tensors,
      list(workload.build_model().initial_weights.values()),
    )
    assert list(plain.datasets) == list(tensors)
    return [
      len(batches['y'])
      if isinstance(batches, dict)
      else tuple(len(batch['y']) for batch in batches)
      for batches in next(iter(plain.datasets.values()))
    ]

  # 20 examples a client.
  assert batch_sizes('w2', batch_size=8) == [8, 8, 4] * 5
  assert batch_sizes('w4', batch_size=8, num_steps=4) == [
    (8, 8),
    (8, 8),
    (4, 4),
    (8, 8),
  ]
  # The epochs are the computation's.
  assert batch_sizes('w1', batch_size=10) == [10, 10]
