import errno
import os
import socket
import sys
import threading

import psutil
import pytest

from tff_pfl import errors
from tff_pfl.runtime import worker_port, worker_process

pytestmark = [
  pytest.mark.timeout(30),
  pytest.mark.skipif(
    sys.platform != 'linux', reason='Workers are limited on Linux only.'
  ),
]


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


def test_worker_is_reached_at_the_loopback_address_only_by_default():
  with worker_process.start_worker() as worker:
    assert worker.target == f'127.0.0.1:{worker.port}'
    assert _reachable_at(worker) == ['127.0.0.1']


@pytest.mark.parametrize('address', _addresses_of_this_machine())
def test_worker_is_reached_at_the_given_address_only(address):
  with worker_process.start_worker(host=address) as worker:
    assert _reachable_at(worker) == [address]
    # Not by chance, as the kernel may choose among those who share a port.
    for _ in range(50):
      assert worker_port._answers(address, worker.port)
      other = worker_port._other_loopback(address)
      assert not worker_port._answers(other, worker.port)


def test_ipv6_target_has_brackets():
  with worker_port.WorkerPort('::1', None) as port:
    assert port.target == f'[::1]:{port.number}'


def test_name_stands_for_its_ipv4_address():
  with worker_port.WorkerPort('localhost', None) as port:
    assert port.host == '127.0.0.1'


@pytest.mark.parametrize('address', ['0.0.0.0', '::'])
def test_worker_may_be_reached_at_all_addresses(address):
  with worker_process.start_worker(host=address) as worker:
    assert worker.target == f'127.0.0.1:{worker.port}'
    assert _reachable_at(worker) == _addresses_of_this_machine()


def test_other_connections_end_at_once():
  with worker_process.start_worker() as worker:
    with pytest.raises(ConnectionResetError):
      with socket.create_connection(('127.0.0.2', worker.port), 5) as other:
        other.recv(1)


def test_address_of_another_machine_is_refused():
  with pytest.raises(
    errors.RunError, match='choose an address of this machine'
  ):
    worker_port.WorkerPort('192.0.2.77')


def test_name_without_address_is_refused():
  with pytest.raises(ValueError, match='`address` to be an address'):
    worker_port.WorkerPort('no name at all')


@pytest.mark.parametrize('how', ['refused', 'ignored'])
def test_system_that_cannot_limit_is_told_of_only_if_that_was_asked_for(
  monkeypatch, how
):
  def refuse(_):
    raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))

  if how == 'refused':
    monkeypatch.setattr(worker_port, '_filter_program', refuse)
  else:
    # An option that changes nothing.
    monkeypatch.setattr(
      worker_port, '_SO_ATTACH_REUSEPORT_CBPF', socket.SO_KEEPALIVE
    )
    monkeypatch.setattr(
      worker_port, '_filter_program', lambda _: (b'\1\0\0\0', None)
    )
    monkeypatch.setattr(worker_port, '_SECONDS_TO_ANSWER', 0.1)
  before = threading.active_count()
  with pytest.raises(errors.RunError, match='Could not limit .* 0.0.0.0') as e:
    worker_port.WorkerPort('127.0.0.1')
  assert '\n' not in str(e.value)
  with worker_process.start_worker() as worker:
    assert '127.0.0.2' in _reachable_at(worker)
    assert _reachable_at(worker) == _addresses_of_this_machine()
  assert threading.active_count() == before


def test_worker_that_can_be_reached_elsewhere_is_not_served(monkeypatch):
  monkeypatch.setattr(worker_port.WorkerPort, '_limit', lambda self: None)
  with pytest.raises(errors.RunError, match=r'also answers on 127.0.0.2'):
    worker_process.start_worker(host='127.0.0.1')


@pytest.mark.parametrize(
  ('address', 'parts'),
  [
    ('127.0.0.1:8000', ('127.0.0.1', 8000)),
    ('gpu-1.example:1', ('gpu-1.example', 1)),
    ('[::1]:65535', ('::1', 65535)),
  ],
)
def test_address_is_split(address, parts):
  assert worker_port.split_address(address, 'name') == parts


@pytest.mark.parametrize(
  'address', ['', 'a', ':1', 'a:', 'a:0', 'a:65536', '::1:1', 'x/y:1', 'a b:1']
)
def test_what_is_no_address_is_refused(address):
  with pytest.raises(ValueError, match="`name` to be 'host:port' with a port"):
    worker_port.split_address(address, 'name')
