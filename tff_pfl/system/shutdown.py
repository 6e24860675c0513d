"""Clean ends of programs that use TFF."""

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
# Time from a signal to the end of a program that does not notice it.
_SECONDS_TO_NOTICE = 3.0

# The first of `_SIGNALS` that came.
_stop_signal: Optional[int] = None
_is_noticed = False


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
  """Ends a program's block cleanly on Ctrl-C or `kill -TERM`.

  Python's own handler raises an exception anywhere in the main thread: in a
  finalizer, where it is lost, or in a library that takes it for its own error.
  Here a signal is a request, which `raise_if_stopped` turns into an exception
  at a safe place; the program then ends with status 130 (Ctrl-C) or 143. A
  program that does not notice it within some seconds, as it builds a model or
  waits for a library, ends without clean-up, as by `kill -9`, with the same
  status. So does one that gets a second signal, at once. As for all of Python's
  handlers, a call of a library that the main thread is in ends first.

  For the main thread of programs, not for libraries. Signals that are ignored,
  as in programs in a script's background, stay ignored.
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
      # Also if the work is done, or the signal caused an error.
      raise_if_stopped()
  except KeyboardInterrupt:
    _say_interrupted()
    exit_without_waiting(128 + (_stop_signal or signal.SIGINT))


def raise_if_stopped() -> None:
  """Raises `KeyboardInterrupt` if the program was asked to stop.

  To be called between tasks and during waits.
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
  # Without the locks of `threading`, which this thread may hold.
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
  """Ends this program now, with its clean-up, without waiting for threads.

  An ordinary exit would wait, for minutes, for a thread in a computation that
  cannot be cancelled.
  """
  try:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
  finally:
    # In any case, even after a second Ctrl-C.
    os._exit(status)
