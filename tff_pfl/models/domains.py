"""Domains: kinds of examples, known for each example.

Datasets with domains have elements `{x, y, domain}`. A model for such examples
takes inputs and domain together as its `x`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Domains:
  """The domains of a dataset.

  Attributes:
    names: Names of the domains. An example's domain is a position among them.
    num_examples: Number of training examples of each domain, over all clients.
    examples_per_client: Mean number of training examples per client. If the
      aggregation does not weight clients by their examples, their sums over
      examples are divided by this number, so that the norms that private
      factories clip do not grow with the data.
    reweighted: True if all domains count the same in a model's loss.
  """

  names: Sequence[str]
  num_examples: Sequence[int]
  examples_per_client: float = 1.0
  reweighted: bool = False

  @property
  def number(self) -> int:
    """Number of domains (M)."""
    return len(self.names)

  @property
  def loss_weights(self) -> Sequence[float]:
    """Weights of examples, by domain, that make all domains count the same.

    u_m = L / (M L_m), where domain m has L_m of L training examples and M
    domains have any. The others have weight 0. The mean over all training
    examples is 1.
    """
    total = sum(self.num_examples)
    present = sum(n > 0 for n in self.num_examples)
    return [total / (present * n) if n else 0.0 for n in self.num_examples]

  def by_name(self, values: tf.Tensor) -> collections.OrderedDict:
    """Splits a tensor `[domains, ...]` into one for each domain, by name."""
    return collections.OrderedDict(zip(self.names, tf.unstack(values)))


def batched_spec(element_spec) -> collections.OrderedDict:
  """The spec of batches `[None, ...]` of elements with `element_spec`."""

  def batched(spec):
    return tf.TensorSpec([None, *spec.shape], spec.dtype)

  return collections.OrderedDict(
    (name, tf.nest.map_structure(batched, spec))
    for name, spec in element_spec.items()
  )


def join(element: Mapping[str, Any]) -> tuple:
  """Returns an element `{x, y[, domain]}` as `(x, y)` for models."""
  if 'domain' not in element:
    return element['x'], element['y']
  x = collections.OrderedDict(inputs=element['x'], domain=element['domain'])
  return x, element['y']
