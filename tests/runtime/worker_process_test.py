import os
import pathlib
import socket
import threading
import time

import psutil
import pytest

from tff_pfl import errors
from tff_pfl.runtime import worker_process
from tff_pfl.system import cores

pytestmark = pytest.mark.timeout(30)


def _start_worker(**options):
  worker = worker_process.WorkerProcess(**options)
  worker.wait_until_ready()
  return worker


def _program(folder: pathlib.Path, script: str) -> str:
  """Returns the path of a shell program that stands in for the worker."""
  path = folder / 'worker'
  path.write_text(f'#!/bin/sh\n{script}\n')
  path.chmod(0o755)
  return str(path)


def _is_gone(pid: int) -> bool:
  return not psutil.pid_exists(pid)


def test_worker_answers_and_is_gone_after_the_block():
  with _start_worker() as worker:
    assert worker.is_running
    with socket.create_connection(('127.0.0.1', worker.port), timeout=5):
      pass
  assert not worker.is_running
  assert _is_gone(worker.pid)


def test_stop_may_be_called_again():
  worker = _start_worker()
  worker.stop()
  worker.stop()
  assert _is_gone(worker.pid)


def test_worker_outlives_the_thread_that_asked_for_it():
  workers = []
  thread = threading.Thread(target=lambda: workers.append(_start_worker()))
  thread.start()
  thread.join()
  with workers[0] as worker:
    assert not worker.wait(0.5)


def test_worker_is_in_another_process_group_than_its_owner():
  with _start_worker() as worker:
    assert os.getpgid(worker.pid) != os.getpgid(0)


def test_worker_holds_neither_stdin_nor_stdout_nor_stderr_of_its_owner():
  with _start_worker() as worker:
    ours = [os.readlink(f'/proc/self/fd/{fd}') for fd in (1, 2)]
    theirs = [os.readlink(f'/proc/{worker.pid}/fd/{fd}') for fd in range(3)]
  assert theirs[0] == '/dev/null'
  assert theirs[1] not in ours
  assert theirs[1] == theirs[2]


def test_cores_are_divided_among_concurrent_clients(monkeypatch):
  monkeypatch.delenv('TF_NUM_INTRAOP_THREADS', raising=False)
  monkeypatch.setattr(cores, 'num_usable_cores', lambda: 8)

  def threads(**options):
    with _start_worker(**options) as worker:
      environment = psutil.Process(worker.pid).environ()
    return environment['TF_NUM_INTRAOP_THREADS']

  assert threads() == '1'
  assert threads(max_concurrent_clients=2) == '4'
  monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '3')
  assert threads() == '3'


def test_no_concurrent_clients_are_refused():
  with pytest.raises(ValueError, match='Expected `max_concurrent_clients`'):
    _start_worker(max_concurrent_clients=0)


def test_missing_binary_is_reported(tmp_path):
  with pytest.raises(errors.RunError, match='does not exist'):
    _start_worker(binary=str(tmp_path / 'nothing'))


def test_binary_that_is_not_executable_is_reported(tmp_path):
  path = tmp_path / 'worker'
  path.write_text('')
  path.chmod(0o644)
  with pytest.raises(errors.RunError, match='is not executable'):
    _start_worker(binary=str(path))


def test_binary_of_another_kind_of_machine_is_reported(tmp_path):
  path = tmp_path / 'worker'
  path.write_bytes(b'\x7fELF of another machine')
  path.chmod(0o755)
  with pytest.raises(errors.RunError, match='Exec format error'):
    _start_worker(binary=str(path))


def test_worker_that_ends_at_once_is_reported_with_its_last_error(tmp_path):
  error = '2023-01-02 03:04:05.678901: F some/file.cc:12] Disk on fire'
  info = '2023-01-02 03:04:05.678902: I some/file.cc:13] Good bye'
  binary = _program(tmp_path, f'echo "{error}"; echo "{info}" >&2; exit 3')
  with pytest.raises(worker_process.WorkerDiedError) as caught:
    _start_worker(binary=binary)
  message = str(caught.value)
  assert 'ended with exit status 3' in message
  assert "its last message: 'Disk on fire'" in message
  assert '\n' not in message


def test_worker_that_does_not_answer_is_stopped(tmp_path):
  binary = _program(tmp_path, f'echo $$ > {tmp_path}/pid; exec sleep 60')
  begin = time.monotonic()
  with pytest.raises(errors.RunError, match='did not answer on port'):
    worker_process.WorkerProcess(binary=binary).wait_until_ready(1.0)
  assert time.monotonic() - begin < 10
  assert _is_gone(int((tmp_path / 'pid').read_text()))


def test_worker_that_ignores_sigterm_is_killed(tmp_path):
  binary = _program(
    tmp_path, f'trap "" TERM; echo > {tmp_path}/up; while :; do sleep 0.1; done'
  )
  worker = worker_process.WorkerProcess(binary=binary)
  while not (tmp_path / 'up').exists():
    time.sleep(0.01)
  worker.stop(grace_seconds=0.3)
  assert _is_gone(worker.pid)


def test_death_is_described_in_one_line():
  with _start_worker() as worker:
    assert worker.describe_end().endswith('is running.')
    psutil.Process(worker.pid).kill()
    assert worker.wait(5)
    assert 'was killed by signal 9 (SIGKILL)' in worker.describe_end()
    assert '\n' not in worker.describe_end()


def test_what_computations_print_reaches_stderr_and_log_lines_do_not(
  tmp_path, capfd
):
  log_line = '2023-01-02 03:04:05.678901: I some/file.cc:12] Serving'
  binary = _program(tmp_path, f'echo "{log_line}"; echo loss is 0.5')
  with worker_process.WorkerProcess(binary=binary) as worker:
    assert worker.wait(5)
  captured = capfd.readouterr()
  assert captured.err == 'loss is 0.5\n'
  assert captured.out == ''


def test_log_kept_for_reports_is_bounded(tmp_path, capfd):
  script = (
    "i=0; while [ $i -lt 3000 ]; do printf '%05000d\\n' $i; i=$((i+1)); done"
  )
  binary = _program(tmp_path, script)
  with worker_process.WorkerProcess(binary=binary) as worker:
    assert worker.wait(20)
    kept = sum(map(len, worker._log))
    assert len(worker.describe_end()) < 500
  assert 0 < kept < 300_000
  capfd.readouterr()
