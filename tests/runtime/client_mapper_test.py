import contextlib
import contextvars
import threading
import time

import pytest

from tff_pfl.runtime import client_mapper, threads, values


@pytest.fixture(name='mapper', params=[1, 2, 5])
def _mapper(request):
  mapper = client_mapper.ClientMapper([None] * request.param)
  yield mapper
  mapper.close()


def test_results_come_in_the_clients_order(mapper):
  def work(value):
    time.sleep(0.001 * (value % 3))
    return value * value

  argument = values.PerClient(list(range(40)))
  results = mapper.map(work, argument, 40)
  assert results == values.PerClient([i * i for i in range(40)])


def test_clients_run_on_all_threads_at_once():
  mapper = client_mapper.ClientMapper([None] * 4)
  barrier = threading.Barrier(4, timeout=5)

  def work():
    barrier.wait()
    return threading.get_ident()

  assert len(set(mapper.map(work, None, 4).values)) == 4
  mapper.close()


def test_threads_compute_on_their_devices(monkeypatch):
  local, used = threading.local(), []
  barrier = threading.Barrier(3, timeout=5)

  @contextlib.contextmanager
  def on_device(name):
    local.device = name
    yield

  monkeypatch.setattr(client_mapper.tf, 'device', on_device)
  names = [f'/device:CPU:{i}' for i in range(3)]
  mapper = client_mapper.ClientMapper(names)

  def work():
    barrier.wait()
    used.append(local.device)
    return mapper.device()

  assert sorted(mapper.map(work, None, 6).values) == sorted(2 * names)
  assert sorted(used) == sorted(2 * names)
  mapper.close()


def test_first_error_is_raised_and_later_clients_are_not_computed(mapper):
  computed = []

  def work(value):
    computed.append(value)
    if value == 0:
      raise ValueError('client 0')
    time.sleep(0.01)

  with pytest.raises(ValueError, match='client 0') as caught:
    mapper.map(work, values.PerClient(list(range(100))), 100)
  assert caught.traceback[-1].name == 'work'
  assert len(computed) <= mapper.num_threads + 1
  # The next map is not affected.
  assert mapper.map(lambda: 7, None, 3) == values.PerClient([7, 7, 7])


def test_abandoned_work_ends_between_two_clients(mapper):
  computed = []

  def work(value):
    computed.append(value)
    return mapper.map(computed.append, values.PerClient([value] * 9), 9)

  def compute():
    threads.abandon_if(lambda: len(computed) > 20)
    return mapper.map(work, values.PerClient(list(range(100))), 100)

  with pytest.raises(threads.ClosedError):
    contextvars.copy_context().run(compute)
  assert len(computed) <= 21 + mapper.num_threads


def test_each_gpu_has_the_same_clients_in_every_round(monkeypatch):
  monkeypatch.setattr(
    client_mapper.tf, 'device', lambda _: contextlib.nullcontext()
  )
  names = [f'/device:GPU:{i}' for i in range(3)]
  # Two threads for the first.
  mapper = client_mapper.ClientMapper([*names, names[0]])

  def work(seconds):
    time.sleep(seconds)
    return mapper.device()

  for number in range(8):
    seconds = [0.002 * (i % 4 == number % 4) for i in range(8)]
    actual = mapper.map(work, values.PerClient(seconds), 8).values
    assert actual == [*3 * names[:1], *3 * names[1:2], *2 * names[2:]]
  assert mapper.map(mapper.device, None, 2).values == names[:2]
  # All threads are busy with others.
  inner = mapper.map(lambda: mapper.map(mapper.device, None, 3).values, None, 5)
  assert inner.values == [names] * 5
  mapper.close()


def test_map_inside_map_does_not_deadlock(mapper):
  def outer(value):
    inner = mapper.map(lambda x: x, values.PerClient([value] * 5), 5)
    return sum(inner.values)

  argument = values.PerClient(list(range(20)))
  results = mapper.map(outer, argument, 20)
  assert results == values.PerClient([5 * i for i in range(20)])


def test_threads_end_at_close():
  before = set(threading.enumerate())
  mapper = client_mapper.ClientMapper([None] * 4)
  mapper.map(lambda: time.sleep(0.01), None, 8)
  assert len(threading.enumerate()) > len(before)
  mapper.close()
  mapper.close()
  assert set(threading.enumerate()) <= before
