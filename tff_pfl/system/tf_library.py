"""Names in TensorFlow's C++ library that its Python API lacks.

Another version of TensorFlow may not have them. Each function says what happens
then.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator

import tensorflow as tf

# SetMinLogLevel in TensorFlow's copy of Abseil.
_SET_MIN_LOG_LEVEL = (
  '_ZN4absl12lts_2025081414SetMinLogLevelENS0_18LogSeverityAtLeastE'
)
# LocalDevice::use_global_threadpool_.
_SHARES_THREADS = '_ZN10tensorflow11LocalDevice22use_global_threadpool_E'


def set_min_log_level(level: int) -> None:
  """Sets the least level of messages, or does nothing if there is no such name.

  Args:
    level: 0 to 3, as in `TF_CPP_MIN_LOG_LEVEL`.
  """
  with contextlib.suppress(AttributeError, OSError):
    getattr(_library(), _SET_MIN_LOG_LEVEL)(level)


@contextlib.contextmanager
def own_threads() -> Iterator[bool]:
  """Gives CPU devices that are made in this context threads of their own.

  Otherwise all CPU devices of a process share the threads of the first one.

  Yields:
    False if they share them all the same.
  """
  try:
    shares = ctypes.c_bool.in_dll(_library(), _SHARES_THREADS)
  except (ValueError, OSError):
    yield False
    return
  before, shares.value = shares.value, False
  try:
    yield True
  finally:
    shares.value = before


def _library():
  folder = tf.sysconfig.get_lib()
  return ctypes.CDLL(os.path.join(folder, 'libtensorflow_framework.so.2'))
