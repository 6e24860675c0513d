"""Runs code in a fork of a process that has imported the library.

TensorFlow is not initialized there, so that the code may choose its devices.
"""

import contextlib
import json
import os
import textwrap

import tff_pfl.studies.trial  # noqa: F401
from tff_pfl.system import child_processes


def output_of(code: str, directory: os.PathLike) -> str:
  """Runs code in another process, and returns what it prints."""
  log, output = directory / 'log.txt', directory / 'output.txt'
  log.touch()
  argument = json.dumps([textwrap.dedent(code), str(output)])
  process = child_processes.start(__name__, argument, log, {})
  process.join(120)
  process.kill()
  assert process.exitcode == 0, log.read_text()[-2000:]
  return output.read_text()


def main(argv) -> None:
  """Runs the code, and writes what it prints to a file."""
  code, path = json.loads(argv[1])
  with open(path, 'w') as file, contextlib.redirect_stdout(file):
    exec(code, {})
