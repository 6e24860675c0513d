"""Stands in for `trial`, which imports TensorFlow first."""

import os
import sys

SCRIPT_NAME = 'script.py'


def main(argv):
  """Executes the script beside the trials, with the folder as its argument."""
  sys.argv = argv
  trials = os.path.dirname(argv[1])
  with open(os.path.join(os.path.dirname(trials), SCRIPT_NAME)) as script:
    exec(script.read(), {})
