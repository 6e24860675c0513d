"""Domains: kinds of examples, known for each example.

Data sets with domains have elements `{x, y, domain}`. A model of such examples
takes inputs and domain together as its `x`.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tff_pfl import errors


@dataclasses.dataclass(frozen=True)
class Domains:
  """The domains of a data set.

  Attributes:
    names: Names of the domains; an example's domain is a position among them.
    num_examples: Training examples of each domain, of all clients together.
    examples_per_client: Mean number of a client's training examples. Clients'
      sums over examples are divided by it where the aggregation does not weigh
      clients by their examples, so that the norms that private factories clip
      do not grow with the data.
    reweighted: True if all domains count the same in the loss of a model.
  """

  names: Sequence[str]
  num_examples: Sequence[int]
  examples_per_client: float = 1.0
  reweighted: bool = False

  def __post_init__(self):
    counts = self.num_examples
    errors.expect(
      len(set(self.names)) == len(self.names) == len(counts)
      and any(counts)
      and min(counts) >= 0,
      'domains',
      'distinct names, each with a number of examples, not all 0',
      (self.names, counts),
    )
    errors.expect_positive(
      'domains.examples_per_client', self.examples_per_client
    )

  @property
  def number(self) -> int:
    """Number of domains (M)."""
    return len(self.names)

  @property
  def loss_weights(self) -> Sequence[float]:
    """Weights of examples, by domain, that make all domains count the same.

    u_m = L / (M L_m), whose mean over all training examples is 1; M counts the
    domains that have training examples. The weight of the others is 0.
    """
    total = sum(self.num_examples)
    present = sum(n > 0 for n in self.num_examples)
    return [total / (present * n) if n else 0.0 for n in self.num_examples]

  def by_name(self, values: tf.Tensor) -> collections.OrderedDict:
    """Splits a tensor `[domains, ...]` into one for each domain, by name."""
    return collections.OrderedDict(zip(self.names, tf.unstack(values)))


def join(element: Mapping[str, Any]) -> tuple:
  """Returns an element `{x, y[, domain]}` as `(x, y)` for models."""
  if 'domain' not in element:
    return element['x'], element['y']
  x = collections.OrderedDict(inputs=element['x'], domain=element['domain'])
  return x, element['y']
