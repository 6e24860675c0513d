"""Clients of given sizes with mixtures of groups (classes or domains)."""

from typing import Annotated, Any, ClassVar, Literal, Optional, Union

import numpy as np
import pydantic
from absl import logging

from tff_pfl import errors, fields
from tff_pfl.datasets.partitioning import base, dealing

# Division by this number stays finite.
_LEAST_CONCENTRATION = 1e-305


def draw(
  concentration: float,
  prior: np.ndarray,
  num_clients: int,
  rng: np.random.Generator,
) -> np.ndarray:
  """Draws clients' mixtures from Dirichlet(concentration * prior).

  For concentrations near 0, NumPy 1.25 takes minutes or never ends. So a draw
  from Gamma(a) is computed as one from Gamma(a + 1) times U^(1/a), in
  logarithms, and divided by the sum.

  Args:
    concentration: Positive.
    prior: Non-negative, `[num_groups]`. Only the proportions matter.
    num_clients: Number of draws.
    rng: Random generator.

  Returns:
    float64 `[num_clients, num_groups]`, whose rows sum to 1.
  """
  drawn = prior > 0
  concentrations = np.maximum(
    concentration * (prior[drawn] / prior.sum()), _LEAST_CONCENTRATION
  )
  shape = (num_clients, len(concentrations))
  logs = np.log(rng.gamma(concentrations + 1, size=shape))
  logs -= rng.standard_exponential(shape) / concentrations
  draws = np.exp(logs - logs.max(axis=1, keepdims=True))
  mixtures = np.zeros((num_clients, len(prior)))
  mixtures[:, drawn] = draws / draws.sum(axis=1, keepdims=True)
  return mixtures


def equal_sizes(
  num_clients: int, num_examples: int, rng: np.random.Generator
) -> np.ndarray:
  """Returns sizes that sum to `num_examples` and are equal up to one."""
  extra = rng.permutation(num_clients) < num_examples % num_clients
  return num_examples // num_clients + extra


def serve(
  mixtures: np.ndarray,
  sizes: np.ndarray,
  pools: np.ndarray,
  *,
  own_only: bool = False,
) -> np.ndarray:
  """Divides the groups' examples among the clients, all clients at once.

  In each step, every client demands its mixture's share of its size from every
  group. If demand exceeds the examples of a group, all clients get the same
  fraction of their demands, and the group is exhausted. In the next step,
  clients demand their missing examples from the remaining groups, in proportion
  to their mixtures (or to the remaining examples if their mixture has none of
  these groups).

  Args:
    mixtures: Non-negative, `[num_clients, num_groups]`.
    sizes: Number of examples of each client. Their sum is at most the sum of
      `pools`.
    pools: Number of examples of each group.
    own_only: True leaves a client short if its mixture has none of the
      remaining groups.

  Returns:
    float64 `[num_clients, num_groups]`. Rows sum to `sizes` (less for clients
    left short) and columns to at most `pools`, up to numerical error.
  """
  served = np.zeros(mixtures.shape)
  left = pools.astype(np.float64)
  is_open = pools > 0
  # Every step serves all clients in full or exhausts a group.
  while is_open.any():
    shares = np.where(is_open, mixtures, 0.0)
    has_none = ~shares.any(axis=1)
    shares[has_none] = np.where(is_open, left, 0)
    # By the largest first, as a sum of numbers near 0 is inexact.
    shares /= shares.max(axis=1, keepdims=True)
    shares /= shares.sum(axis=1, keepdims=True)
    missing = (sizes - served.sum(axis=1)).clip(0)
    if own_only:
      missing[has_none] = 0
    demand = missing[:, np.newaxis] * shares
    asked = demand.sum(axis=0)
    exhausted = is_open & (asked >= left)
    served += demand * np.divide(
      left, asked, out=np.ones(len(left)), where=exhausted & (asked > 0)
    )
    if not exhausted.any():
      break
    left = np.where(exhausted, 0, left - asked)
    is_open &= ~exhausted
  return served


def round_off(
  exact: np.ndarray,
  sizes: np.ndarray,
  pools: np.ndarray,
  rng: np.random.Generator,
) -> np.ndarray:
  """Rounds the result of `serve` to integers with the same sums.

  Counts are rounded by largest remainders. If that exceeds a group, a client
  gets an example of another group instead.

  Args:
    exact: `[num_clients, num_groups]`.
    sizes: Integers, the sums of the rows.
    pools: Integers, at least the sums of the columns.
    rng: Breaks ties.
  """
  counts = dealing.apportion(sizes, exact.T, rng).T
  while True:
    needed = counts.sum(axis=0)
    excess = needed > pools
    if not excess.any():
      return counts
    # The exchange that keeps counts closest to the exact ones.
    source = np.flatnonzero(excess)[0]
    surplus = np.where(
      counts[:, source] > 0, counts[:, source] - exact[:, source], -np.inf
    )
    deficit = np.where(needed < pools, exact - counts, -np.inf)
    client = np.argmax(surplus + deficit.max(axis=1))
    counts[client, source] -= 1
    counts[client, np.argmax(deficit[client])] += 1


