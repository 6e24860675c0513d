import collections
import contextlib
import logging
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms import toy_problems
from tests.runtime import interruption
from tff_pfl import errors, runtime
from tff_pfl.algorithms import fed_rep
from tff_pfl.runtime import (
  remote,
  remote_mapper,
  worker_pool,
  worker_process,
)

pytestmark = [
  pytest.mark.timeout(60),
  pytest.mark.skipif(
    not os.path.exists('/proc/self/stat'),
    reason='Tells workers apart by what Linux says of them.',
  ),
]

_NUM_CLIENTS = 6
_DATA = tff.SequenceType(np.int64)


def _at_clients(type_signature):
  return tff.FederatedType(type_signature, tff.CLIENTS)


def _own_process_id():
  """In a computation: the id of the process that computes."""
  return tf.strings.to_number(
    tf.strings.split(tf.io.read_file('/proc/self/stat'))[0], tf.int64
  )


def _sum(dataset):
  return dataset.reduce(np.int64(0), lambda n, x: n + x)


@tff.tensorflow.computation(np.float32, _DATA)
def _sum_with_process_id(offset, dataset):
  return collections.OrderedDict(
    total=offset + tf.cast(_sum(dataset), tf.float32),
    process_id=_own_process_id(),
  )


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER), _at_clients(_DATA)
)
def _sums(offset, datasets):
  return tff.federated_map(
    _sum_with_process_id, (tff.federated_broadcast(offset), datasets)
  )


@tff.tensorflow.computation(np.int64, np.int64, _DATA)
def _sum_slowly_in_process(process_id, num_steps, dataset):
  """Takes `num_steps` steps more in this process."""
  is_here = tf.equal(_own_process_id(), process_id)
  num_steps = tf.where(is_here, num_steps, 0)
  extra = tf.data.Dataset.range(num_steps).reduce(
    np.int64(0), lambda n, x: tf.minimum(n, x)
  )
  return extra + _sum(dataset)


@tff.federated_computation(
  tff.FederatedType(np.int64, tff.SERVER),
  tff.FederatedType(np.int64, tff.SERVER),
  _at_clients(_DATA),
)
def _sums_slowly_in_process(process_id, num_steps, datasets):
  return tff.federated_map(
    _sum_slowly_in_process,
    (
      tff.federated_broadcast(process_id),
      tff.federated_broadcast(num_steps),
      datasets,
    ),
  )


_FOREVER = 10**12
_DATASETS = [tf.data.Dataset.range(n) for n in range(_NUM_CLIENTS)]
_TOTALS = [n * (n - 1) / 2 for n in range(_NUM_CLIENTS)]


def _totals(rt):
  return [float(result['total']) for result in rt.run(_sums, 0.0, _DATASETS)]


def _succeeds(rt):
  """Whether a computation succeeds."""
  with contextlib.suppress(errors.RunError):
    return _totals(rt) == _TOTALS
  return False


def _process_ids(rt):
  """Which processes computed a cohort."""
  return {int(result['process_id']) for result in rt.run(_sums, 0.0, _DATASETS)}


def _start(**options):
  return worker_process.start_worker(max_concurrent_clients=1, **options)


def _connect(*workers, **options):
  return remote.RemoteRuntime(
    workers=[worker.target for worker in workers],
    max_concurrent_clients=1,
    **options,
  )


@pytest.fixture(name='workers', scope='module')
def _workers_fixture():
  """Workers that no test ends."""
  with contextlib.ExitStack() as stack:
    yield [stack.enter_context(_start()) for _ in range(3)]


@pytest.fixture(name='mortal')
def _mortal_fixture():
  """A worker that a test may end."""
  with _start() as worker:
    yield worker


@pytest.fixture(name='warnings')
def _warnings_fixture(caplog):
  caplog.set_level(logging.WARNING, logger='absl')
  return lambda: caplog.messages


@pytest.fixture(name='quick_health_checks')
def _quick_health_checks_fixture(monkeypatch):
  monkeypatch.setattr(remote_mapper, '_SECONDS_BETWEEN_HEALTH_CHECKS', 0.2)
  monkeypatch.setattr(worker_pool, '_SECONDS_TO_ANSWER', 1.0)


def _wait_until(condition, seconds=10.0):
  deadline = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def _free_port():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


@pytest.fixture(name='process', scope='module')
def _process_fixture():
  return fed_rep.build_fed_rep(
    toy_problems.classifier(),
    fed_rep.FedRepHParams(batch_size=2),
  )


