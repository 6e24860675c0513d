"""Computations on which the runtimes must agree."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff


class Point(NamedTuple):
  x: Any
  y: Any


@tff.tensorflow.computation(np.float32)
def double(x):
  return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def add(x, y):
  return x + y
