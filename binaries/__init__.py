"""Programs: `python -m binaries.NAME --help`.

In the wheel this package is `tff_pfl.programs`, and each program has a command
`tff-pfl-NAME`.
"""

import gc
import os
import runpy
import signal
import sys

from . import early

_SCRIPT = 'tff-pfl-'


def run_script() -> None:
  """Runs the program that the console script is named after."""
  name = os.path.basename(sys.argv[0]).removeprefix(_SCRIPT)
  runpy.run_module(f'{__name__}.{name}', run_name='__main__', alter_sys=True)


def _program():
  """The program's name, from the console script or the argument of -m."""
  name = os.path.basename(sys.argv[0])
  if name.startswith(_SCRIPT):
    return name.removeprefix(_SCRIPT)
  return sys.orig_argv[sys.orig_argv.index('-m') + 1].rpartition('.')[2]


# True while Python looks for the module of -m, and in a console script.
if sys.argv[0] == '-m' or os.path.basename(sys.argv[0]).startswith(_SCRIPT):
  # Ctrl-C ends a program without a traceback until `program.run_program` takes
  # over.
  if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  early.begin(_program())
  if not any(word.startswith(('--help', '--version')) for word in sys.argv):
    # The import takes seconds.
    print('Importing TensorFlow …', file=sys.stderr, flush=True)
  # See `collector`. `program.run_program` turns it on again.
  gc.disable()
  from tff_pfl.system import tf_import  # noqa: F401
