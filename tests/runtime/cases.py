"""Computations on which the runtimes must agree."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow_federated as tff

from tests.runtime import parity


class Point(NamedTuple):
  x: Any
  y: Any


@tff.tensorflow.computation(np.float32)
def double(x):
  return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def add(x, y):
  return x + y


class Cases(dict):
  """From a name to what makes a computation, and its arguments."""

  def add(self, *arguments):
    """Adds a computation with each of some tuples of arguments."""

    def decorate(make):
      for number, argument in enumerate(arguments):
        self[f'{make.__name__.strip("_")}-{number}'] = (make, argument)
      return make

    return decorate

  def check(self, name, rt, native):
    """Checks that two runtimes return the same, again and again."""
    make, arguments = self[name]
    computation = make()
    expected = native.run(computation, *arguments)
    first = rt.run(computation, *arguments)
    # Once more, with everything loaded, which leaves the first result alone.
    again = [rt.run(computation, *arguments) for _ in range(2)]
    for result in (first, *again):
      parity.assert_same(result, expected)
