"""How a program that uses TFF ends cleanly."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn, Optional

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# From a signal to the end of a program that has not looked whether to stop.
_SECONDS_TO_NOTICE = 3.0

# The first of `_SIGNALS` that came.
_stop_signal: Optional[int] = None
_is_noticed = threading.Event()


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
  """What a program does in this block ends by Ctrl-C or `kill -TERM`, cleanly.

  Python's own handler raises an exception wherever the main thread is: in a
  finalizer, where it is lost, or in a library that takes it for an error of its
  own. Here a signal is a request, which `raise_if_stopped` turns into an
  exception where that is safe; the program then ends with status 130 (Ctrl-C)
  or 143. One that does not look within some seconds, as it builds a model or
  waits for a library, ends without its clean-up, as by `kill -9`, with the same
  status. So does one that gets a second signal, at once (or, inside a library
  that lets no other thread run, after that).

  For the main thread of programs, not for libraries. Signals that are ignored,
  as of programs in a script's background, stay so.
  """
  receiver, sender = os.pipe()
  os.set_blocking(sender, False)
  watcher = threading.Thread(target=_watch, args=(receiver,), daemon=True)
  watcher.start()
  # Written to at once, whichever thread receives a signal and whatever the main
  # one does.
  previous_fd = signal.set_wakeup_fd(sender)
  previous = {number: signal.getsignal(number) for number in _SIGNALS}
  for number, handler in previous.items():
    if handler != signal.SIG_IGN:
      signal.signal(number, lambda *_: None)
  try:
    try:
      yield
    finally:
      for number, handler in previous.items():
        signal.signal(number, handler)
      signal.set_wakeup_fd(previous_fd)
      os.close(sender)
      watcher.join()
      # Also where the work is done, or an error came of the signal.
      raise_if_stopped()
  except KeyboardInterrupt:
    _say_interrupted()
    exit_without_waiting(128 + (_stop_signal or signal.SIGINT))


def raise_if_stopped() -> None:
  """Raises `KeyboardInterrupt` in a program that was asked to stop.

  To be called where work is handed out or waited for.
  """
  if _stop_signal is not None:
    _is_noticed.set()
    raise KeyboardInterrupt


def _watch(receiver: int) -> None:
  """Takes the signals' numbers from the pipe."""
  global _stop_signal
  with open(receiver, 'rb', buffering=0) as numbers:
    while byte := numbers.read(1):
      if byte[0] in _SIGNALS:
        if _stop_signal is not None:
          os._exit(128 + byte[0])
        _stop_signal = byte[0]
        threading.Thread(target=_end_unless_noticed, daemon=True).start()


def _end_unless_noticed() -> None:
  if not _is_noticed.wait(_SECONDS_TO_NOTICE):
    _say_interrupted()
    os._exit(128 + _stop_signal)


def _say_interrupted() -> None:
  if _stop_signal != signal.SIGTERM:
    with contextlib.suppress(OSError):
      print('interrupted', file=sys.stderr, flush=True)


def exit_without_waiting(status: int) -> NoReturn:
  """Ends this program now, with its clean-up but without its other threads.

  A thread may be in a computation that cannot be cancelled, and an ordinary
  exit would wait for it, for minutes.
  """
  try:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
  finally:
    # Whatever else happens, a second Ctrl-C included.
    os._exit(status)
