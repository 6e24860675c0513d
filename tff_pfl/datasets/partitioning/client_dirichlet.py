"""Clients of equal size, each with its own Dirichlet draw of the classes."""

import dataclasses
from typing import ClassVar

import numpy as np
from absl import logging

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing, mixtures


@dataclasses.dataclass(frozen=True)
class ClientDirichlet(base.CountingPartitioner):
  """Clients of equal size, whose class distributions are Dirichlet draws.

  The class distribution q_i of client i is a draw from Dirichlet(concentration
  * prior). The prior is the classes' shares of all training examples. (Codes
  that draw from a symmetric Dirichlet with parameter a for each of K classes of
  equal size have the concentration a * K.)

  All training examples are dealt, each once, and sizes are equal up to one. A
  client's examples are drawn without replacement from the classes' pools in the
  proportions of q_i. A class that is exhausted leaves q_i, and what is left of
  q_i is renormalized: as all examples are dealt, q_i is followed approximately.
  All clients are served at once (see `mixtures.serve`), as in codes where they
  take turns example by example. Counts are rounded shares of q_i, not draws.

  Test examples are dealt by the same procedure, with a client's distribution of
  training examples in the place of q_i. Their numbers are equal up to one,
  too, and none is of a class that the client has no training example of. A
  client for whose classes the pool has too few goes with fewer, and test
  examples that then have no client are left out, with a warning. Where the
  test set has the class distribution of the training set, every client has its
  own distribution in both, and nothing is left out.

  Attributes:
    concentration: The paper's alpha, positive. Near 0 a client has one class
      (as far as the pools suffice); a large value approaches `Iid`.

  References:
    Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for
      Federated Visual Classification, 2019, section 3.
  """

  concentration: float

  name: ClassVar[str] = 'client_dirichlet'
  summary: ClassVar[str] = (
    "clients of equal size, each client's class distribution a Dirichlet draw"
    " around the classes' shares of all examples (Hsu et al. 2019)"
  )

  def __post_init__(self):
    errors.expect_positive('concentration', self.concentration)

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    drawn = mixtures.draw(self.concentration, pool, num_clients, rng)
    sizes = mixtures.equal_sizes(num_clients, pool.sum(), train_rng)
    exact = mixtures.serve(drawn, sizes, pool)
    counts = mixtures.round_off(exact, sizes, pool, train_rng)
    num_test = test_pool.sum()
    sizes = mixtures.equal_sizes(num_clients, num_test, test_rng)
    exact = mixtures.serve(counts, sizes, test_pool, own_only=True)
    served = exact.sum(axis=1, keepdims=True)
    total = np.array([int(served.sum() + 1e-6)])
    sizes = dealing.apportion(total, served, test_rng)[:, 0]
    test_counts = mixtures.round_off(exact, sizes, test_pool, test_rng)
    # Rounding within the pools may have taken another class.
    test_counts[counts == 0] = 0
    num_left_out = num_test - test_counts.sum()
    if num_left_out:
      logging.warning(
        'Partition %s of %d clients leaves out %d of %d test examples: the'
        ' clients that train on their classes have enough.',
        self.spec,
        num_clients,
        num_left_out,
        num_test,
      )
    return counts, test_counts
