"""Clients of given sizes, each with a mixture of groups: classes or domains."""

import numpy as np

from tff_pfl.datasets.partitioning import dealing

# What is divided by it stays finite.
_LEAST_CONCENTRATION = 1e-305


def draw(
  concentration: float,
  prior: np.ndarray,
  num_clients: int,
  rng: np.random.Generator,
) -> np.ndarray:
  """Draws clients' mixtures from Dirichlet(concentration * prior).

  It is NumPy's distribution for concentrations that are near 0 as well, where
  NumPy 1.25 needs minutes or never ends: a draw from Gamma(a), divided by
  the sum, is one from Gamma(a + 1) times U^(1/a), here by its logarithm.

  Args:
    concentration: Positive.
    prior: Non-negative, `[num_groups]`; only the proportions count.

  Returns:
    float64 `[num_clients, num_groups]`, rows sum to 1.
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
  """Returns sizes `[num_clients]`, equal up to one, whose sum is given."""
  extra = rng.permutation(num_clients) < num_examples % num_clients
  return num_examples // num_clients + extra


def serve(
  mixtures: np.ndarray,
  sizes: np.ndarray,
  pools: np.ndarray,
  *,
  own_only: bool = False,
) -> np.ndarray:
  """Divides the groups' pools over the clients, all of them at once.

  It goes in steps, so that no client comes too late. Each asks every group for
  its mixture's share of its size. Of a group that is asked for more than it
  has, all get the same fraction of what they asked for, and it is exhausted.
  What a client still misses it asks, in the next step, of the groups that are
  left, in proportion to its mixture again (or to what is left, where its
  mixture has none of them).

  Args:
    mixtures: Non-negative, `[num_clients, num_groups]`.
    sizes: What each client is to have; the sum is at most that of `pools`.
    pools: What there is of each group.
    own_only: Whether a client whose mixture has none of the groups that are
      left goes without instead.

  Returns:
    float64 `[num_clients, num_groups]`: rows sum to `sizes` (to less, of the
    clients that go without), columns to at most `pools`, up to numerical error.
  """
  served = np.zeros(mixtures.shape)
  left = pools.astype(np.float64)
  is_open = pools > 0
  # Every step serves all clients in full or exhausts a group.
  while is_open.any():
    wanted = np.where(is_open, mixtures, 0.0)
    has_none = ~wanted.any(axis=1)
    wanted[has_none] = np.where(is_open, left, 0)
    # The largest first: a sum of numbers next to 0 would divide badly.
    wanted /= wanted.max(axis=1, keepdims=True)
    wanted /= wanted.sum(axis=1, keepdims=True)
    missing = (sizes - served.sum(axis=1)).clip(0)
    if own_only:
      missing[has_none] = 0
    demand = missing[:, np.newaxis] * wanted
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
  """Rounds what `serve` returns to integers, within the same sums.

  Counts are rounded by largest remainders. Where that would take more than a
  group has, a client gets an example of another instead.

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
    # The exchange that costs least, measured by how far counts are from exact.
    source = np.flatnonzero(excess)[0]
    surplus = np.where(
      counts[:, source] > 0, counts[:, source] - exact[:, source], -np.inf
    )
    deficit = np.where(needed < pools, exact - counts, -np.inf)
    client = np.argmax(surplus + deficit.max(axis=1))
    counts[client, source] -= 1
    counts[client, np.argmax(deficit[client])] += 1
