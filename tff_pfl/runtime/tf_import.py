"""Imports TensorFlow for programs and for `import tff_pfl as pfl`.

Its operations get the threads of a client (see `cores.divide`), and its
messages of its own doings are left out.

TensorFlow 2.21 writes some ten lines on CPU features and missing GPUs to stderr
as it is loaded and when it first looks for devices, whatever
`TF_CPP_MIN_LOG_LEVEL` says (tensorflow/tensorflow#100442); also where Keras was
imported before this. Here the variable
does what it did, and is 3, no messages, unless the user sets it to another
number than 1, which TensorFlow sets where nobody does.
"""

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Iterator

_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'
_MESSAGE = re.compile(
  rb'[IWE]\d{4} |WARNING: All log messages before absl|To enable the following'
)
# Abseil's SetMinLogLevel, of which TensorFlow has a copy.
_SET_MIN_LOG_LEVEL = (
  '_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE'
)


@contextlib.contextmanager
def _without_messages() -> Iterator[None]:
  """Holds stderr back; in the end, all that is no message comes."""
  if sys.stderr is None:
    # A program without one.
    yield
    return
  sys.stderr.flush()
  with tempfile.TemporaryFile() as written, os.fdopen(os.dup(2)) as stderr:
    os.dup2(written.fileno(), 2)
    try:
      yield
    finally:
      sys.stderr.flush()
      os.dup2(stderr.fileno(), 2)
      written.seek(0)
      for line in written:
        if not _MESSAGE.match(line):
          os.write(2, line)


if os.environ.get(_VARIABLE, '1') == '1':
  os.environ[_VARIABLE] = '3'
if os.environ[_VARIABLE] == '3':
  with _without_messages():
    import tensorflow as tf
  _library = os.path.join(
    os.path.dirname(tf.__file__), 'libtensorflow_framework.so.2'
  )
  # In another version it has another name, and the messages come.
  with contextlib.suppress(AttributeError, OSError):
    getattr(ctypes.CDLL(_library), _SET_MIN_LOG_LEVEL)(3)

from tff_pfl.runtime import cores  # noqa: E402

cores.divide()
