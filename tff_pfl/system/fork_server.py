"""Runs a module's `main` repeatedly, each time in a fork of one process.

    python fork_server.py MODULE

Importing TensorFlow and TFF takes a processor 5 s. This process does it once.
Then, for each line on its standard input, a JSON list of a log file and
arguments, it forks a child that writes to the log and calls
`main([MODULE, *arguments])`. When the child has ended, its return code is
printed as a line. One child runs at a time.

A fork of a process with many threads can deadlock. This process has only
threads that imports start, which wait for work. A fork has not even those: a
computation on TFF's default executor, rather than on a runtime of its own,
would wait there for ever.

Uses only the standard library, and nothing of this package but the module.
"""

import importlib
import json
import os
import signal
import sys
import warnings

# The modules of this file's folder would hide others of the same names.
_FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _FOLDER)
import child_launcher  # noqa: E402

sys.path[:] = [path for path in sys.path if path != _FOLDER]


def _serve(module_name: str) -> None:
  reports = os.fdopen(os.dup(1), 'w')
  for line in sys.stdin:
    log, *arguments = json.loads(line)
    log = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    module = importlib.import_module(module_name)
    # A signal to the group is for the child.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server = os.getpid()
    with warnings.catch_warnings():
      # Python and jax warn of the threads that imports started.
      warnings.simplefilter('ignore')
      child = os.fork()
    if not child:  # Its copy of `reports` is open as long as it lives.
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
      child_launcher.tie_to_parent(server)
      os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
      sys.exit(module.main([module_name, *arguments]))
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), file=reports, flush=True)


if __name__ == '__main__':
  _serve(sys.argv[1])
