"""Computations on which the runtimes must agree."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl import tff_api as tff
from tff_pfl.system.private_api import tree_analysis

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)
CLIENT_INTS = tff.FederatedType(np.int32, tff.CLIENTS)
SERVER_FLOAT = tff.FederatedType(np.float32, tff.SERVER)


class Point(NamedTuple):
  x: Any
  y: Any


@tff.tensorflow.computation(np.float32)
def double(x):
  return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def add(x, y):
  return x + y


@tff.tensorflow.computation(np.int64)
def count(limit):
  """Adds up the numbers below a limit, which takes as long as wanted."""
  with tf.control_dependencies(
    [tf.debugging.assert_non_negative(limit, message='my own message')]
  ):
    limit = tf.identity(limit)
  return tf.data.Dataset.range(limit).reduce(np.int64(0), lambda n, x: n + x)


@tff.federated_computation(CLIENT_FLOATS)
def sum_of_doubles(values):
  return tff.federated_sum(tff.federated_map(double, values))


def at_clients(mapped):
  """A computation that maps another one at clients."""

  @tff.federated_computation(
    tff.FederatedType(mapped.type_signature.parameter, tff.CLIENTS)
  )
  def computation(values):
    return tff.federated_map(mapped, values)

  return computation


def blocks(block, kind):
  """The building blocks of a kind in a building block."""
  found = []
  tree_analysis.visit_preorder(
    block, lambda part: found.append(part) if isinstance(part, kind) else None
  )
  return found
