"""Each class divided over the clients by a Dirichlet draw."""

import dataclasses
import math
import numbers
from typing import ClassVar

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import dealing, weighted

_MAX_DRAWS = 100
# Below, a class belongs to one client, and NumPy takes longer and longer to say
# to which, without ever looking at signals.
_LEAST_CONCENTRATION = 1e-6


@dataclasses.dataclass(frozen=True)
class Dirichlet(weighted.WeightedPartitioner):
  """Each class divided over the clients by a symmetric Dirichlet draw.

  Sizes differ; see `ClientDirichlet` for clients of equal size.

  Attributes:
    concentration: At least 1e-6. Near 0 a class belongs to few clients; a large
      value approaches `Iid`.
    min_examples: Least number of examples of every client that are dealt as
      training examples; the draw is repeated until it is met. Where each
      client's test set is held out of its own, these are among them. 0 switches
      this off.

  References:
    Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural
      Networks, ICML 2019, section 4.
  """

  concentration: float
  min_examples: int = 1

  name: ClassVar[str] = 'dirichlet'
  summary: ClassVar[str] = (
    'each class divided over the clients by a Dirichlet draw (Yurochkin et'
    ' al. 2019), repeated until every client has min_examples (default 1)'
  )

  def __post_init__(self):
    errors.expect(
      isinstance(self.concentration, numbers.Real)
      and not isinstance(self.concentration, bool)
      and _LEAST_CONCENTRATION <= self.concentration < math.inf,
      'concentration',
      f'a positive number, at least {_LEAST_CONCENTRATION:g}',
      self.concentration,
    )
    errors.expect_int('min_examples', self.min_examples, 0)

  def _class_weights(self, num_clients, class_counts, seed):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    num_examples = int(class_counts.sum())
    errors.expect(
      num_clients * self.min_examples <= num_examples,
      'min_examples',
      f'at most {num_examples // num_clients}, as {num_clients} clients share'
      f' {num_examples} training examples',
      self.min_examples,
    )
    for _ in range(_MAX_DRAWS):
      weights = rng.dirichlet(
        np.full(num_clients, self.concentration), len(class_counts)
      ).T
      # The very counts that dealing the training examples will give.
      counts = dealing.apportion(
        class_counts, weights, dealing.make_rng(seed, dealing.TRAIN)
      )
      if counts.sum(axis=1).min() >= self.min_examples:
        return weights
    raise ValueError(
      f'Expected `partition` to give each of {num_clients} clients at least'
      f' {self.min_examples} of {num_examples} training examples, found'
      f' {self.spec!r} fail {_MAX_DRAWS} times; raise'
      ' `concentration`, or lower `min_examples` or `num_clients`.'
    )
