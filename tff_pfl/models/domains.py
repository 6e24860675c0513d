"""Domains: what kind of example an example is, known for each of them.

Data sets with domains have elements `{x, y, domain}`. To a model of such
examples, inputs and domain come together as its `x`.
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
    names: What the domains are called; an example's domain is a position among
      them.
    num_examples: Training examples of each domain over all clients.
    examples_per_client: Training examples that a client has in the mean, of all
      domains. What clients report of sums over their examples is divided by it
      where the aggregation does not weigh clients by their examples, so that
      norms, to which private factories clip, do not grow with the data.
    reweighted: Whether all domains count the same in the loss of a model.

  Raises:
    ValueError: If there is no domain or no example, or not one number of
      examples for each domain.
  """

  names: Sequence[str]
  num_examples: Sequence[int]
  examples_per_client: float = 1.0
  reweighted: bool = False

  def __post_init__(self):
    errors.expect(
      self.names and len(set(self.names)) == len(self.names),
      'domains.names',
      'at least one, distinct',
      self.names,
    )
    errors.expect(
      len(self.num_examples) == len(self.names)
      and all(n >= 0 for n in self.num_examples)
      and any(self.num_examples),
      'domains.num_examples',
      f'{len(self.names)} numbers, not negative and not all 0',
      self.num_examples,
    )
    errors.expect_positive(
      'domains.examples_per_client', self.examples_per_client
    )

  @property
  def number(self) -> int:
    """How many domains there are (M)."""
    return len(self.names)

  @property
  def loss_weights(self) -> Sequence[float]:
    """Weights of each domain's examples with which all domains count the same.

    u_m = L / (M L_m), whose mean over all training examples is 1; M counts the
    domains that have training examples. The others weigh nothing.
    """
    total = sum(self.num_examples)
    present = sum(n > 0 for n in self.num_examples)
    return [total / (present * n) if n else 0.0 for n in self.num_examples]

  def by_name(self, values: tf.Tensor) -> collections.OrderedDict:
    """A tensor `[domains, ...]` as one for each domain, by its name."""
    return collections.OrderedDict(zip(self.names, tf.unstack(values)))


def join(element: Mapping[str, Any]) -> tuple:
  """An element's `(x, y)` as models take it, from `{x, y[, domain]}`."""
  if 'domain' not in element:
    return element['x'], element['y']
  x = collections.OrderedDict(inputs=element['x'], domain=element['domain'])
  return x, element['y']
