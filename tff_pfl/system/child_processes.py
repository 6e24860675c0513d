"""Processes that must not outlive the one that starts them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Optional

_LAUNCHER = os.path.join(os.path.dirname(__file__), 'child_launcher.py')
_FORK_SERVER = os.path.join(os.path.dirname(__file__), 'fork_server.py')


def launch_command(program: str, *arguments: str) -> list[str]:
  """Returns a command that starts a program tied to this process.

  On Linux the kernel kills the program when this process ends, even by
  `kill -9` (see `child_launcher`); elsewhere it is the plain command.
  """
  command = [program, *arguments]
  if sys.platform == 'linux' and sys.executable:
    launcher = [sys.executable, '-I', '-S', _LAUNCHER, str(os.getpid())]
    return launcher + command
  return command


class ForkServer:
  """Runs of a module's `main` in forks of a process that has imported it.

  One at a time. `poll`, `wait`, `terminate` and `kill` act on the run that was
  started last, like those of `subprocess.Popen`.

  Attributes:
    returncode: Exit status of the last run; None while it runs, 0 before the
      first.
  """

  def __init__(self, module: str, environment: Mapping[str, str]):
    """Starts the process, which imports the module in its first run.

    Args:
      module: Name of the module.
      environment: All variables of its environment.
    """
    self._server = subprocess.Popen(
      launch_command(sys.executable, _FORK_SERVER, module),
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env=environment,
      # Ctrl-C in a terminal reaches this process alone.
      start_new_session=True,
    )
    self.returncode: Optional[int] = 0

  def start(self, log_path: str, *arguments: str) -> None:
    """Starts a run.

    Args:
      log_path: An existing file, to which the run's output is appended.
      *arguments: Arguments of `main`.
    """
    self.returncode = None
    self._server.stdin.write(json.dumps([log_path, *arguments]).encode())
    self._server.stdin.write(b'\n')
    self._server.stdin.flush()

  def is_free(self) -> bool:
    """Returns True if a run can start: none is going, no kill came."""
    return self.returncode is not None and self._server.poll() is None

  def poll(self) -> Optional[int]:
    """Returns the exit status if the run has ended, else None."""
    return self.wait(0)

  def wait(self, timeout: Optional[float] = None) -> Optional[int]:
    """Waits for the end of the run, at most `timeout` seconds."""
    if self.returncode is None:
      output = self._server.stdout
      if select.select([output], [], [], timeout)[0]:
        # The server may have ended itself.
        self.returncode = int(output.readline() or self._server.wait())
    return self.returncode

  def terminate(self) -> None:
    """Asks the run to end."""
    if self.returncode is None:
      os.killpg(self._server.pid, signal.SIGTERM)

  def kill(self) -> None:
    """Ends the run and the server."""
    if self.returncode is None:
      self.returncode = -signal.SIGKILL
    self._server.kill()
    # When the output ends, the child has ended, too.
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._server.communicate(timeout=10)


def describe_return_code(code: int) -> str:
  """Describes the end of a process, to follow its name in a sentence."""
  if code >= 0:
    return f'ended with exit status {code}'
  try:
    name = f'signal {-code} ({signal.Signals(-code).name})'
  except ValueError:
    name = f'signal {-code}'
  if -code == signal.SIGKILL:
    return f'was killed by {name}, perhaps because memory ran out'
  return f'was killed by {name}'
