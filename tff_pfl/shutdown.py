"""How a program that uses TFF ends cleanly."""

import atexit
import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn, Optional

EXIT_STATUS_SIGTERM = 128 + signal.SIGTERM


def exit_cleanly_on_sigterm() -> None:
  """Makes `kill -TERM` end this program like an exception: status 143.

  Without it the process ends at once: workers die with it (on Linux), but
  ``finally`` blocks, context managers and `atexit` functions do not run. A
  second SIGTERM ends the process at once. For programs, not libraries; call it
  from the main thread.
  """
  signal.signal(signal.SIGTERM, _raise_system_exit)


def _raise_system_exit(
  signal_number: int, unused_frame: Optional[FrameType]
) -> None:
  signal.signal(signal_number, signal.SIG_DFL)
  sys.exit(EXIT_STATUS_SIGTERM)


def exit_without_waiting(status: int) -> NoReturn:
  """Ends this program now, with its clean-up but without its other threads.

  A thread may be in a computation that cannot be cancelled, and an ordinary
  exit would wait for it, for minutes.

  Args:
    status: The exit status.
  """
  try:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError, ValueError):
        stream.flush()
  finally:
    # Whatever else happens, a second Ctrl-C included.
    os._exit(status)


def drop_default_context_at_exit() -> None:
  """Drops TFF's default context at the interpreter's exit; `tff_pfl` calls it.

  Importing TFF makes its local C++ context the default. The object that owns
  its worker is destroyed with the last modules, when the names that its
  `__del__` needs are gone: every program that imports TFF prints "Exception
  ignored in: ... ServiceManager.__del__ ... 'NoneType' object has no attribute
  'Popen'" when it ends, and a worker that was started is left behind. Dropped
  from an `atexit` function, while all modules are alive, the same `__del__`
  works and stops its worker. Until then nothing is changed for programs that
  use TFF's own context.

  The default is kept per thread; importing TFF and the exit both happen in the
  main thread.
  """
  atexit.register(_drop_default_context)


def _drop_default_context() -> None:
  tff = sys.modules.get('tensorflow_federated')
  if tff is not None:
    tff.test.set_no_default_context()
