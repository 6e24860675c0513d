"""Multi-task linear regression with a shared representation.

Client i of n has examples (x, y) in R^d x R with

    x ~ N(0, I_d),   y = <B* w*, x> + noise,   noise ~ N(0, noise_std^2),

where B* has k orthonormal columns that all clients share. The head w* is the
client's own, w*_i (FedRep, FedAvg), or it belongs to the example's domain z,
one of M, which the client knows (FedDAR): w*_z with

    z ~ pi_i,   pi_i ~ Dirichlet(concentration * prior).

A client always computes with a set of samples, the same in each round. For
population gradients this is a design whose mean squared loss is the population
loss: x = sqrt(d) I, y = sqrt(d) B* w*_i has
|X B w - y|^2 / (2 d) = |B w - B* w*_i|^2 / 2, with the same gradients.

Symbols:
  n (FedRep, FedDAR), M (FedAvg) -> num_clients
  M (FedDAR) -> num_domains
  d, k -> dimension, rank
  m (FedRep), n_i (FedAvg), L (FedDAR) -> samples_per_client
  B* -> representation
  w*_i, w*_z -> heads
  sigma, alpha, p (FedDAR) -> noise_std, concentration, prior

Sources: FedRep, sections 4 and 5.1; FedAvg, sections 3 and 5.1; FedDAR,
sections 3.1 and 5.1, appendices A.1 and B.3.1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

# Independent random streams of one seed.
_REPRESENTATION, _HEADS, _MIXTURES, _INPUTS, _NOISE, _DOMAINS = range(6)
_TEST_INPUTS, _TEST_DOMAINS = 6, 7
_NEW_HEADS, _NEW_INPUTS, _NEW_NOISE = 8, 9, 10


class Samples(NamedTuple):
  """Samples of clients.

  Attributes:
    x: float64 `[n, m, d]`, the inputs.
    y: float64 `[n, m]`, the labels.
    domain: int64 `[n, m]`, from 0 to M - 1, or None without domains.
  """

  x: np.ndarray
  y: np.ndarray
  domain: Optional[np.ndarray] = None

  def at(self, index: Any) -> Samples:
    """The samples at an index of the arrays' first axis or first axes."""
    return Samples(*(a if a is None else a[index] for a in self))


