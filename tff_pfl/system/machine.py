"""Memory and package versions."""

from __future__ import annotations

import platform

import numpy as np
import psutil
import tensorflow as tf

from tff_pfl import tff_api as tff


def resident_mb() -> float:
  """Returns the resident memory of this process, in MiB (2**20 bytes)."""
  return psutil.Process().memory_info().rss / 2**20


def versions() -> dict:
  """Returns the versions of Python and packages that affect speed."""
  return {
    'python': platform.python_version(),
    'tensorflow': tf.__version__,
    'tensorflow_federated': tff.__version__,
    'numpy': np.__version__,
  }
