"""Child processes for tests that measure memory."""

import contextlib
import subprocess
import sys

_HOLD = """
import sys
held = b'x' * ({megabytes} * 2**20)
print('held', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(megabytes):
  """A child process that holds so much memory, which the block can use."""
  with subprocess.Popen(
    [sys.executable, '-c', _HOLD.format(megabytes=megabytes)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as child:
    assert child.stdout.readline() == b'held\n'
    yield
    child.stdin.close()
