"""Connections to a Ray cluster, which may be a new one on this machine."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import pathlib
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from typing import Any, Optional

import grpc

from tff_pfl import errors
from tff_pfl.system import cores, environment, program_cache

_SECONDS_TO_ANSWER = 10.0
_OF_HEAD = 'NodeInfoGcsService/GetClusterId'
# Its stdin closes when the program ends. Ray's processes end at the same time,
# but may still write into the folder.
_REMOVER = """
import os, shutil, sys, time
sys.stdin.read()
for _ in range(100):
  shutil.rmtree(sys.argv[1], ignore_errors=True)
  time.sleep(0.05)
  if not os.path.exists(sys.argv[1]):
    break
"""
# The address of this program's own Ray.
LOCAL = 'local'

_lock = threading.Lock()
_connected: dict[str, str] = {}


def connect(address: str = LOCAL) -> Any:
  """Connects this process to a cluster, once, and returns the module `ray`.

  Args:
    address: 'local' starts this process's own Ray on all usable cores and GPUs.
      It ends with the process and serves no other: it listens on 127.0.0.1
      (unless Ray was imported before), asks for a token and keeps its files in
      a private folder. 'auto' is the cluster that runs on this machine. Other
      clusters are 'host:port', or 'ray://host:port' from outside.

  Raises:
    RunError: If Ray is not installed or does not answer.
  """
  # Ray sends usage statistics only if the user asks for it.
  os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
  if address == LOCAL:
    # Makes Ray listen on 127.0.0.1. Ray reads it when it is imported.
    os.environ.setdefault('RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER', '0')
    # Otherwise Ray writes a token to the home folder, where all users can read
    # it.
    os.environ.setdefault('RAY_AUTH_TOKEN', secrets.token_hex(32))
  try:
    import ray
  except ImportError as error:
    raise errors.RunError(
      'Ray is not installed; `make venv RAY=1` adds it to the environment.'
    ) from error
  with _lock:
    errors.expect(
      _connected.get('address', address) == address or not ray.is_initialized(),
      'address',
      f'{_connected.get("address")}, to which this process is connected',
      address,
    )
    if not ray.is_initialized():
      _initialize(ray, address)
    _connected['address'] = address
  return ray


def _initialize(ray: Any, address: str) -> None:
  options = {}
  if address == LOCAL:
    # Ray's own folder is open to all users, but the one around it is private.
    folder = tempfile.mkdtemp(prefix='ray-')
    _remove_at_end(folder)
    options = {
      '_temp_dir': os.path.join(folder, 'ray'),
      'num_cpus': cores.num_usable_cores(),
      'include_dashboard': False,
    }
  else:
    _expect_answer(address)
    # The cluster may have been started from another environment.
    root = str(pathlib.Path(__file__).resolve().parents[2])
    options = {
      'runtime_env': {
        'py_executable': sys.executable,
        'env_vars': {'PYTHONPATH': root},
      }
    }
  terminate = signal.getsignal(signal.SIGTERM)
  try:
    # Actors divide the cores otherwise, which changes compiled programs.
    with (
      warnings.catch_warnings(),
      environment.changed(program_cache.without()),
    ):
      # jax warns about forks, which Ray's processes are only for a moment.
      warnings.filterwarnings('ignore', r'os\.fork\(\) was', RuntimeWarning)
      ray.init(
        address,
        logging_level='ERROR',
        log_to_driver=False,
        **options,
      )
  except Exception as error:  # Ray raises any exception of its parts.
    if address == 'auto':
      # This passes if Ray has found the token in the meantime.
      from ray._private import services

      _expect_admission(services.canonicalize_bootstrap_address(address))
    raise errors.RunError(
      f'Cannot connect to Ray at {address!r}: {" ".join(str(error).split())}'
    ) from error
  finally:
    # Ray installs its own handler, which would replace the program's.
    if threading.current_thread() is threading.main_thread():
      signal.signal(signal.SIGTERM, terminate)
  atexit.register(ray.shutdown)


def _remove_at_end(folder: str) -> None:
  """Makes another process remove a folder after this one has ended.

  An unnoticed request to stop, or `kill -9`, leaves this process no time for
  that.
  """
  remover = subprocess.Popen(
    [sys.executable, '-I', '-S', '-c', _REMOVER, folder],
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )

  def remove():
    remover.stdin.close()
    # Another child process may still hold this end of the pipe.
    with contextlib.suppress(subprocess.TimeoutExpired):
      remover.wait(10)

  atexit.register(remove)


def _expect_answer(address: str) -> None:
  """Raises `RunError` if no cluster answers or it refuses this process.

  Ray itself would wait for minutes and give no reason.

  Args:
    address: The argument of `connect`. 'auto' is not checked.
  """
  host, separator, port = address.removeprefix('ray://').rpartition(':')
  if not separator or not port.isdecimal():
    return
  try:
    socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
  except (OSError, OverflowError) as error:
    raise errors.RunError(
      f'No Ray cluster answers at {address}: {error}. Is it running, and is '
      'its port open to this machine?'
    ) from error
  _expect_admission(
    f'{host}:{port}',
    'RayletDriver/ClusterInfo' if address.startswith('ray://') else _OF_HEAD,
  )


def _expect_admission(address: Optional[str], method: str = _OF_HEAD) -> None:
  """Raises `RunError` if the cluster at 'host:port' refuses the token.

  Args:
    address: The address, or None if it is unknown.
    method: Service and name of a call that the server at the address has.
  """
  from ray._private import grpc_utils

  if address is None:
    return
  with grpc_utils.init_grpc_channel(address) as channel:
    call = channel.unary_unary(f'/ray.rpc.{method}')
    try:
      call(b'', timeout=_SECONDS_TO_ANSWER)
    except grpc.RpcError as error:
      if error.code() == grpc.StatusCode.UNAUTHENTICATED:
        raise errors.RunError(
          f'The Ray cluster at {address} refuses this process: '
          f'{error.details()}. Set RAY_AUTH_MODE=token and the token of the '
          'cluster (RAY_AUTH_TOKEN or ~/.ray/auth_token).'
        ) from error


def code_checksum() -> str:
  """Returns a checksum of this library's code and the versions it runs on.

  Processes with different checksums may compute different results.
  """
  import tensorflow as tf

  from tff_pfl import tff_api as tff

  checksum = hashlib.sha256(
    repr((sys.version_info[:2], platform.machine(), tf.__version__)).encode()
  )
  checksum.update(tff.__version__.encode())
  package = pathlib.Path(__file__).parents[1]
  for path in sorted(package.rglob('*.py')):
    checksum.update(str(path.relative_to(package)).encode())
    checksum.update(path.read_bytes())
  return checksum.hexdigest()[:16]