@fields.dataclass
class ClientDirichlet(base.CountingPartitioner):
  """Clients of equal size, whose class distributions are Dirichlet draws.

  The class distribution q_i of client i is a draw from Dirichlet(concentration
  * prior). The prior is the classes' shares of all training examples. (Code
  that draws from a symmetric Dirichlet with parameter a for each of K classes
  of equal size has the concentration a * K.)

  All training examples are dealt, each once, and sizes are equal up to one. A
  client's examples are drawn without replacement from the classes' pools in the
  proportions of q_i. An exhausted class leaves q_i, and the rest of q_i is
  renormalized. As all examples are dealt, clients follow q_i approximately. All
  clients are served at once (see `serve`), which corresponds to taking turns
  example by example. Counts are rounded shares of q_i, not draws.

  Test examples are dealt by the same procedure, with a client's distribution of
  training examples instead of q_i. Their numbers are also equal up to one. A
  client gets test examples only of classes that it trains on, and fewer if the
  pool has too few of them. Test examples without a client are left out, with a
  warning. If the test set has the class distribution of the training set, every
  client has its own distribution in both, and nothing is left out.

  Attributes:
    concentration: Alpha of Hsu et al., positive. Near 0, a client has one class
      (as far as the pools suffice). A large value approaches iid.

  References:
    Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for
      Federated Visual Classification, 2019, section 3.
  """

  concentration: fields.Positive

  name: ClassVar[str] = 'client_dirichlet'

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    drawn = draw(self.concentration, pool, num_clients, rng)
    sizes = equal_sizes(num_clients, pool.sum(), train_rng)
    exact = serve(drawn, sizes, pool)
    counts = round_off(exact, sizes, pool, train_rng)
    num_test = test_pool.sum()
    sizes = equal_sizes(num_clients, num_test, test_rng)
    exact = serve(counts, sizes, test_pool, own_only=True)
    served = exact.sum(axis=1, keepdims=True)
    total = np.array([int(served.sum() + 1e-6)])
    sizes = dealing.apportion(total, served, test_rng)[:, 0]
    test_counts = round_off(exact, sizes, test_pool, test_rng)
    # Rounding within the pools may have added another class.
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


def _parse_size(value: Any) -> Any:
  return None if value == 'all' else value


def _parse_prior(value: Any) -> Any:
  are_numbers = isinstance(value, str) and value[-1:].isdigit()
  return tuple(value.split('/')) if are_numbers else value


@fields.dataclass
class DomainMixture(base.CountingPartitioner):
  """Clients of equal size, each with its own mixture of the domains.

  The mixture pi_i of client i is a draw from Dirichlet(concentration * prior).
  Its training examples are drawn from the domains' pools in these proportions,
  uniformly at random within a domain, so labels follow the domain's
  distribution. No example is dealt twice.

  All clients are served at once, and each has its exact size. If a domain is
  exhausted, all clients get the same fraction of their demands, and the rest
  from the other domains (see `serve` and `round_off`).

  All test examples of a domain are dealt, in proportion to the clients'
  training examples of the domain (or to their mixtures if there are none). So
  an average over all clients' test examples of a domain is an average over its
  whole test set.

  If each client's test set is held out of its own examples, as
  `FederatedDataset.from_arrays` does without test arrays, the sizes count
  training and test examples together.

  Attributes:
    concentration: Alpha of FedDAR's paper, positive. Near 0, a client has one
      domain (as far as the pools suffice). For a large value, every client's
      mixture approaches the prior.
    examples_per_client: Training examples of each client, at least 1. Others
      are left out. None ('all' in a specification) deals all of them, with
      sizes equal up to one.
    prior: The mean of the mixtures. 'data' uses the domains' shares of the
      training examples, and 'uniform' equal shares of the domains that have
      any. Non-negative numbers, one per domain, are proportions (0.2/0.8 in a
      specification).

  References:
    Zhong et al., FedDAR: Federated Domain-Aware Representation Learning, ICLR
      2023, sections 5.1 and 5.2.
  """

  concentration: fields.Positive
  examples_per_client: Annotated[
    Optional[fields.Count], pydantic.BeforeValidator(_parse_size)
  ] = None
  prior: Annotated[
    Union[
      Literal['data', 'uniform'],
      Annotated[tuple[fields.NonNegative, ...], pydantic.Field(strict=False)],
    ],
    pydantic.BeforeValidator(_parse_prior),
  ] = 'data'

  name: ClassVar[str] = 'domain_mixture'
  needs_classes: ClassVar[bool] = False

  def __post_init__(self):
    if isinstance(self.prior, tuple):
      errors.expect(any(self.prior), 'prior', 'not all 0', self.prior)

  def _groups(self, pool):
    errors.expect(
      pool.domain is not None,
      'partition',
      'a rule for examples without domains, such as iid',
      self.spec,
    )
    test = pool.domain[:0] if pool.domain_test is None else pool.domain_test
    return pool.domain, test, len(pool.domain_names)

  def _counts(self, num_clients, pool, test_pool, seed, train_rng, test_rng):
    rng = dealing.make_rng(seed, dealing.WEIGHTS)
    prior = self._prior(pool)
    drawn = draw(self.concentration, prior, num_clients, rng)
    sizes = self._sizes(num_clients, pool.sum(), train_rng)
    exact = serve(drawn, sizes, pool)
    counts = round_off(exact, sizes, pool, train_rng)
    shares = np.where(counts.any(axis=0), counts, drawn)
    # For a domain that neither the prior nor the training examples have.
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
      return equal_sizes(num_clients, num_examples, rng)
    errors.expect(
      num_clients * self.examples_per_client <= num_examples,
      'examples_per_client',
      f'at most {num_examples // num_clients}, as {num_clients} clients share'
      f' {num_examples} training examples',
      self.examples_per_client,
    )
    return np.full(num_clients, self.examples_per_client)
