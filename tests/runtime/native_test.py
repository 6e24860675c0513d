import asyncio
import collections
import concurrent.futures
import gc
import logging
import os
import signal
import threading
import time
import weakref

import grpc
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime import growth, interruption
from tff_pfl import errors, runtime
from tff_pfl.runtime import native, worker_connection, worker_process

pytestmark = pytest.mark.timeout(60)

_WEIGHTS = tff.to_type(
  collections.OrderedDict(kernel=tff.TensorType(np.float32, [3]), none=())
)
_CLIENT_STATE = tff.to_type(
  collections.OrderedDict(client_index=np.int64, num_seen=np.int64, none=())
)
_DATA = tff.SequenceType(
  collections.OrderedDict(x=tff.TensorType(np.float32, [None, 3]))
)


@tff.tensorflow.computation(_WEIGHTS, _CLIENT_STATE, _DATA)
def _client_work(weights, client_state, dataset):
  num_examples = dataset.reduce(
    np.int64(0), lambda n, batch: n + tf.shape(batch['x'], tf.int64)[0]
  )
  total = dataset.reduce(
    tf.zeros([3]), lambda s, batch: s + tf.reduce_sum(batch['x'], axis=0)
  )
  return collections.OrderedDict(
    update=collections.OrderedDict(kernel=weights['kernel'] + total, none=()),
    weight=tf.cast(num_examples, tf.float32),
    client_state=collections.OrderedDict(
      client_index=client_state['client_index'],
      num_seen=client_state['num_seen'] + num_examples,
      none=(),
    ),
  )


def _build_round():
  mean = tff.aggregators.MeanFactory().create(
    _WEIGHTS, tff.TensorType(np.float32)
  )

  @tff.federated_computation(
    tff.FederatedType(_WEIGHTS, tff.SERVER),
    tff.FederatedType(_CLIENT_STATE, tff.CLIENTS),
    tff.FederatedType(_DATA, tff.CLIENTS),
  )
  def next_fn(weights, client_states, datasets):
    outputs = tff.federated_map(
      _client_work, (tff.federated_broadcast(weights), client_states, datasets)
    )
    aggregate = mean.next(mean.initialize(), outputs.update, outputs.weight)
    return collections.OrderedDict(
      weights=aggregate.result,
      client_states=outputs.client_state,
      num_examples=tff.federated_sum(outputs.weight),
    )

  return next_fn


def _weights(*kernel):
  return collections.OrderedDict(kernel=np.array(kernel, np.float32), none=())


def _client_state(client_index, num_seen=0):
  return collections.OrderedDict(
    client_index=client_index, num_seen=num_seen, none=()
  )


def _dataset(*examples):
  x = np.array(examples, np.float32).reshape([-1, 3])
  return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x)).batch(
    2
  )


@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def _mean(values):
  return tff.federated_mean(values)


@tff.tensorflow.computation(np.int64)
def _count(limit):
  return tf.data.Dataset.range(limit).reduce(
    np.int64(0), lambda total, x: total + x
  )


@tff.tensorflow.computation(np.str_)
def _count_to_limit_in_file(path):
  limit = tf.strings.to_number(tf.io.read_file(path), tf.int64)
  return tf.data.Dataset.range(limit).reduce(
    np.int64(0), lambda total, x: total + x
  )


_FOREVER = 10**12


@pytest.fixture(name='rt', scope='module')
def _rt():
  rt = runtime.create_runtime('native')
  yield rt
  rt.close()


@pytest.fixture(name='warnings')
def _warnings(caplog):
  caplog.set_level(logging.WARNING, logger='absl')
  return lambda: caplog.messages


def _kill_after(seconds, rt):
  """Kills the worker of `rt` in the background, after it has work."""

  def kill():
    while rt.worker_pid is None:
      time.sleep(0.01)
    time.sleep(seconds)
    os.kill(rt.worker_pid, signal.SIGKILL)

  thread = threading.Thread(target=kill, daemon=True)
  thread.start()
  return thread


def test_round_with_client_state_and_datasets_matches_hand_computed_values(rt):
  result = rt.run(
    _build_round(),
    _weights(1, 0, 0),
    [_client_state(7), _client_state(3, num_seen=5)],
    [_dataset([1, 2, 3]), _dataset([0, 1, 0], [0, 1, 0], [0, 1, 0])],
  )
  # (1 * [2, 2, 3] + 3 * [1, 3, 0]) / 4
  np.testing.assert_array_equal(
    result['weights']['kernel'], np.float32([1.25, 2.75, 0.75])
  )
  assert result['weights']['none'] == ()
  assert result['num_examples'] == 4.0
  assert result['client_states'] == [_client_state(7, 1), _client_state(3, 8)]