def _train(rt, process):
  """Everything that three rounds give."""
  indices = list(range(_NUM_CLIENTS))
  state = rt.run(process.initialize)
  client_states = rt.run(process.initialize_client_states, indices)
  data = toy_problems.padded(
    [toy_problems.labeled_examples(3 + n, seed=n) for n in indices]
  )
  outputs = []
  for _ in range(3):
    output = rt.run(process.next, state, client_states, data)
    state, client_states = output.state, output.client_states
    outputs.append(output)
  return outputs


def test_rounds_are_bit_identical_on_any_number_of_workers(
  workers, process, runtime
):
  results = {}
  for count in (1, 3):
    with _connect(*workers[:count]) as rt:
      results[count] = _train(rt, process)
  toy_problems.assert_same(results[3], results[1])
  toy_problems.assert_close(results[1], _train(runtime, process))


def test_all_workers_compute_and_results_stand_in_the_clients_order(workers):
  with _connect(*workers) as rt:
    results = rt.run(_sums, 0.5, _DATASETS * 4)
  assert [result['total'] for result in results] == [
    total + 0.5 for total in _TOTALS * 4
  ]
  assert {int(result['process_id']) for result in results} == {
    worker.pid for worker in workers
  }


def test_values_of_all_kinds_pass_unchanged(workers):
  State = collections.namedtuple('State', ['none', 'text', 'flags'])
  state_type = tff.to_type(
    State(none=(), text=np.str_, flags=tff.TensorType(np.bool_, [None]))
  )
  element = collections.OrderedDict(
    x=tff.TensorType(np.float32, [None, 2]), y=tff.TensorType(np.int32, [None])
  )

  @tff.tensorflow.computation(
    np.int64, state_type, tff.SequenceType(element), np.float64
  )
  def work(number, state, dataset, scale):
    total = dataset.reduce(
      np.float64(0),
      lambda n, batch: n + tf.cast(tf.reduce_sum(batch['x']), tf.float64),
    )
    return collections.OrderedDict(
      z=(number, scale * total), state=state, a=dataset
    )

  @tff.federated_computation(
    tff.FederatedType(np.int64, tff.SERVER),
    _at_clients(state_type),
    _at_clients(tff.SequenceType(element)),
    tff.FederatedType(np.float64, tff.CLIENTS, all_equal=True),
  )
  def work_at_clients(number, states, datasets, scale):
    return tff.federated_map(
      work, (tff.federated_broadcast(number), states, datasets, scale)
    )

  x = np.arange(6, dtype=np.float32).reshape([3, 2])
  dataset = tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(x=x, y=np.int32([1, 2, 3]))
  ).batch(2)
  state = State((), 'ä', np.array([True, False]))
  with _connect(workers[0]) as rt:
    result, empty = rt.run(
      work_at_clients, 2**40, [state, state], [dataset, dataset.take(0)], 0.5
    )
  assert list(result) == ['z', 'state', 'a']
  assert result['z'] == (2**40, 7.5)
  assert isinstance(result['state'], State)
  assert result['state'].none == ()
  assert result['state'].text == 'ä'.encode()
  np.testing.assert_array_equal(result['state'].flags, [True, False])
  batches = list(result['a'])
  np.testing.assert_array_equal(batches[0]['x'], x[:2])
  np.testing.assert_array_equal(batches[1]['y'], [3])
  assert not list(empty['a'])


def test_share_of_a_worker_killed_while_it_computes_is_repeated(
  workers, mortal, warnings
):
  threading.Timer(0.7, os.kill, (mortal.pid, signal.SIGKILL)).start()
  with _connect(workers[0], mortal) as rt:
    result = rt.run(_sums_slowly_in_process, mortal.pid, _FOREVER, _DATASETS)
  assert result == _TOTALS
  (warning,) = warnings()
  assert f'TFF worker {mortal.target} was lost' in warning
  assert '\n' not in warning


def test_worker_that_is_started_again_takes_part_again(
  workers, mortal, warnings
):
  with _connect(workers[0], mortal) as rt:
    assert _process_ids(rt) == {workers[0].pid, mortal.pid}
    mortal.stop()
    assert _process_ids(rt) == {workers[0].pid}
    with _start(port=mortal.port) as again:
      _wait_until(lambda: again.pid in _process_ids(rt))
      assert _totals(rt) == _TOTALS
  lost, back = warnings()
  assert f'{mortal.target} was lost' in lost
  assert f'{mortal.target} is back' in back


