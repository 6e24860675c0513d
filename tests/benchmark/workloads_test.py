import collections
import dataclasses

import numpy as np
import pytest

from binaries.benchmark import workloads
from tests.methods import toy_problems
from tff_pfl import runtime as runtime_lib


def _sizes(name):
  model = workloads.WORKLOADS[name].build_model()
  kernels = [w for n, w in model.initial_weights.items() if 'kernel' in n]
  return [kernel.shape for kernel in kernels]


def _num_weights(model):
  return sum(value.size for value in model.initial_weights.values())


def test_models_have_the_published_sizes():
  mlp = [(784, 512), (512, 256), (256, 64), (64, 10)]
  assert _sizes('w1') == mlp
  assert _sizes('w2') == _sizes('w2f') == mlp
  assert _sizes('w3') == [
    (5, 5, 3, 64),
    (5, 5, 64, 64),
    (1600, 120),
    (120, 64),
    (64, 10),
  ]
  assert _sizes('w4') == [(784, 80), (80, 60), (60, 10)]


@pytest.mark.parametrize('name', ['w1', 'w3', 'w4'])
def test_scaled_down_workload_does_the_same_on_less(name):
  workload = workloads.WORKLOADS[name]
  small = workload.scaled_down()
  assert small.name == name
  assert 'scaled down' in small.description
  assert (small.algorithm, small.hparams) == (
    workload.algorithm,
    workload.hparams,
  )
  model, small_model = workload.build_model(), small.build_model()
  assert list(model.initial_weights) == list(small_model.initial_weights)
  assert _num_weights(small_model) < _num_weights(model) / 10


def test_tensors_are_those_of_all_clients_that_take_part_and_no_others():
  workload = workloads.WORKLOADS['w1'].scaled_down()
  tensors = workloads.client_tensors(workload, [[4, 1], [1, 2]])
  assert list(tensors) == [1, 2, 4]
  data = workload.make_data()
  expected = data.train(data.client_ids[4])
  assert list(tensors[4]) == ['x', 'y']
  np.testing.assert_array_equal(tensors[4]['x'], expected.x)
  np.testing.assert_array_equal(tensors[4]['y'], expected.y)


def test_states_are_carried_over_and_datasets_passed_again(
  runtime, monkeypatch
):
  workload = workloads.WORKLOADS['w4'].scaled_down()
  process = workload.build_process(workload.build_model())
  cohorts = [[0, 3], [3, 5], [3, 0]]
  rounds = workloads.LibraryRounds(
    runtime, process, workloads.client_tensors(workload, cohorts)
  )
  passed = []
  run = type(runtime).run

  def spying_run(self, computation, *args):
    if computation is process.next:
      passed.append(args[2])
    return run(self, computation, *args)

  monkeypatch.setattr(type(runtime), 'run', spying_run)
  for cohort in cohorts:
    rounds(cohort)
  assert rounds.state.round_number == 3
  counts = collections.Counter(sum(cohorts, []))
  for index, state in rounds.client_states.items():
    assert state.client_index == index
    assert state.num_rounds == counts[index]
  # Client 3's, in all three rounds.
  assert passed[0][1] is passed[1][0] is passed[2][0]


@pytest.mark.parametrize(
  'name',
  [
    'w4',
    *(
      pytest.param(name, marks=pytest.mark.slow)
      for name in ('w1', 'w2', 'w3', 'w4h', 'w4e')
    ),
  ],
)
def test_plain_loops_train_as_the_library_does(name, runtime):
  # Steps on all of a client's examples, whose order has no effect.
  small = workloads.WORKLOADS[name].scaled_down()
  workload = dataclasses.replace(
    small, hparams=dataclasses.replace(small.hparams, batch_size=None)
  )
  model = workload.build_model()
  initial = list(model.initial_weights.values())
  cohorts = [workload.sample_cohort(r).tolist() for r in range(3)]
  tensors = workloads.client_tensors(workload, cohorts)
  ours = workloads.LibraryRounds(
    runtime, workload.build_process(model), tensors
  )
  with runtime_lib.create_runtime('native') as native:
    plain = workloads.PLAIN_LOOPS[workload.algorithm](
      workload, native, tensors, initial
    )
    for cohort in cohorts:
      ours(cohort)
      plain(cohort)
  weights = list(ours.state.global_weights.values())
  toy_problems.assert_close(list(plain.weights), weights, 1e-4, 1e-5)
  assert not any(map(np.allclose, weights, initial))
  for index, state in ours.client_states.items():
    if state.local:
      local = list(state.local.values())
      toy_problems.assert_close(plain.local[index], local, 1e-4, 1e-5)


@pytest.mark.slow
def test_plain_loops_have_the_batches_of_the_workload():
  hparams = workloads.WORKLOADS['w4'].hparams
  workload = dataclasses.replace(hparams, batch_size=8, num_steps=4)
  examples = {'x': np.zeros([20, 1], np.float32), 'y': np.zeros(20, np.int32)}
  steps = workloads._PerFedAvg.pipeline(None, examples, workload)
  sizes = [tuple(len(batch['y']) for batch in batches) for batches in steps]
  assert sizes == [(8, 8), (8, 8), (4, 4), (8, 8)]
