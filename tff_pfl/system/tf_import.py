"""Imports TensorFlow for programs and for `import tff_pfl as pfl`.

Operations get a client's share of threads (see `cores.divide`), compiled
programs are kept (see `program_cache`), and TensorFlow's messages about itself
are dropped.

TensorFlow 2.21 writes about ten lines on CPU features and missing GPUs to
stderr, when it is loaded and when it first looks for devices. It does so for
any `TF_CPP_MIN_LOG_LEVEL` (tensorflow/tensorflow#100442), even if Keras was
imported before. This module makes the variable work again. It sets 3, no
messages, unless the user chose a number other than 1, TensorFlow's default.
"""

import os
import re

from tff_pfl.system import collector, messages

_VARIABLE = 'TF_CPP_MIN_LOG_LEVEL'
_MESSAGE = re.compile(
  rb'[IWE]\d{4} |WARNING: All log messages before absl|To enable the following'
)


if os.environ.get(_VARIABLE, '1') == '1':
  os.environ[_VARIABLE] = '3'
if os.environ[_VARIABLE] == '3':
  with messages.held_back(_MESSAGE), collector.paused():
    from tff_pfl.system import tf_library
  tf_library.set_min_log_level(3)

from tff_pfl.system import cores  # noqa: E402

cores.divide()
