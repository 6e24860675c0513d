"""Child processes that must not outlive their parent."""

from __future__ import annotations

import atexit
import gc
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import types
from collections.abc import Collection, Mapping
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any

from tff_pfl.system import environment as environment_lib


def launch_command(program: str, *arguments: str) -> list[str]:
  """Returns a command that starts a program tied to this process.

  On Linux the kernel kills the program when the thread that starts it or this
  process ends, even by `kill -9` (unless it ends in the milliseconds in which
  the program starts). Each process has to ask for that itself, as util-linux's
  `setpriv` does. Python code between the fork and the program could deadlock,
  because this process has many threads (TensorFlow, gRPC). Systems without
  `setpriv` get the plain command.
  """
  setpriv = shutil.which('setpriv')
  start = [setpriv, '--pdeathsig', 'KILL', '--'] if setpriv else []
  return [*start, program, *arguments]


def start(
  module: str, argument: str, log_path: str, environment: Mapping[str, str]
) -> multiprocessing.process.BaseProcess:
  """Runs a module's `main` in a fork of a process that has imported it.

  Importing TensorFlow and TFF takes 5 s of CPU time. `multiprocessing`'s fork
  server does it once and runs nothing, so its threads are idle. A fork does not
  inherit these threads: computations on TFF's default executor would wait
  forever in it, so create a runtime.

  The fork inherits this process's working directory, environment and
  `sys.path`, but not its main module. Ctrl-C in a terminal does not reach the
  fork. It is killed when this process ends, for any reason.

  Args:
    module: Name of the module.
    argument: Argument of `main`, after the module's name.
    log_path: An existing file, to which the output is appended.
    environment: Variables to add to this process's environment.

  Returns:
    The running process.

  Raises:
    OSError: If the system cannot start the process.
  """
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload([module])
  process = context.Process(
    target=_run,
    args=(module, argument, log_path, {**os.environ, **environment}),
  )
  # The tracker unblocks the signals when it starts, so start it before.
  resource_tracker.ensure_running()
  main = sys.modules['__main__']
  # Otherwise each fork would import and so run the main module again.
  sys.modules['__main__'] = types.ModuleType('__main__')
  # The fork server and its forks inherit the blocked SIGINT.
  signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    try:
      # New Python processes search this process's `sys.path`.
      path = os.pathsep.join(map(os.path.abspath, sys.path))
      with environment_lib.changed({'PYTHONPATH': path, 'PYTHONSAFEPATH': '1'}):
        forkserver.ensure_running()
      process.start()
    finally:
      sys.modules['__main__'] = main
      signal.pthread_sigmask(signal.SIG_SETMASK, signals)
  except EOFError as error:
    raise OSError('the fork server has ended (did memory run out?)') from error
  except KeyboardInterrupt:
    # Ctrl-C came during the start. A notebook continues after it.
    if process.pid is not None:
      process.kill()
    raise
  return process


def _run(module, argument, log_path, environment):
  # What the fork server has imported stays.
  gc.freeze()
  threading.Thread(target=_end_with_parent, daemon=True).start()
  with open(log_path, 'a') as log:
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
  os.environ.clear()
  os.environ.update(environment)
  # The default of programs. Otherwise libraries' locks, such as tqdm's, would
  # be files that a killed process leaves behind.
  multiprocessing.set_start_method('fork', force=True)
  try:
    importlib.import_module(module).main([module, argument])
  finally:
    # `multiprocessing` does not run these.
    atexit._run_exitfuncs()


def _end_with_parent():
  connection.wait([multiprocessing.parent_process().sentinel])
  os.kill(os.getpid(), signal.SIGKILL)


def end(processes: Collection[Any], grace_seconds: float) -> None:
  """Terminates processes, and kills the ones that do not end in time.

  Args:
    processes: Results of `start`, or objects with the same methods.
    grace_seconds: Seconds from SIGTERM to SIGKILL.
  """
  try:
    for process in processes:
      process.terminate()
    deadline = time.monotonic() + grace_seconds
    for process in processes:
      process.join(max(0.0, deadline - time.monotonic()))
  finally:
    # Even a second Ctrl-C leaves no process behind.
    for process in processes:
      process.kill()
    for process in processes:
      process.join()


def describe_return_code(code: int) -> str:
  """Returns how a process ended, as the predicate of a sentence."""
  if code >= 0:
    return f'ended with exit status {code}'
  try:
    name = f'signal {-code} ({signal.Signals(-code).name})'
  except ValueError:
    name = f'signal {-code}'
  if -code == signal.SIGKILL:
    return f'was killed by {name}, perhaps because memory ran out'
  return f'was killed by {name}'
