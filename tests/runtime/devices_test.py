"""Tests of the choice of devices, and of batches of clients on them.

Devices are made when TensorFlow starts, so most of this runs in programs of its
own with several logical CPU devices.
"""

import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from tests.system import forked
from tff_pfl.methods import registry
from tff_pfl.runtime import devices

_START = """
import os
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import tff_pfl
import tensorflow as tf
cpu, = tf.config.list_physical_devices('CPU')
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 3
)
"""


def _run_program(code):
  """Runs a program with three CPU devices, and returns its output."""
  result = subprocess.run(
    [sys.executable, '-c', _START + textwrap.dedent(code)],
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr[-2000:]
  return result.stdout


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


def test_threads_get_devices_of_their_own_for_compiled_programs(tmp_path):
  output = forked.output_of(
    """
    import os
    os.environ.pop('TF_NUM_INTRAOP_THREADS', None)
    from tff_pfl.system import tf_import
    import tensorflow as tf
    from tff_pfl.runtime import devices, graph_programs

    cpu, gpu = '/device:CPU:0', '/device:GPU:0'
    devices.cores.num_usable_cores = lambda: 3
    assert devices.for_compiled([cpu]) == [None]
    tf.constant(0)  # TensorFlow starts its own threads.
    before = len(os.listdir('/proc/self/task'))
    own = devices.for_compiled([gpu, cpu, cpu, cpu, cpu])
    assert len(os.listdir('/proc/self/task')) >= before + 2
    names = [cpu, '/device:CPU:1', '/device:CPU:2', cpu]
    assert own == [None, *names], own
    # A later runtime has the same choice of devices.
    assert devices.resolve('cpu') == [cpu]
    try:
      devices.resolve(['CPU:1'])
    except ValueError as error:
      assert 'among /device:CPU:0' in str(error)
    else:
      raise AssertionError

    places, times = [], []
    call = graph_programs.EagerFunction.__call__

    def record(function, inputs):
      places.append(tf.constant(0.0).device[-5:])
      return call(function, inputs)

    graph_programs.EagerFunction.__call__ = record
    graph_programs.time.perf_counter = lambda: times.pop(0)
    concrete = tf.function(lambda x: x + 1, jit_compile=True)
    concrete = concrete.get_concrete_function(tf.TensorSpec([None]))
    function = graph_programs.CompiledFunction(concrete)
    with devices.compiled_on(own[2]):
      for size, begin, end in (
        (3, 0, 1),
        (3, 0.5, 90),  # It waits for the first one's compiler.
        (2, 100, 102),  # It is compiled for another shape.
        (2, 110, 111),
        *[(3, 110, 120), (3, 110, 121)] * 9,  # Most calls are nearly as short.
        (3, 400, 420),
        (3, 420, 450),
        (3, 450, 500),
        (3, 0, 0),
      ):
        times[:] = begin, end
        result, = function([tf.ones([size])])
        assert result.numpy()[0] == 2 and result.device.endswith('CPU:0')
    assert places == ['CPU:0'] * 25 + ['CPU:1'], places
    """,
    tmp_path,
  )
  assert not output


def test_devices_of_the_user_stay_the_only_ones(tmp_path):
  code = textwrap.dedent("""
    from tff_pfl import runtime
    from tff_pfl.runtime import devices
    with runtime.create_runtime('in_process', max_concurrent_clients=4):
      print(devices.for_compiled(['/device:CPU:0', '/device:CPU:0']))
    print(len(tf.config.list_logical_devices('CPU')))
  """)
  output = forked.output_of(_START + code, tmp_path)
  assert output.splitlines() == ['[None, None]', '3']


def _compare_rounds(algorithms, reference, *others, jit_compile='auto'):
  """Compares a round of each algorithm between options of the runtime.

  Args:
    algorithms: Their names.
    reference: Options of the runtime to compare with.
    *others: Other options, and how far results may be from those of the
      reference (relative, absolute).
    jit_compile: Of the model.

  Returns:
    The names of the algorithms whose results are the same.
  """
  output = _run_program(f"""
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
  """)
  return output.split()


@pytest.mark.slow
def test_the_number_of_devices_does_not_change_a_round():
  assert _compare_rounds(
    ['fed_rep'],
    {'devices': ['CPU:1']},
    ({'devices': 'cpu'}, 0, 0),
    ({'devices': 'cpu', 'batched_clients': True}, 1e-4, 1e-5),
    jit_compile=False,
  ) == ['fed_rep']


@pytest.mark.gpu
@pytest.mark.parametrize('algorithm', registry.ALGORITHMS)
def test_rounds_are_the_same_on_gpu_and_cpu(algorithm):
  if not tf.config.list_physical_devices('GPU'):
    pytest.skip('TensorFlow finds no GPU')
  assert _compare_rounds(
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
