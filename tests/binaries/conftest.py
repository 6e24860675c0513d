"""Runs the programs as processes, without importing TensorFlow for each.

A server process imports the library once and forks itself for every program,
which then runs as `python -m binaries.NAME` would: its own process, arguments,
working directory, stdout, stderr, signals and exit status. XLA is left out,
which takes seconds to compile models of this size, the rewriting of graphs, and
the pictures of reports.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.binaries import tiny

_ROOT = pathlib.Path(__file__).parents[2]
_SERVER = """
import atexit, gc, json, os, runpy, signal, sys, traceback
import binaries
import matplotlib.pyplot, sklearn.datasets, tensorflow as tf
from tff_pfl.export import saved_model, tff_files, tflite
from tff_pfl.models import split_model
from tff_pfl.runs import evaluation, report, settings
from tff_pfl.studies import page, runner

split_model.SplitModel.uses_xla = False
# Pictures of reports are tested elsewhere.
report._write_pictures = lambda *_: None
# As tests/conftest.py does.
tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20)

def execute(request):
  os.setsid()
  # As `binaries/__init__.py` does; it may be ignored where the tests run in the
  # background.
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  os.chdir(request['cwd'])
  for number, path in enumerate([os.devnull, request['out'], request['err']]):
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
    os.dup2(os.open(path, flags, 0o600), number)
  sys.argv = [request['program'], *request['arguments']]
  try:
    runpy.run_module(
      'binaries.' + request['program'], run_name='__main__', alter_sys=True
    )
    return 0
  except SystemExit as error:
    if isinstance(error.code, str):
      print(error.code, file=sys.stderr)
      return 1
    return error.code or 0
  except BaseException:
    traceback.print_exc()
    return 1

for line in sys.stdin:
  request = json.loads(line)
  if 'wait' in request:
    answer = os.waitpid(request['wait'], 0)[1]
  else:
    answer = os.fork()
    if not answer:
      status = execute(request)
      atexit._run_exitfuncs()
      sys.stdout.flush()
      sys.stderr.flush()
      os._exit(status)
  print(json.dumps(answer), flush=True)
"""
_SECONDS = 120


class _Server:
  """The process that programs are forked from."""

  def __init__(self):
    self._process = subprocess.Popen(
      [sys.executable, '-c', _SERVER],
      cwd=_ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )

  def ask(self, **request):
    self._process.stdin.write(json.dumps(request) + '\n')
    self._process.stdin.flush()
    answer = self._process.stdout.readline()
    assert answer, 'The server of the programs has ended.'
    return json.loads(answer)

  def close(self):
    self._process.stdin.close()
    self._process.wait(_SECONDS)


@dataclasses.dataclass
class Result:
  """How a program ended.

  Attributes:
    status: The exit status; of a killed program, minus the signal.
    out: What it wrote to stdout.
    err: What it wrote to stderr.
  """

  status: int
  out: str
  err: str

  @property
  def error(self) -> str:
    """The one line of an expected error, without `error: `."""
    assert self.status == 1, self
    assert 'Traceback' not in self.err, self.err
    lines = self.err.replace('\r', '\n').split('\n')
    (line,) = [line for line in lines if line.startswith('error:')]
    # Nothing follows, and nothing but the progress bar precedes it.
    assert lines[-2:] == [line, ''], self.err
    return line[len('error: ') :]


class Program:
  """A running program."""

  def __init__(self, server, program, arguments, cwd, folder):
    self._server = server
    self._paths = [folder / 'stdout', folder / 'stderr']
    for path in self._paths:
      path.touch()
    self.pid = server.ask(
      program=program,
      arguments=[str(argument) for argument in arguments],
      cwd=str(cwd),
      out=str(self._paths[0]),
      err=str(self._paths[1]),
    )

  def is_running(self) -> bool:
    """Whether it has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
      return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
    return False

  def workers(self) -> list[psutil.Process]:
    """Its child processes."""
    with contextlib.suppress(psutil.NoSuchProcess):
      return psutil.Process(self.pid).children(recursive=True)
    return []

  def kill(self, signal_number: int) -> None:
    """Sends a signal, to this process alone."""
    os.kill(self.pid, signal_number)

  def wait(self, seconds: float = _SECONDS) -> Result:
    """Waits for its end."""
    deadline = time.monotonic() + seconds
    while self.is_running():
      if time.monotonic() > deadline:
        self.kill(signal.SIGKILL)
        self._server.ask(wait=self.pid)
        raise AssertionError(
          f'The program did not end; stderr: {self._paths[1].read_text()}'
        )
      time.sleep(0.01)
    status = self._server.ask(wait=self.pid)
    return Result(
      os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status),
      *(path.read_text() for path in self._paths),
    )


class Programs:
  """Starts programs; paths given to them are relative to `directory`."""

  def __init__(self, server, directory: pathlib.Path):
    self._server = server
    self.directory = directory
    self._num_started = 0

  def start(self, program: str, *arguments, cwd=None) -> Program:
    """Starts `binaries.PROGRAM` with these arguments."""
    self._num_started += 1
    folder = self.directory / f'.output_{self._num_started}'
    folder.mkdir()
    return Program(
      self._server, program, arguments, cwd or self.directory, folder
    )

  def run(self, program: str, *arguments, cwd=None) -> Result:
    """Runs it to its end, however that is."""
    return self.start(program, *arguments, cwd=cwd).wait()

  def succeed(self, program: str, *arguments, cwd=None) -> Result:
    """Runs it and expects success."""
    result = self.run(program, *arguments, cwd=cwd)
    assert result.status == 0, result.err
    assert 'Traceback' not in result.err, result.err
    return result

  def fail(self, program: str, *arguments, cwd=None) -> str:
    """Runs it, expects an expected error and returns its line."""
    return self.run(program, *arguments, cwd=cwd).error


@pytest.fixture(scope='session', name='_server')
def _server_fixture():
  server = _Server()
  yield server
  server.close()


@pytest.fixture
def programs(_server, tmp_path):
  """Runs programs in `tmp_path`."""
  return Programs(_server, tmp_path)


@pytest.fixture(scope='module')
def module_programs(_server, tmp_path_factory):
  """Runs programs in a folder that a module's tests share."""
  return Programs(_server, tmp_path_factory.mktemp('programs'))


@pytest.fixture(scope='session')
def fed_rep_run(_server, tmp_path_factory):
  """The folder of a run of FedRep."""
  programs = Programs(_server, tmp_path_factory.mktemp('fed_rep'))
  programs.succeed('train', *tiny.FLAGS, '--output_dir=run')
  return programs.directory / 'run'
