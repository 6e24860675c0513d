"""Replaces itself with a program that must not outlive its parent process.

    python -I -S child_launcher.py PARENT_PID PROGRAM [ARGUMENT ...]

`PR_SET_PDEATHSIG` makes the kernel kill this process as soon as the thread that
started it ends, for any reason, even `kill -9` of the parent. The setting
survives the `exec` of the program. Each process has to set it for itself.
`subprocess.Popen`'s `preexec_fn` is no place for it, because Python code in a
forked copy of a process with many threads (TensorFlow, gRPC) can deadlock.

This file uses only the standard library and imports nothing from the package.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def main(argv) -> None:
  """Ties this process to its parent and becomes the program.

  Args:
    argv: This script, the parent's process id, the program and its arguments.
  """
  libc = ctypes.CDLL(None, use_errno=True)
  zero = ctypes.c_ulong(0)
  kill = ctypes.c_ulong(signal.SIGKILL)
  if libc.prctl(_PR_SET_PDEATHSIG, kill, zero, zero, zero) != 0:
    reason = os.strerror(ctypes.get_errno())
    print(f'Could not set the parent death signal: {reason}.', file=sys.stderr)
  # The parent may have ended before this call.
  if os.getppid() != int(argv[1]):
    sys.exit(1)
  # Python ignores these two, and `exec` would pass that on to the program.
  signal.signal(signal.SIGPIPE, signal.SIG_DFL)
  signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
  try:
    os.execv(argv[2], argv[2:])
  except OSError as error:
    sys.exit(f'Could not run {argv[2]}: {error.strerror}.')


if __name__ == '__main__':
  main(sys.argv)
