import os
import subprocess
import sys
import tempfile
import time
import types
from concurrent import futures

import grpc
import pytest

from tff_pfl import errors, runtime
from tff_pfl.system import ray_cluster


def test_missing_ray_is_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  with pytest.raises(errors.RunError, match='make venv RAY=1') as error:
    runtime.create_runtime('ray')
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('address', ['127.0.0.1:1', 'ray://127.0.0.1:1'])
def test_cluster_that_does_not_answer_is_reported_at_once(address):
  pytest.importorskip('ray', reason='needs Ray (`make venv RAY=1`)')
  with pytest.raises(errors.RunError, match=f'answers at {address}'):
    ray_cluster.connect(address)


def test_cluster_that_refuses_the_token_is_reported_at_once():
  pytest.importorskip('ray', reason='needs Ray (`make venv RAY=1`)')

  def refuse(_, context):
    context.abort(grpc.StatusCode.UNAUTHENTICATED, 'InvalidAuthToken: it is')

  server = grpc.server(futures.ThreadPoolExecutor(1))
  server.add_generic_rpc_handlers(
    [
      types.SimpleNamespace(
        service=lambda _: grpc.unary_unary_rpc_method_handler(refuse)
      )
    ]
  )
  address = f'127.0.0.1:{server.add_insecure_port("127.0.0.1:0")}'
  server.start()
  with pytest.raises(
    errors.RunError,
    match=f'cluster at {address} refuses this process: InvalidAuthToken: it is',
  ):
    ray_cluster.connect(address)
  server.stop(0)


_PROGRAM = """
import os, psutil, sys
from tff_pfl.system import ray_cluster
ray = ray_cluster.connect()
ray.get(ray.remote(lambda: 1).remote())
processes = psutil.Process().children(recursive=True)
for process in [psutil.Process(), *processes]:
  for connection in process.net_connections('inet'):
    if connection.status == psutil.CONN_LISTEN:
      print(connection.laddr.ip.removeprefix('::ffff:'))
(folder,) = os.scandir(sys.argv[1])
print(oct(folder.stat().st_mode & 0o777), flush=True)
if sys.argv[2:]:
  # As a program that does not notice the request to stop.
  os._exit(143)
"""


@pytest.mark.slow
@pytest.mark.parametrize('end', [[], ['at once']])
def test_ray_of_a_program_is_for_that_program_alone(tmp_path, end):
  pytest.importorskip('ray', reason='needs Ray (`make venv RAY=1`)')
  folder = tempfile.mkdtemp()
  environment = {**os.environ, 'TMPDIR': folder, 'HOME': str(tmp_path)}
  program = subprocess.run(
    [sys.executable, '-c', _PROGRAM, folder, *end],
    stdout=subprocess.PIPE,
    text=True,
    env=environment,
    check=False,
  )
  assert program.returncode == (143 if end else 0)
  *addresses, mode = program.stdout.split()
  assert {*addresses} == {'127.0.0.1'}
  assert mode == '0o700'
  # Neither a token nor a session stays behind.
  assert not (tmp_path / '.ray').exists()
  deadline = time.monotonic() + (20 if end else 0)
  while os.listdir(folder) and time.monotonic() < deadline:
    time.sleep(0.1)
  os.rmdir(folder)


def test_checksum_is_of_the_code(monkeypatch):
  assert ray_cluster.code_checksum() == ray_cluster.code_checksum()
  before = ray_cluster.code_checksum()
  monkeypatch.setattr(sys, 'version_info', (3, 99))
  assert ray_cluster.code_checksum() != before
