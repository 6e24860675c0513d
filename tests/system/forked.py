"""Runs code in a fork of a process that has imported the library.

TensorFlow is not initialized there, so that the code may choose its devices.
"""

import contextlib
import json
import os
import textwrap

import tff_pfl.studies.trial  # noqa: F401
from tff_pfl.system import child_processes

# What comes before code that needs three CPU devices.
THREE_CPUS = """
import tensorflow as tf
cpu, = tf.config.list_physical_devices('CPU')
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 3
)
"""


def output_of(
  code: str, directory: os.PathLike, start: str = '', seconds: float = 120
) -> str:
  """Runs code in another process, and returns what it prints."""
  log, output = directory / 'log.txt', directory / 'output.txt'
  log.touch()
  argument = json.dumps([start + textwrap.dedent(code), str(output)])
  process = child_processes.start(__name__, argument, log, {})
  process.join(seconds)
  process.kill()
  assert process.exitcode == 0, log.read_text()[-2000:]
  return output.read_text()


def main(argv) -> None:
  """Runs the code, and writes what it prints to a file."""
  code, path = json.loads(argv[1])
  with open(path, 'w') as file, contextlib.redirect_stdout(file):
    exec(code, {})