@dataclasses.dataclass(frozen=True)
class LinearProblem:
  """A ground truth and the distribution of clients' samples, see the module.

  Attributes:
    num_clients: Clients that train, n.
    dimension: Numbers in an input, d.
    rank: Columns of the representation, k, at most d.
    samples_per_client: m. None means gradients of the population loss, which
      clients with domains do not have.
    noise_std: Standard deviation of the labels' noise. It affects the samples
      of a new client, but not the gradients of the population loss.
    head_distribution: 'normalized' draws independent normal elements, scaled so
      that each head has the length sqrt(k) (FedRep, Assumption 3).
      'orthonormal' takes the rows of the Q factor of a Gaussian matrix, times
      the square root of their number, which is at least k (FedDAR). 'gaussian'
      draws independent normal elements (FedAvg). The mean square of a head's
      length is k for all of them.
    num_domains: M. None means that clients have the heads.
    concentration: alpha, positive. A smaller value gives a client more samples
      from one domain. For large values all mixtures are the prior.
    prior: p, M positive numbers whose sum is 1. None means equal numbers.
    seed: Non-negative seed of all randomness.
  """

  num_clients: int
  dimension: int
  rank: int
  samples_per_client: Optional[int] = None
  noise_std: float = 0.0
  head_distribution: str = 'orthonormal'
  num_domains: Optional[int] = None
  concentration: float = 0.4
  prior: Optional[Sequence[float]] = None
  seed: int = 0

  @classmethod
  def of(cls, sizes: Any, **others: Any) -> LinearProblem:
    """The problem with the fields that a study's sizes have, and others."""
    known = {n: v for n, v in vars(sizes).items() if n in cls.__annotations__}
    return cls(**{**known, **others})

  @functools.cached_property
  def representation(self) -> np.ndarray:
    """B*, the Q factor of a Gaussian matrix: float64 `[d, k]`."""
    return random_orthonormal(
      self.dimension, self.rank, self._rng(_REPRESENTATION)
    )

  @functools.cached_property
  def heads(self) -> np.ndarray:
    """The clients' w*_i, float64 `[n, k]`, or the domains' w*_z, `[M, k]`."""
    num_heads, rng = self.num_domains or self.num_clients, self._rng(_HEADS)
    if self.head_distribution != 'orthonormal':
      return self._independent_heads(num_heads, rng)
    return np.sqrt(num_heads) * random_orthonormal(num_heads, self.rank, rng)

  @property
  def targets(self) -> np.ndarray:
    """The regressors B* w*, `[n, d]` or `[M, d]`."""
    return self.heads @ self.representation.T

  @functools.cached_property
  def mixtures(self) -> np.ndarray:
    """The clients' probabilities pi_i of the domains, float64 `[n, M]`."""
    # Uses logarithms of Gamma variables: for small parameters the variables
    # themselves may all be too small for a float.
    rng = self._rng(_MIXTURES)
    shape = (self.num_clients, self.num_domains)
    prior = (
      np.full(shape[1], 1 / shape[1]) if self.prior is None else self.prior
    )
    parameters = self.concentration * np.asarray(prior)
    logs = (
      np.log(rng.standard_gamma(parameters + 1, shape))
      + np.log1p(-rng.random(shape)) / parameters
    )
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)

  def samples(self) -> Samples:
    """The samples that clients have in each round.

    Returns:
      Arrays `[n, m, d]` and `[n, m]`. For population gradients (see the module)
      `[n, d, d]` and `[n, d]`.
    """
    if self.samples_per_client is None:
      scale = np.sqrt(self.dimension)
      design = scale * np.eye(self.dimension)
      x = np.broadcast_to(design, (self.num_clients, *design.shape))
      return Samples(x, scale * self.targets)
    samples = self._draw_samples(self.samples_per_client, _INPUTS, _DOMAINS)
    noise = self._rng(_NOISE).standard_normal(samples.y.shape)
    return samples._replace(y=samples.y + self.noise_std * noise)

  def test_samples(self, num_samples: int) -> Samples:
    """Other samples of the same clients, with labels without noise."""
    return self._draw_samples(num_samples, _TEST_INPUTS, _TEST_DOMAINS)

  def new_clients(
    self, num_clients: int, num_samples: int
  ) -> tuple[Samples, np.ndarray]:
    """Clients that did not train, with the same representation.

    Their heads are normalized if the training clients' heads are. Otherwise
    they have independent normal elements, which is the limit distribution of
    many 'orthonormal' heads. A smaller number of samples gives the first
    samples of a larger number.

    Returns:
      Their noisy samples, and the ground truths B* w*, `[num_clients, d]`.
    """
    heads = self._independent_heads(num_clients, self._rng(_NEW_HEADS))
    targets = heads @ self.representation.T
    # Draws a sample of all clients, then the next one.
    shape = (num_samples, num_clients)
    x = self._rng(_NEW_INPUTS).standard_normal((*shape, self.dimension))
    noise = self._rng(_NEW_NOISE).standard_normal(shape)
    y = np.einsum('mnd,nd->mn', x, targets) + self.noise_std * noise
    return Samples(x.swapaxes(0, 1), y.T), targets

  def _independent_heads(self, number, rng):
    heads = rng.standard_normal((number, self.rank))
    if self.head_distribution == 'normalized':
      lengths = np.linalg.norm(heads, axis=1, keepdims=True)
      heads *= np.sqrt(self.rank) / lengths
    return heads

  def _rng(self, stream):
    return np.random.default_rng([self.seed, stream])

  def _draw_samples(self, num_samples, input_stream, domain_stream):
    """Noiseless samples."""
    shape = (self.num_clients, num_samples)
    x = self._rng(input_stream).standard_normal((*shape, self.dimension))
    if self.num_domains is None:
      return Samples(x, np.einsum('nmd,nd->nm', x, self.targets))
    # The inverse of the distribution function never gives a domain of
    # probability 0.
    position = self._rng(domain_stream).random(shape)
    bounds = np.cumsum(self.mixtures, axis=1)
    bounds /= bounds[:, -1:]
    is_beyond = position[..., np.newaxis] >= bounds[:, np.newaxis, :-1]
    domain = is_beyond.sum(axis=-1)
    y = np.einsum('nmd,nmd->nm', x, self.targets[domain])
    return Samples(x, y, domain)


def random_orthonormal(
  num_rows: int, num_columns: int, rng: np.random.Generator
) -> np.ndarray:
  """The Q factor of a Gaussian matrix, float64."""
  return np.linalg.qr(rng.standard_normal((num_rows, num_columns)))[0]
