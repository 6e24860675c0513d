"""What a program may expect of every runtime on this machine."""

import asyncio
import concurrent.futures
import contextlib
import gc
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

from tests.runtime import cases
from tff_pfl import errors, runtime
from tff_pfl import tff_api as tff

pytestmark = [
  pytest.mark.timeout(60),
  pytest.mark.parametrize('name', ['in_process', 'native'], scope='module'),
]

# Minutes' work.
_MANY_CLIENTS = [10**4] * 5000


@pytest.fixture(name='rt', scope='module')
def _rt(name):
  with runtime.create_runtime(name) as rt:
    yield rt


@pytest.fixture(name='left_over')
def _left_over():
  """What threads and child processes there are more than before the test."""

  def running():
    return {*threading.enumerate(), *psutil.Process().children()}

  before = running()
  return lambda: running() - before


_count_at_clients = cases.at_clients(cases.count)


@tff.federated_computation(cases.CLIENT_FLOATS)
def _mean(values):
  return tff.federated_mean(values)


@contextlib.contextmanager
def _ctrl_c(after_seconds, ends_within_seconds, receiver='process'):
  """Presses Ctrl-C in a block, which must end by that.

  Args:
    after_seconds: How long the block runs undisturbed.
    ends_within_seconds: How long it may take from its beginning.
    receiver: Of the signal: the 'process', of which the system chooses any
      thread, mostly the main one, or a 'thread' that is not the main one.
  """
  previous = signal.signal(signal.SIGINT, signal.default_int_handler)

  def interrupt():
    if receiver == 'process':
      os.kill(os.getpid(), signal.SIGINT)
    else:
      signal.pthread_kill(threading.get_ident(), signal.SIGINT)

  press = threading.Timer(after_seconds, interrupt)
  begin = time.monotonic()
  try:
    press.start()
    with pytest.raises(KeyboardInterrupt):
      yield
  finally:
    signal.signal(signal.SIGINT, previous)
  assert time.monotonic() - begin < ends_within_seconds


def test_number_of_concurrent_clients_does_not_change_results(name, rt):
  values = list(np.random.default_rng(0).normal(size=13).astype(np.float32))
  results = {rt.run(_mean, values).tobytes()}
  for num in (1, 5):
    with runtime.create_runtime(name, max_concurrent_clients=num) as other:
      results.add(other.run(_mean, values).tobytes())
  assert len(results) == 1


def test_error_of_a_computation_is_the_callers(rt):
  for computation, argument in (
    (cases.count, -1),
    (_count_at_clients, [1, -1, 2]),
  ):
    with pytest.raises((tf.errors.InvalidArgumentError, grpc.RpcError)) as e:
      rt.run(computation, argument)
    details = getattr(e.value, 'details', None)
    assert 'my own message' in (details() if details else str(e.value))
    assert rt.run(cases.count, 3) == 3


def test_several_threads_run_computations_at_once(rt):
  def compute(i):
    return [rt.run(_mean, [float(i)] * n) for n in range(1, 4)]

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    results = list(pool.map(compute, range(8)))
  assert results == [[float(i)] * 3 for i in range(8)]


def test_run_works_inside_an_event_loop_as_in_a_notebook(rt):
  async def cell():
    return rt.run(_mean, [1.0, 3.0])

  assert asyncio.run(cell()) == 2.0


@pytest.mark.parametrize('receiver', ['process', 'thread'])
def test_ctrl_c_ends_a_computation_and_the_next_one_works(receiver, rt, caplog):
  rt.run(_count_at_clients, [1, 2])
  with _ctrl_c(0.3, ends_within_seconds=10, receiver=receiver):
    rt.run(_count_at_clients, _MANY_CLIENTS)
  assert rt.run(_count_at_clients, [4, 5]) == [6, 10]
  assert not caplog.messages


def test_closing_ends_a_computation_of_another_thread_with_an_error(name):
  rt = runtime.create_runtime(name)
  rt.run(cases.count, 1)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    outcomes = [
      pool.submit(rt.run, _count_at_clients, _MANY_CLIENTS) for _ in range(2)
    ]
    time.sleep(0.2)
    rt.close()
    for outcome in outcomes:
      with pytest.raises(errors.RunError, match='is closed; create another'):
        outcome.result(timeout=5)


def test_block_executes_plain_calls_and_leaves_nothing_running(name, left_over):
  with runtime.create_runtime(name, max_concurrent_clients=4) as rt:
    assert _mean([1.0, 3.0] * 10) == 2.0
    assert left_over()
  assert not left_over()
  rt.close()
  with pytest.raises(errors.RunError, match='is closed; create another'):
    rt.run(_mean, [1.0])


def test_dropped_runtime_works_as_long_as_it_is_installed(name, left_over):
  def install_and_drop():
    rt = runtime.create_runtime(name)
    rt.install()
    context = weakref.ref(rt.context)
    del rt
    gc.collect()
    try:
      assert _mean([1.0, 3.0]) == 2.0
      assert tff.framework.get_context_stack().current is context()
    finally:
      tff.test.set_no_default_context()
    gc.collect()
    assert context() is None

  # TFF's default is that of a thread; this one's may have others in use.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    thread.submit(install_and_drop).result()
  assert not left_over()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_grows_with_calls(rt):
  rt.run(_mean, [1.0])
  worker = [rt.worker_pid] if hasattr(rt, 'worker_pid') else []
  processes = [*map(psutil.Process, worker), psutil.Process()]
  figures = []
  for _ in range(6):
    # More numbers of clients than the native runtime keeps executors for.
    for n in range(340):
      rt.run(_mean, [1.0] * (1 + n % 31))
    gc.collect()
    figures.append(
      [
        [p.memory_info().rss / 2**20, p.num_threads(), p.num_fds()]
        for p in processes
      ]
    )
  # A leak grows each time, unlike what comes once and late.
  grown = np.min(np.diff(figures, axis=0), axis=0)
  assert np.all(grown < [6, 1, 1]), grown
