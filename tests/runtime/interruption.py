"""Ctrl-C in the middle of a test."""

import contextlib
import os
import signal
import threading
import time

import pytest


@contextlib.contextmanager
def ctrl_c(after_seconds, ends_within_seconds):
  """Presses Ctrl-C in a block, which must end by that.

  Args:
    after_seconds: How long the block runs undisturbed.
    ends_within_seconds: How long it may take from its beginning.
  """
  previous = signal.signal(signal.SIGINT, signal.default_int_handler)
  press = threading.Timer(after_seconds, os.kill, (os.getpid(), signal.SIGINT))
  begin = time.monotonic()
  try:
    press.start()
    with pytest.raises(KeyboardInterrupt):
      yield
  finally:
    signal.signal(signal.SIGINT, previous)
  assert time.monotonic() - begin < ends_within_seconds
