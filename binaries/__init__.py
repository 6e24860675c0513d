"""Programs; run them as `python -m binaries.NAME --help`."""

import os
import signal
import sys

# Before TensorFlow is imported: its start-up messages help nobody here.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# Until `program.run` takes over, Ctrl-C ends a program without a traceback.
# Python calls a program so while it is looking for it.
if (
  sys.argv[0] == '-m'
  and signal.getsignal(signal.SIGINT) == signal.default_int_handler
):
  signal.signal(signal.SIGINT, signal.SIG_DFL)
