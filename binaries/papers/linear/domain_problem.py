"""Multi-task linear regression whose tasks are domains that clients mix.

Client i of n has examples (x, z, y) with a domain z of M that it knows:

    z ~ pi_i,   x ~ N(0, I_d),   y = <B* w*_z, x> + noise,
    noise ~ N(0, noise_std^2),   pi_i ~ Dirichlet(concentration * prior),

where B* has k orthonormal columns. All clients share B* and the M heads; what
is a client's own is its mixture pi_i of the domains.

Symbols:
  n -> num_clients
  M -> num_domains
  L -> samples_per_client
  alpha -> concentration
  p -> prior
  sigma -> noise_std

References:
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, sections 3.1 and 5.1, appendices A.1 and B.3.1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from binaries.papers.linear import problem as problem_lib

# Independent random streams of one seed.
_MIXTURES = 7
_DOMAINS, _INPUTS, _NOISE, _TEST_DOMAINS, _TEST_INPUTS = range(5)


@dataclasses.dataclass(frozen=True)
class DomainProblem:
  """A ground truth with a head for each domain, and how clients see it.

  Attributes:
    num_clients: Clients that train, n.
    dimension: Of the inputs, d.
    rank: Columns of the representation, k.
    num_domains: M.
    samples_per_client: L, at least 1.
    concentration: alpha, positive. The smaller, the more of a client's samples
      are of one domain; for large ones all mixtures are the prior.
    prior: p, M positive numbers whose sum is 1; by default all the same.
    noise_std: Standard deviation of the labels' noise.
    seed: Non-negative. Determines everything.
  """

  num_clients: int
  dimension: int
  rank: int
  num_domains: int
  samples_per_client: int
  concentration: float = 0.4
  prior: Optional[Sequence[float]] = None
  noise_std: float = 0.0
  seed: int = 0

  @functools.cached_property
  def truth(self) -> problem_lib.LinearProblem:
    """A head for each domain, as there would be one for each client."""
    return problem_lib.LinearProblem(
      self.num_domains, self.dimension, self.rank, seed=self.seed
    )

  @property
  def representation(self) -> np.ndarray:
    """B*: float64 `[d, k]` with orthonormal columns."""
    return self.truth.representation

  @functools.cached_property
  def mixtures(self) -> np.ndarray:
    """The clients' probabilities of the domains, float64 `[n, M]`.

    Dirichlet distributed, from the logarithms of Gamma variables: of small
    parameters the variables themselves may all be too small for a float.
    """
    rng = np.random.default_rng([self.seed, _MIXTURES])
    prior = self.prior
    if prior is None:
      prior = np.full(self.num_domains, 1 / self.num_domains)
    parameters = self.concentration * np.asarray(prior, np.float64)
    shape = (self.num_clients, self.num_domains)
    logs = (
      np.log(rng.standard_gamma(parameters + 1, shape))
      + np.log1p(-rng.random(shape)) / parameters
    )
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)

  def samples(self) -> problem_lib.DomainSamples:
    """What the clients compute with in each round."""
    samples = self._draw(_DOMAINS, _INPUTS, self.samples_per_client)
    noise = problem_lib.normal(
      problem_lib.stream_seed(self.seed, _NOISE), samples.y.shape
    )
    return samples._replace(y=samples.y + self.noise_std * noise)

  def test_samples(self, num_samples: int) -> problem_lib.DomainSamples:
    """Other samples of the same clients, whose labels have no noise."""
    return self._draw(_TEST_DOMAINS, _TEST_INPUTS, num_samples)

  def _draw(self, domain_stream, input_stream, num_samples):
    """Noiseless samples."""
    shape = (self.num_clients, num_samples)
    x = problem_lib.normal(
      problem_lib.stream_seed(self.seed, input_stream),
      (*shape, self.dimension),
    )
    # By the inverse of the distribution function, which never takes a domain
    # of probability 0.
    position = tf.random.stateless_uniform(
      shape,
      problem_lib.stream_seed(self.seed, domain_stream),
      dtype=tf.float64,
      alg='philox',
    )
    bounds = np.cumsum(self.mixtures, axis=1)
    bounds /= bounds[:, -1:]
    domain = tf.reduce_sum(
      tf.cast(
        position[..., tf.newaxis] >= bounds[:, np.newaxis, :-1], tf.int32
      ),
      axis=-1,
    )
    y = tf.reduce_sum(x * tf.gather(self.truth.targets, domain), axis=-1)
    return problem_lib.DomainSamples(x, y, domain)


Problem = Union[problem_lib.LinearProblem, DomainProblem]