def test_all_workers_dead_is_an_error_that_names_them(monkeypatch):
  monkeypatch.setattr(remote_mapper, '_SECONDS_FOR_RETURN', 0.5)
  with _start() as first, _start() as second, _connect(first, second) as rt:
    assert _totals(rt) == _TOTALS
    first.stop()
    second.stop()
    for _ in range(2):
      begin = time.monotonic()
      with pytest.raises(errors.RunError) as caught:
        _totals(rt)
      assert time.monotonic() - begin < 5
      message = str(caught.value)
      assert message.startswith('No TFF worker is left: ')
      assert first.target in message
      assert second.target in message
      assert '\n' not in message
    with _start(port=first.port) as again:
      _wait_until(lambda: _succeeds(rt))
      assert _process_ids(rt) == {again.pid}


@pytest.mark.slow
@pytest.mark.usefixtures('quick_health_checks')
def test_worker_that_hangs_is_lost_until_it_answers(workers, mortal, warnings):
  with _connect(workers[0], mortal) as rt:
    threading.Timer(0.5, os.kill, (mortal.pid, signal.SIGSTOP)).start()
    try:
      result = rt.run(_sums_slowly_in_process, mortal.pid, 2 * 10**5, _DATASETS)
      assert result == _TOTALS
      (warning,) = warnings()
      assert f'{mortal.target} was lost: it did not answer for 1 s' in warning
      begin = time.monotonic()
      assert _process_ids(rt) == {workers[0].pid}
      assert time.monotonic() - begin < 1
    finally:
      os.kill(mortal.pid, signal.SIGCONT)
    _wait_until(lambda: mortal.pid in _process_ids(rt))


def test_ctrl_c_ends_a_computation_and_the_next_one_works(mortal, warnings):
  with _connect(mortal) as rt:
    assert _totals(rt) == _TOTALS
    with interruption.ctrl_c(0.5, ends_within_seconds=10):
      rt.run(_sums_slowly_in_process, mortal.pid, _FOREVER, _DATASETS)
    assert _totals(rt) == _TOTALS
  assert not warnings()


def test_closed_runtime_says_so_and_leaves_the_workers_and_no_threads(workers):
  before = set(threading.enumerate())
  rt = _connect(*workers)
  _totals(rt)
  rt.close()
  rt.close()
  with pytest.raises(errors.RunError, match='is closed; create another'):
    _totals(rt)
  _wait_until(lambda: set(threading.enumerate()) <= before)
  assert all(worker.is_running for worker in workers)


def test_workers_that_do_not_answer_are_named(workers):
  missing = [f'127.0.0.1:{_free_port()}' for _ in range(2)]
  begin = time.monotonic()
  with pytest.raises(errors.RunError) as caught:
    runtime.create_runtime(
      'remote',
      workers=[missing[0], workers[0].target, missing[1]],
      connect_timeout_seconds=0.5,
    )
  assert time.monotonic() - begin < 5
  assert f'answers at {missing[0]}, {missing[1]} (' in str(caught.value)
  assert workers[0].target not in str(caught.value)


@pytest.mark.parametrize(
  ('workers', 'message'),
  [
    ([], 'at least one'),
    ('127.0.0.1:8000', 'at least one'),
    (['127.0.0.1'], "'host:port' with a port"),
    (['127.0.0.1:0'], "'host:port' with a port"),
    (['127.0.0.1:65536'], "'host:port' with a port"),
    (['127.0.0.1:x'], "'host:port' with a port"),
    ([':8000'], "'host:port' with a port"),
    (['::1:8000'], "'host:port' with a port"),
    (['dns:///host:8000'], "'host:port' with a port"),
    ([8000], "'host:port' with a port"),
    (['a:1', 'b:1', 'a:1'], "different addresses, found 'a:1 twice'"),
  ],
)
def test_wrong_addresses_are_refused(workers, message):
  with pytest.raises(ValueError, match='Expected `workers` to be') as caught:
    runtime.create_runtime('remote', workers=workers)
  assert message in str(caught.value)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'options',
  [
    {'max_concurrent_clients': 0},
    {'connect_timeout_seconds': 0.0},
  ],
)
def test_numbers_out_of_range_are_refused(options):
  with pytest.raises(ValueError, match='Expected `'):
    remote.RemoteRuntime(workers=['127.0.0.1:1'], **options)
