"""Processes that must not outlive the one that starts them."""

import os
import signal
import sys

_LAUNCHER = os.path.join(os.path.dirname(__file__), 'child_launcher.py')


def launch_command(program: str, *arguments: str) -> list[str]:
  """Returns the command that starts a program, tied to us where possible.

  On Linux the kernel kills it when this process ends, by `kill -9` too (see
  `child_launcher`).
  """
  command = [program, *arguments]
  if sys.platform == 'linux' and sys.executable:
    launcher = [sys.executable, '-I', '-S', _LAUNCHER, str(os.getpid())]
    return launcher + command
  return command


def describe_return_code(code: int) -> str:
  """Returns how a process ended, to follow its name in a sentence."""
  if code >= 0:
    return f'ended with exit status {code}'
  try:
    name = f'signal {-code} ({signal.Signals(-code).name})'
  except ValueError:
    name = f'signal {-code}'
  if -code == signal.SIGKILL:
    return f'was killed by {name}, perhaps because memory ran out'
  return f'was killed by {name}'
