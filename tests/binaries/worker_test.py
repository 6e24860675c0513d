import re
import signal
import socket
import time

import psutil
import pytest

from tff_pfl.runtime import worker_port

pytestmark = pytest.mark.timeout(120)

_READY = re.compile(r'TFF worker ready at (\S+) \(process (\d+)\)\n')
_TRAIN = (
  'train',
  '--algorithm=fed_rep',
  '--dataset=synthetic',
  '--num_clients=4',
  '--cohort_size=4',
  '--model_widths=4',
  '--num_rounds=2',
  '--num_final_evaluations=1',
)


def _free_address():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return f'127.0.0.1:{probe.getsockname()[1]}'


@pytest.fixture(name='start')
def _start_fixture(programs):
  """Starts a worker; returns the program and the worker's process id."""
  started = []

  def start(address, *arguments):
    program = programs.start('worker', f'--address={address}', *arguments)
    started.append(program)
    deadline = time.monotonic() + 30
    while not (ready := _READY.fullmatch(program.stdout())):
      assert program.is_running()
      assert time.monotonic() < deadline
      time.sleep(0.02)
    assert ready[1] == address
    return program, int(ready[2])

  yield start
  for program in started:
    if program.is_running():
      program.kill(signal.SIGKILL)
      program.wait()


@pytest.mark.parametrize(
  ('signal_number', 'status', 'message'),
  [
    (signal.SIGINT, 130, 'interrupted\n'),
    pytest.param(signal.SIGTERM, 143, '', marks=pytest.mark.slow),
    pytest.param(signal.SIGKILL, -signal.SIGKILL, '', marks=pytest.mark.slow),
  ],
)
def test_worker_serves_until_a_signal_and_leaves_no_process(
  start, signal_number, status, message
):
  address = _free_address()
  program, worker_pid = start(address)
  assert worker_port._answers(*worker_port.split_address(address, 'address'))
  assert not worker_port._answers('127.0.0.2', int(address.split(':')[1]))
  begin = time.monotonic()
  program.kill(signal_number)
  result = program.wait()
  assert time.monotonic() - begin < 3
  assert (result.status, result.err) == (status, message)
  deadline = time.monotonic() + 5
  while psutil.pid_exists(worker_pid):
    assert time.monotonic() < deadline
    time.sleep(0.02)


def test_help_says_that_connections_are_not_encrypted_and_how_to_tunnel(
  programs,
):
  help_text = programs.succeed('worker', '--help').out
  assert 'neither encrypted nor authenticated' in help_text
  assert re.search(r'ssh .*-L 127.0.0.1:8001:127.0.0.1:8000 ', help_text)
  assert '--address:' in help_text


@pytest.mark.parametrize(
  ('address', 'message'),
  [
    ('8000', "`--address` to be 'host:port'"),
    ('127.0.0.1:0', "`--address` to be 'host:port'"),
    ('192.0.2.77:8000', 'choose an address of this machine'),
  ],
)
def test_wrong_address_is_an_error(programs, address, message):
  assert message in programs.fail('worker', f'--address={address}')


def test_training_on_two_workers(programs, start):
  addresses = [_free_address(), _free_address()]
  started = [start(address)[0] for address in addresses]
  programs.succeed(
    *_TRAIN,
    '--output_dir=run',
    '--runtime=remote',
    f'--workers={",".join(addresses)}',
  )
  assert (programs.directory / 'run' / 'summary.json').exists()
  for program in started:
    program.kill(signal.SIGTERM)
    assert program.wait().status == 143


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--runtime=remote'], 'Expected --workers=host:port'),
    (['--workers=127.0.0.1:1'], '--runtime=remote only'),
    (['--runtime=remote', '--workers=127.0.0.1'], "to be 'host:port'"),
    (['--runtime=remote', '--workers=a:1,a:1'], 'different addresses'),
  ],
)
def test_wrong_workers_of_a_run_are_an_error(programs, flags, message):
  error = programs.fail(*_TRAIN, '--output_dir=run', *flags)
  assert message in error
  assert not (programs.directory / 'run').exists()
