"""Tests in forks of one process, which imports TensorFlow once for all."""

import pytest

from tests.system import forked


def test_a_process_that_trials_are_forked_from_has_not_looked_for_gpus(
  tmp_path,
):
  # No fork could use them: CUDA_ERROR_NOT_INITIALIZED.
  code = """
    from tensorflow.python.eager import context
    print(context.context()._physical_devices)
  """
  assert forked.output_of(code, tmp_path) == 'None\n'


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
  code = """
    from tff_pfl import runtime
    from tff_pfl.runtime import devices
    with runtime.create_runtime('in_process', max_concurrent_clients=4):
      print(devices.for_compiled(['/device:CPU:0', '/device:CPU:0']))
    print(len(tf.config.list_logical_devices('CPU')))
  """
  output = forked.output_of(code, tmp_path, forked.THREE_CPUS)
  assert output.splitlines() == ['[None, None]', '3']


# Imported anew it chooses a folder, as in a process that is no fork.
_PROGRAM = """
  import importlib
  from tff_pfl.system import tf_import
  importlib.reload(tf_import)
  import tensorflow as tf

  for number in (1.0, 2.0):
    compiled = tf.function(
      lambda x: tf.linalg.matmul(x, x) + number, jit_compile=True
    )
    print(float(tf.reduce_sum(compiled(tf.ones([8, 8])))))
"""


@pytest.mark.timeout(120)
def test_tensorflow_compiles_only_what_is_not_kept_or_is_damaged(
  tmp_path, monkeypatch
):
  root = tmp_path / 'programs'
  monkeypatch.setenv('TFF_PFL_PROGRAM_CACHE', str(root))
  monkeypatch.setenv('TF_XLA_FLAGS', '')

  def run():
    output = forked.output_of(_PROGRAM, tmp_path)
    assert output.split() == ['576.0', '640.0']
    programs = {path.name[9:]: path for path in root.glob('*/*.pb')}
    assert len(programs) == 2
    return programs

  first = run()
  whole, damaged = sorted(first)
  content = first[damaged].read_bytes()
  first[damaged].write_bytes(content[: len(content) // 2])
  second = run()
  assert second[whole] == first[whole]
  assert second[damaged].stat().st_size > len(content) // 2
