"""Runs code in a fork of a process that has imported the library.

TensorFlow is not initialized there, so that the code may choose its devices.
"""

import os
import textwrap

import tff_pfl.studies.trial  # noqa: F401
from tff_pfl.system import child_processes


def output_of(code: str, directory: os.PathLike) -> str:
  """Runs code in another process, and returns what it prints."""
  log = directory / 'output.txt'
  log.touch()
  process = child_processes.start(__name__, textwrap.dedent(code), log, {})
  process.join(120)
  assert process.exitcode == 0, log.read_text()[-2000:]
  return log.read_text()


def main(argv) -> None:
  """Runs the code, which is the only argument."""
  exec(argv[1], {})
