"""Clients that are mixtures of domains."""

import dataclasses
import numbers
from collections.abc import Sequence
from typing import ClassVar, Optional, Union

import numpy as np

from tff_pfl import errors
from tff_pfl.datasets.partitioning import base, dealing, mixtures

_NAMED_PRIORS = ('data', 'uniform')


def _parse_size(text: str) -> Optional[int]:
  return None if text == 'all' else int(text)


def _parse_prior(text: str) -> Union[str, tuple[float, ...]]:
  if text in _NAMED_PRIORS:
    return text
  return tuple(float(share) for share in text.split('/'))


@dataclasses.dataclass(frozen=True)
class DomainMixture(base.CountingPartitioner):
  """Clients of equal size, each with its own mixture of the domains.

  The mixture pi_i of client i is a draw from Dirichlet(concentration * prior).
  Its training examples are drawn from the domains' pools in these proportions,
  uniformly at random within a domain, so that labels follow the domain's
  distribution; no example is dealt twice.

  All clients are served at once, and each has its exact size: where a domain is
  exhausted, all have the same fraction of what they asked of it, and the rest
  from the other domains (see `mixtures.serve` and `mixtures.round_off`).

  The test examples of a domain are dealt in proportion to the training examples
  of the domain that the clients have (if none has any, in proportion to their
  mixtures), all of them, so that an average over all test examples of a domain
  is one over its whole test set.

  Where each client's test set is held out of its own examples, as
  `FederatedDataset.from_arrays` does without test arrays, the sizes are those
  of a client's training and test examples together.

  Attributes:
    concentration: The paper's alpha, positive. Near 0, a client has one domain
      only (as far as the pools suffice); with a large value every client's
      mixture is the prior.
    examples_per_client: Training examples of each client, at least 1; the
      others are left out. None to deal all of them, sizes being equal up to
      one.
    prior: The mean of the mixtures: 'data' for the domains' shares of the
      training examples, 'uniform' for equal shares of the domains that have
      any, or a non-negative number for each domain, in proportion.

  References:
    Zhong et al., FedDAR: Federated Domain-Aware Representation Learning, ICLR
      2023, sections 5.1 and 5.2.
  """

  concentration: float
  examples_per_client: Optional[int] = dataclasses.field(
    default=None,
    metadata={'parse': _parse_size, 'form': "an integer or 'all'"},
  )
  prior: Union[str, Sequence[float]] = dataclasses.field(
    default='data',
    metadata={
      'parse': _parse_prior,
      'form': "'data', 'uniform' or shares such as 0.2/0.8",
    },
  )

  name: ClassVar[str] = 'domain_mixture'
  summary: ClassVar[str] = (
    "each client's mixture of the domains is a Dirichlet draw around the prior"
    " ('data', the default, for the domains' shares of the examples, 'uniform',"
    ' or shares such as 0.2/0.8), and it has examples_per_client examples'
    " (default 'all' for an equal part of all of them); only for data sets with"
    ' domains (Zhong et al. 2023, FedDAR)'
  )
  needs_classes: ClassVar[bool] = False

  def __post_init__(self):
    errors.expect_positive('concentration', self.concentration)
    if self.examples_per_client is not None:
      errors.expect_int('examples_per_client', self.examples_per_client, 1)
    if isinstance(self.prior, str):
      errors.expect(
        self.prior in _NAMED_PRIORS,
        'prior',
        "'data', 'uniform' or a number for each domain",
        self.prior,
      )
      return
    shares = tuple(self.prior)
    errors.expect(
      all(
        isinstance(share, numbers.Real) and np.isfinite(share) and share >= 0
        for share in shares
      )
      and sum(shares) > 0,
      'prior',
      "'data', 'uniform' or numbers, none negative and not all 0",
      self.prior,
    )
    object.__setattr__(self, 'prior', tuple(map(float, shares)))

  def _groups(self, pool):
    if pool.domain is None:
      raise ValueError(
        'Expected `partition` to be a rule for examples without domains, such'
        f' as iid, found {self.spec!r}, which needs a data set with domains,'
        ' such as rotated_digits, or domain ids as `domain` in'
        ' `FederatedDataset.from_arrays`.'
      )
    test = pool.domain[:0] if pool.domain_test is None else pool.domain_test
    return pool.domain, test, len(pool.domain_names)

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    prior = self._prior(pool)
    drawn = mixtures.draw(self.concentration, prior, num_clients, rng)
    sizes = self._sizes(num_clients, pool.sum(), train_rng)
    exact = mixtures.serve(drawn, sizes, pool)
    counts = mixtures.round_off(exact, sizes, pool, train_rng)
    shares = np.where(counts.any(axis=0), counts, drawn)
    # Of a domain that neither the prior nor the training examples know.
    shares[:, ~shares.any(axis=0)] = 1
    return counts, dealing.apportion(test_pool, shares, test_rng)

  def _prior(self, pools: np.ndarray) -> np.ndarray:
    """Returns the mean of the mixtures, up to a factor, `[num_domains]`."""
    if self.prior == 'data':
      return pools
    if self.prior == 'uniform':
      return pools > 0
    errors.expect(
      len(self.prior) == len(pools),
      'prior',
      f'{len(pools)} numbers, one per domain',
      self.prior,
    )
    return np.array(self.prior)

  def _sizes(
    self, num_clients: int, num_examples: int, rng: np.random.Generator
  ) -> np.ndarray:
    """Returns each client's number of training examples, `[num_clients]`."""
    if self.examples_per_client is None:
      return mixtures.equal_sizes(num_clients, num_examples, rng)
    errors.expect(
      num_clients * self.examples_per_client <= num_examples,
      'examples_per_client',
      f'at most {num_examples // num_clients}, as {num_clients} clients share'
      f' {num_examples} training examples',
      self.examples_per_client,
    )
    return np.full(num_clients, self.examples_per_client)
