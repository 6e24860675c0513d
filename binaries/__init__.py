"""Programs: `python -m binaries.NAME --help`.

In the wheel this package is `tff_pfl.programs`, and each program has a command
`tff-pfl-NAME`.
"""

import gc
import os
import re
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
  """The program's name, or None if Python runs something else."""
  name = os.path.basename(sys.argv[0])
  if name.startswith(_SCRIPT):
    return name.removeprefix(_SCRIPT)
  if sys.argv[0] != '-m':
    return None
  # Python looks for the module of -m. It may follow other letters, as in -um.
  argv = ' '.join(sys.orig_argv)
  module = re.search(rf'-\w*m ?{re.escape(__name__)}\.(\w+)', argv)
  return module and module[1]


_name = _program()
if _name is not None:
  # Ctrl-C ends a program without a traceback until `program.run_program` takes
  # over.
  if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  early.begin(_name)
  if not any(word.startswith(('--help', '--version')) for word in sys.argv):
    # The import takes seconds.
    print('Importing TensorFlow …', file=sys.stderr, flush=True)
  # See `collector`. `program.run_program` turns it on again.
  gc.disable()
  from tff_pfl.system import tf_import  # noqa: F401
