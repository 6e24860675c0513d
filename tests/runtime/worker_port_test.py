import errno
import os
import socket
import sys
import threading

import psutil
import pytest

from tff_pfl.runtime import worker_port, worker_process

pytestmark = [
  pytest.mark.timeout(30),
  pytest.mark.skipif(
    sys.platform != 'linux', reason='Workers are limited on Linux only.'
  ),
]


def _start_worker(**options):
  worker = worker_process.WorkerProcess(**options)
  worker.wait_until_ready()
  return worker


def _addresses_of_this_machine():
  """IP addresses that a connection from here can be made to."""
  found = ['127.0.0.1', '127.0.0.2']
  for addresses in psutil.net_if_addrs().values():
    for address in addresses:
      is_ip = address.family in (socket.AF_INET, socket.AF_INET6)
      if is_ip and '%' not in address.address:
        found.append(address.address)
  reachable = []
  for address in dict.fromkeys(found):
    try:
      with socket.socket(
        socket.AF_INET6 if ':' in address else socket.AF_INET
      ) as probe:
        probe.bind((address, 0))
      reachable.append(address)
    except OSError:
      pass
  return reachable


def _reachable_at(worker):
  return [
    address
    for address in _addresses_of_this_machine()
    if worker_port._answers(address, worker.port)
  ]


def test_worker_is_reached_at_the_loopback_address_only():
  with _start_worker() as worker:
    assert worker.target == f'127.0.0.1:{worker.port}'
    assert _reachable_at(worker) == ['127.0.0.1']
    # Not by chance, as the kernel may choose among those who share a port.
    for _ in range(50):
      assert worker_port._answers('127.0.0.1', worker.port)
      assert not worker_port._answers('127.0.0.2', worker.port)


def test_other_connections_end_at_once():
  with _start_worker() as worker:
    with pytest.raises(ConnectionResetError):
      with socket.create_connection(('127.0.0.2', worker.port), 5) as other:
        other.recv(1)


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
    monkeypatch.setattr(worker_port, '_SECONDS_TO_ANSWER', 0.1)
  before = threading.active_count()
  with _start_worker() as worker:
    assert '127.0.0.2' in _reachable_at(worker)
    assert _reachable_at(worker) == _addresses_of_this_machine()
  assert threading.active_count() == before
