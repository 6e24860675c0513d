"""Imports TensorFlow for programs and for `import tff_pfl as pfl`.

Operations get the threads of a client (see `cores.divide`), and TensorFlow's
messages about itself are left out.

TensorFlow 2.21 writes some ten lines on CPU features and missing GPUs to stderr
as it is loaded and when it first looks for devices, for any
`TF_CPP_MIN_LOG_LEVEL` (tensorflow/tensorflow#100442), also if Keras was
imported before. Here the variable works again. It is 3, no messages, unless the
user sets it to another number than 1, TensorFlow's default.
"""

import contextlib
import ctypes
import os
import re

from tff_pfl.system import messages

_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'
_MESSAGE = re.compile(
  rb'[IWE]\d{4} |WARNING: All log messages before absl|To enable the following'
)
# Abseil's SetMinLogLevel, of which TensorFlow has a copy.
_SET_MIN_LOG_LEVEL = (
  '_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE'
)


if os.environ.get(_VARIABLE, '1') == '1':
  os.environ[_VARIABLE] = '3'
if os.environ[_VARIABLE] == '3':
  with messages.held_back(_MESSAGE):
    import tensorflow as tf
  _library = os.path.join(
    os.path.dirname(tf.__file__), 'libtensorflow_framework.so.2'
  )
  # In another version it has another name, and the messages appear.
  with contextlib.suppress(AttributeError, OSError):
    getattr(ctypes.CDLL(_library), _SET_MIN_LOG_LEVEL)(3)

from tff_pfl.system import cores  # noqa: E402

cores.divide()
