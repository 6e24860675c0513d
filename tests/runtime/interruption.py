"""Ctrl-C in the middle of a test."""

import contextlib
import os
import signal
import threading
import time

import pytest


@contextlib.contextmanager
def ctrl_c(after_seconds, ends_within_seconds, receiver='process'):
  """Presses Ctrl-C in a block, which must end by that.

  Args:
    after_seconds: How long the block runs undisturbed.
    ends_within_seconds: How long it may take from its beginning.
    receiver: Of the signal: the 'process', of which the system chooses any
      thread, mostly the main one, or a 'thread' that is not the main one.
  """
  previous = signal.signal(signal.SIGINT, signal.default_int_handler)

  def interrupt():
    if receiver == 'process':
      os.kill(os.getpid(), signal.SIGINT)
    else:
      signal.pthread_kill(threading.get_ident(), signal.SIGINT)

  press = threading.Timer(after_seconds, interrupt)
  begin = time.monotonic()
  try:
    press.start()
    with pytest.raises(KeyboardInterrupt):
      yield
  finally:
    signal.signal(signal.SIGINT, previous)
  assert time.monotonic() - begin < ends_within_seconds
