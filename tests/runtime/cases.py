"""Computations on which the runtimes must agree."""

from typing import Any, NamedTuple

import numpy as np

from tff_pfl import tff_api as tff
from tff_pfl.system.private_api import tree_analysis


class Point(NamedTuple):
  x: Any
  y: Any


@tff.tensorflow.computation(np.float32)
def double(x):
  return 2 * x


@tff.tensorflow.computation(np.float32, np.float32)
def add(x, y):
  return x + y


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
