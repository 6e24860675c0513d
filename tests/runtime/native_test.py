"""The worker process of the native runtime, and its port."""

import concurrent.futures
import errno
import gc
import os
import re
import socket
import sys
import threading
import time

import psutil
import pytest

from tests.runtime import cases
from tff_pfl import errors, runtime
from tff_pfl.runtime import native as native_lib
from tff_pfl.runtime import worker_port
from tff_pfl.system import cores

pytestmark = [
  pytest.mark.timeout(60),
  pytest.mark.skipif(
    sys.platform != 'linux', reason='The kernel limits workers on Linux only.'
  ),
]


@pytest.fixture(name='worker')
def _worker(native):
  _add(native)
  return psutil.Process(native.worker_pid)


def _add(rt):
  assert rt.run(cases.count, 10) == 45


def test_worker_holds_neither_input_nor_output_nor_group_of_its_owner(worker):
  files = [os.readlink(f'/proc/{worker.pid}/fd/{fd}') for fd in range(2)]
  # What it prints goes where messages do.
  assert files == ['/dev/null', os.readlink('/proc/self/fd/2')]
  assert os.getpgid(worker.pid) != os.getpgid(0)


def test_death_in_a_computation_is_one_line_and_the_next_one_works(
  native, worker
):
  threading.Timer(0.2, worker.kill).start()
  begin = time.monotonic()
  with pytest.raises(errors.RunError) as caught:
    native.run(cases.count, 10**12)
  assert time.monotonic() - begin < 10
  assert str(caught.value) == (
    f'The TFF worker (process {worker.pid}) was killed by signal 9 (SIGKILL), '
    'perhaps because memory ran out.'
  )
  _add(native)


def test_worker_that_died_between_computations_is_replaced(native, worker):
  worker.kill()
  worker.wait(5)
  assert native.worker_pid is None
  _add(native)


def test_worker_outlives_the_thread_that_first_computed():
  with runtime.create_runtime('native') as rt:
    thread = threading.Thread(target=_add, args=[rt])
    thread.start()
    thread.join()
    time.sleep(0.3)
    assert psutil.pid_exists(rt.worker_pid)


def test_forked_copy_of_the_program_does_not_stop_the_worker(native, worker):
  child = os.fork()
  if not child:
    # As the interpreter does where it ends.
    native._engine.worker.stop()
    native._engine.worker = None
    gc.collect()
    os._exit(0)
  os.waitpid(child, 0)
  _add(native)
  assert native.worker_pid == worker.pid


@pytest.mark.parametrize(
  'script, seconds, message',
  [
    ('exit 3', 10.0, 'ended with exit status 3'),
    ('exec sleep 60', 0.3, 'did not answer within 0.3 sec'),
  ],
)
def test_worker_that_does_not_start_is_reported(
  tmp_path, monkeypatch, script, seconds, message
):
  path = tmp_path / 'worker'
  path.write_text('#!/bin/sh\n' + script)
  path.chmod(0o755)
  monkeypatch.setattr(native_lib, '_BINARY', str(path))
  monkeypatch.setattr(native_lib, '_SECONDS_TO_START', seconds)
  with runtime.create_runtime('native') as rt:
    with pytest.raises(errors.RunError, match=message) as caught:
      _add(rt)
  text = str(caught.value)
  assert '\n' not in text
  assert not psutil.pid_exists(int(re.search(r'\(process (\d+)\)', text)[1]))


def test_cores_are_divided_among_concurrent_clients(monkeypatch):
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  monkeypatch.setattr(cores, 'num_usable_cores', lambda: 8)

  def threads(**options):
    with runtime.create_runtime('native', **options) as rt:
      _add(rt)
      return psutil.Process(rt.worker_pid).environ()['TF_NUM_INTRAOP_THREADS']

  assert threads(max_concurrent_clients=2) == '4'
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  assert threads() == '3'


def _addresses_of_this_machine():
  """IP addresses that a connection from here can be made to."""
  actual = {'127.0.0.1', '127.0.0.2'}
  for addresses in psutil.net_if_addrs().values():
    for address in addresses:
      if address.family in (socket.AF_INET, socket.AF_INET6):
        actual.add(address.address)
  return {address for address in actual if '%' not in address}


def _answers(address, port, seconds=0.5):
  try:
    with socket.create_connection((address, port), seconds) as probe:
      return bool(probe.recv(1))
  except OSError:
    return False


def _port_of(worker):
  (port,) = (a for a in worker.cmdline() if a.startswith('--port='))
  return int(port.removeprefix('--port='))


def test_worker_is_reached_at_the_loopback_address_only(worker):
  port = _port_of(worker)

  # Not by chance, as the kernel may choose among those who share a port.
  def answers(address, number, seconds):
    tries = ([each] * number for each in (address, port, seconds))
    return pool.map(_answers, *tries)

  with concurrent.futures.ThreadPoolExecutor(20) as pool:
    for address in _addresses_of_this_machine():
      if address == '127.0.0.1':
        assert all(answers(address, 20, 0.5))
      else:
        assert not any(answers(address, 5, 0.1)), address


@pytest.mark.parametrize('how', ['refused', 'ignored'])
def test_system_that_cannot_limit_lets_the_worker_serve_all(monkeypatch, how):
  def refuse():
    raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))

  if how == 'refused':
    monkeypatch.setattr(worker_port, '_filter_program', refuse)
  else:
    # An option that changes nothing.
    monkeypatch.setattr(
      worker_port, '_SO_ATTACH_REUSEPORT_CBPF', socket.SO_KEEPALIVE
    )
    monkeypatch.setattr(
      worker_port, '_filter_program', lambda: (b'\1\0\0\0', None)
    )
    monkeypatch.setattr(worker_port, '_SECONDS_TO_CONNECT', 0.1)
  with runtime.create_runtime('native') as rt:
    _add(rt)
    assert _answers('127.0.0.2', _port_of(psutil.Process(rt.worker_pid)))
