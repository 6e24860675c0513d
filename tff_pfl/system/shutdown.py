"""Clean exits of programs that use TFF."""

import _thread
import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn, Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Time between a signal and the end of a program that does not notice it.
_SECONDS_TO_NOTICE = 3.0

# The first of `_SIGNALS` that arrived.
_stop_signal: Optional[int] = None
_is_noticed = False


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
  """Ends a program's block cleanly on Ctrl-C or `kill -TERM`.

  Python's own handler raises an exception anywhere in the main thread: in a
  finalizer, where it is lost, or in a library that mistakes it for its own
  error. Here a signal is only a request. `raise_if_stopped` turns it into an
  exception at a safe place, and the program ends with status 130 (Ctrl-C) or
  143. A program that does not notice the request within 3 seconds, because it
  builds a model or waits for a library, ends with this status but without
  clean-up, as after `kill -9`. A second signal does the same at once. Like all
  Python handlers, these wait for a library call in the main thread to return.

  Use this in the main thread of programs, not in libraries. Ignored signals, as
  in a script's background programs, stay ignored.
  """
  previous = {number: signal.getsignal(number) for number in _SIGNALS}
  for number, handler in previous.items():
    if handler != signal.SIG_IGN:
      signal.signal(number, _request_stop)
  try:
    try:
      yield
    finally:
      for number, handler in previous.items():
        signal.signal(number, handler)
      # Even if the work is done, or the signal caused an error.
      raise_if_stopped()
  except KeyboardInterrupt:
    _say_interrupted()
    exit_without_waiting(128 + (_stop_signal or signal.SIGINT))


def raise_if_stopped() -> None:
  """Raises `KeyboardInterrupt` if the program was asked to stop.

  Call it between tasks and during waits.
  """
  global _is_noticed
  if _stop_signal is not None:
    _is_noticed = True
    raise KeyboardInterrupt


def _request_stop(number: int, _: object) -> None:
  global _stop_signal
  if _stop_signal is not None:
    os._exit(128 + number)
  _stop_signal = number
  # `threading` would take locks that this thread may hold.
  _thread.start_new_thread(_end_unless_noticed, ())


def _end_unless_noticed() -> None:
  time.sleep(_SECONDS_TO_NOTICE)
  if not _is_noticed:
    _say_interrupted()
    os._exit(128 + _stop_signal)


def _say_interrupted() -> None:
  if _stop_signal != signal.SIGTERM:
    with contextlib.suppress(OSError):
      print('interrupted', file=sys.stderr, flush=True)


def exit_without_waiting(status: int) -> NoReturn:
  """Cleans up and ends this program now, without waiting for threads.

  An ordinary exit could wait minutes for a thread whose computation cannot be
  canceled.
  """
  try:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
  finally:
    # Even after a second Ctrl-C.
    os._exit(status)