def test_client_without_examples_and_any_number_of_clients_work(rt):
  next_fn = _build_round()
  for num_clients in (1, 2, 20, 3, 1):
    datasets = [_dataset([1, 1, 1])] + [_dataset()] * (num_clients - 1)
    states = [_client_state(i) for i in range(num_clients)]
    result = rt.run(next_fn, _weights(0, 0, 0), states, datasets)
    np.testing.assert_array_equal(result['weights']['kernel'], [1, 1, 1])
    seen = [state['num_seen'] for state in result['client_states']]
    assert seen == [1] + [0] * (num_clients - 1)


def test_results_are_bit_identical_on_another_worker_and_concurrency(rt):
  rng = np.random.default_rng(0)
  arguments = (
    _weights(*rng.normal(size=3)),
    [_client_state(i) for i in range(12)],
    [_dataset(*rng.normal(size=[n, 3])) for n in range(12)],
  )
  next_fn = _build_round()
  first = rt.run(next_fn, *arguments)['weights']['kernel']
  with runtime.create_runtime('native', max_concurrent_clients=1) as other:
    second = other.run(next_fn, *arguments)['weights']['kernel']
  assert first.tobytes() == second.tobytes()


def test_learning_process_of_tff_runs(rt):
  sum_process = tff.aggregators.SumFactory().create(tff.TensorType(np.float32))
  state = rt.run(sum_process.initialize)
  assert rt.run(sum_process.next, state, [1.0, 2.0]).result == 3.0


def test_compiled_client_work_runs(rt):
  @tff.tensorflow.computation(np.float32)
  def work(x):
    return tf.function(lambda v: 2 * v + 1, jit_compile=True)(x)

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def work_at_clients(values):
    return tff.federated_map(work, values)

  assert rt.run(work_at_clients, [1.0, 2.0]) == [3.0, 5.0]


def test_block_executes_plain_calls_and_stops_the_worker():
  with native.NativeRuntime() as rt:
    assert rt.worker_pid is None  # Started when needed.
    assert _mean([1.0, 3.0]) == 2.0
    pid = rt.worker_pid
  assert pid is not None
  assert not psutil.pid_exists(pid)
  assert rt.worker_pid is None


def test_installed_runtime_executes_plain_calls_even_if_it_is_dropped():
  def install_and_drop():
    rt = native.NativeRuntime()
    rt.install()
    context = rt.context
    del rt
    gc.collect()
    try:
      assert _mean([1.0, 3.0]) == 2.0
      assert tff.framework.get_context_stack().current is context
    finally:
      tff.test.set_no_default_context()

  # TFF's default is that of a thread; this one's may have others in use.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    thread.submit(install_and_drop).result()


def test_dropped_runtime_stops_its_worker_and_its_threads():
  before = threading.active_count()
  rt = native.NativeRuntime()
  rt.run(_mean, [1.0])
  pid = rt.worker_pid
  context = weakref.ref(rt.context)
  del rt
  gc.collect()
  assert context() is None
  assert not psutil.pid_exists(pid)
  assert threading.active_count() == before


def test_closed_runtime_says_so():
  rt = native.NativeRuntime()
  rt.run(_mean, [1.0])
  rt.close()
  rt.close()
  with pytest.raises(errors.RunError, match='is closed; create another'):
    rt.run(_mean, [1.0])


def test_run_works_from_another_thread(rt):
  results = []
  thread = threading.Thread(target=lambda: results.append(rt.run(_mean, [4.0])))
  thread.start()
  thread.join()
  assert results == [4.0]


def test_run_works_inside_an_event_loop_as_in_a_notebook(rt):
  async def cell():
    return rt.run(_mean, [1.0, 3.0])

  assert asyncio.run(cell()) == 2.0


@pytest.mark.parametrize('receiver', ['process', 'thread'])
def test_ctrl_c_ends_a_computation_and_the_next_one_works(
  receiver, rt, warnings
):
  rt.run(_mean, [1.0])
  with interruption.ctrl_c(0.5, ends_within_seconds=10, receiver=receiver):
    rt.run(_count, _FOREVER)
  assert rt.run(_mean, [1.0, 3.0]) == 2.0
  assert not warnings()


