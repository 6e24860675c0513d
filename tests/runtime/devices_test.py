"""Tests of the choice of devices, and of batches of clients on them.

Devices are made when TensorFlow starts, so rounds are computed in forks with
several logical CPU devices.
"""

import pytest
import tensorflow as tf

from tests.system import forked
from tff_pfl.methods import registry
from tff_pfl.runtime import devices


def test_auto_and_cpu_are_the_cpu_where_there_is_no_gpu():
  assert devices.resolve('cpu') == ['/device:CPU:0']
  if not devices.is_gpu(devices.resolve('auto')[0]):
    assert devices.resolve('auto') == devices.resolve('cpu')
    with pytest.raises(ValueError, match='finds no GPU'):
      devices.resolve('gpu')


@pytest.mark.parametrize('name', ['cpu:0', 'CPU:0', '/device:CPU:0', 'CPU'])
def test_devices_have_several_spellings(name):
  assert devices.resolve([name]) == ['/device:CPU:0']


def test_threads_are_one_for_each_gpu_and_core(monkeypatch):
  monkeypatch.setattr(devices.cores, 'num_usable_cores', lambda: 3)
  gpus = ['/device:GPU:0', '/device:GPU:1']
  cpus = ['/device:CPU:0', '/device:CPU:1']
  assert devices.thread_devices(gpus) == (*gpus,)
  assert devices.thread_devices(cpus[:1]) == (cpus[0],) * 3
  assert devices.thread_devices(cpus) == (cpus[0], cpus[1], cpus[0])
  assert devices.thread_devices(gpus, 5) == (*gpus, *gpus, gpus[0])


def _compare_rounds(
  directory, algorithms, reference, *others, jit_compile='auto'
):
  """Compares a round of each algorithm between options of the runtime.

  Args:
    directory: A folder for what is printed.
    algorithms: Their names.
    reference: Options of the runtime to compare with.
    *others: Other options, and how far results may be from those of the
      reference (relative, absolute).
    jit_compile: Of the model.

  Returns:
    The names of the algorithms whose results are the same.
  """
  code = f"""
    import dataclasses
    import numpy as np
    from tests.methods import toy_problems
    from tff_pfl import datasets, runtime
    from tff_pfl.methods import registry
    from tff_pfl.core import padding
    from tff_pfl.models import zoo

    data = datasets.make_synthetic(
      5, examples_per_client=20, test_examples_per_client=0, shape=(6,),
      num_classes=3, classes_per_client=2,
    )
    examples = [data.train(c) for c in data.client_ids]

    def run_round(process, clients, options):
      with runtime.create_runtime('in_process', **options) as created:
        states = created.run(process.initialize_client_states, [*range(5)])
        output = created.run(
          process.next, created.run(process.initialize), states, clients
        )
      return tf.nest.flatten((output.state, output.client_states))

    for name in {list(algorithms)!r}:
      model = dataclasses.replace(
        zoo.mlp(data.element_spec, 3, widths=(8,)), jit_compile={jit_compile!r}
      )
      process = registry.build(name, toy_problems.model_for(name, model))
      clients = [
        padding.padded(client)
        for client in toy_problems.examples_for(name, examples)
      ]
      expected = run_round(process, clients, {reference!r})
      assert expected
      for options, rtol, atol in {others!r}:
        found = run_round(process, clients, options)
        for pair in zip(found, expected):
          np.testing.assert_allclose(*pair, rtol, atol, err_msg=name)
      print(name)
  """
  output = forked.output_of(code, directory, forked.THREE_CPUS, seconds=600)
  return output.split()


@pytest.mark.slow
def test_the_number_of_devices_does_not_change_a_round(tmp_path):
  assert _compare_rounds(
    tmp_path,
    ['fed_rep'],
    {'devices': ['CPU:1']},
    ({'devices': 'cpu'}, 0, 0),
    ({'devices': 'cpu', 'batched_clients': True}, 1e-4, 1e-5),
    jit_compile=False,
  ) == ['fed_rep']


@pytest.mark.gpu
@pytest.mark.parametrize('algorithm', registry.ALGORITHMS)
def test_rounds_are_the_same_on_gpu_and_cpu(algorithm, tmp_path):
  if not tf.config.list_physical_devices('GPU'):
    pytest.skip('TensorFlow finds no GPU')
  assert _compare_rounds(
    tmp_path,
    [algorithm],
    {'devices': 'cpu'},
    ({'devices': 'gpu', 'batched_clients': False}, 1e-4, 1e-5),
    ({'devices': 'gpu', 'batched_clients': True}, 1e-4, 1e-5),
  ) == [algorithm]


def test_auto_takes_the_gpu_for_large_work_only(monkeypatch):
  gpus = ['a GPU']
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda _: gpus)
  assert devices.are_open('auto')
  assert not devices.are_open('gpu')
  assert devices.for_work(535_818, 5000)[0] == 'gpu'
  kind, reason = devices.for_work(2_410, 500)
  assert kind == 'cpu'
  assert 'CPU (--devices)' in reason
  assert '2,410 weights and 500 examples a round' in reason
  gpus.clear()
  assert not devices.are_open('auto')