def test_closing_ends_a_computation_of_another_thread_with_an_error(warnings):
  rt = native.NativeRuntime()
  caught = []

  def compute():
    try:
      rt.run(_count, _FOREVER)
    except errors.RunError as error:
      caught.append(error)

  thread = threading.Thread(target=compute)
  thread.start()
  while rt.worker_pid is None:
    time.sleep(0.01)
  time.sleep(0.3)
  rt.close()
  thread.join(5)
  assert len(caught) == 1
  assert not isinstance(caught[0], worker_process.WorkerDiedError)
  assert not warnings()


def test_forked_copy_of_the_program_does_not_stop_the_worker(rt):
  rt.run(_mean, [1.0])
  pid = rt.worker_pid
  child = os.fork()
  if not child:
    rt._executor_factory.worker.stop()
    rt.close()
    os._exit(0)
  os.waitpid(child, 0)
  assert rt.worker_pid == pid
  assert rt.run(_mean, [1.0, 3.0]) == 2.0


def test_computation_is_repeated_when_the_worker_is_killed(
  rt, warnings, tmp_path
):
  limit = tmp_path / 'limit'
  limit.write_text('10')
  assert rt.run(_count_to_limit_in_file, str(limit)) == 45
  killed = rt.worker_pid

  def kill_and_let_the_next_try_end():
    time.sleep(0.5)
    limit.write_text('11')
    os.kill(killed, signal.SIGKILL)

  limit.write_text(str(_FOREVER))
  threading.Thread(target=kill_and_let_the_next_try_end, daemon=True).start()
  assert rt.run(_count_to_limit_in_file, str(limit)) == 55
  assert rt.worker_pid != killed
  (warning,) = warnings()
  assert f'process {killed}) was killed by signal 9' in warning
  assert 'repeated on a fresh worker' in warning
  assert '\n' not in warning


def test_second_death_in_a_computation_is_an_error_at_once(rt, warnings):
  def kill_twice():
    _kill_after(0.3, rt).join()
    _kill_after(0.6, rt).join()

  threading.Thread(target=kill_twice, daemon=True).start()
  begin = time.monotonic()
  with pytest.raises(worker_process.WorkerDiedError) as caught:
    rt.run(_count, _FOREVER)
  assert time.monotonic() - begin < 10
  assert '\n' not in str(caught.value)
  (warning,) = warnings()
  assert rt.run(_mean, [1.0, 3.0]) == 2.0


def test_worker_that_died_between_computations_is_replaced(rt, warnings):
  rt.run(_mean, [1.0])
  psutil.Process(rt.worker_pid).kill()
  while rt.worker_pid is not None:
    time.sleep(0.01)
  assert rt.run(_mean, [1.0, 3.0]) == 2.0
  (warning,) = warnings()
  assert 'A fresh worker is started.' in warning


def test_error_of_a_computation_is_neither_repeated_nor_a_death(rt, warnings):
  @tff.tensorflow.computation(np.int32)
  def check(x):
    with tf.control_dependencies(
      [tf.debugging.assert_positive(x, message='my own message')]
    ):
      return tf.identity(x)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def check_at_clients(values):
    return tff.federated_map(check, values)

  rt.run(_mean, [1.0])
  pid = rt.worker_pid
  for computation, argument in ((check, -1), (check_at_clients, [1, -1])):
    with pytest.raises(grpc.RpcError) as caught:
      rt.run(computation, argument)
    assert 'my own message' in caught.value.details()
  assert rt.worker_pid == pid
  assert not warnings()
  assert rt.run(check, 1) == 1


def test_missing_worker_binary_is_an_error_of_the_run(tmp_path):
  with native.NativeRuntime(binary=str(tmp_path / 'nothing')) as rt:
    with pytest.raises(errors.RunError, match='does not exist'):
      rt.run(_mean, [1.0])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_grows_with_calls(rt):
  cohorts = range(1, 2 * worker_connection._MAX_EXECUTORS)

  def work():
    for num_clients in [*cohorts] * 2:
      rt.run(_mean, [1.0] * num_clients)

  work()
  grown = growth.steady_growth(work, rt.worker_pid)
  assert np.all(grown < [6, 1, 1, 4, 1, 1, 200]), grown


def test_unknown_runtime_is_refused_with_the_known_ones():
  with pytest.raises(
    ValueError, match="one of in_process, native, ray, found 'nativ'"
  ):
    runtime.create_runtime('nativ')


def test_numbers_out_of_range_are_refused():
  with pytest.raises(ValueError, match='Expected `max_concurrent_clients'):
    runtime.create_runtime('native', max_concurrent_clients=0)
