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
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from binaries.papers.linear import problem as problem_lib
from tff_pfl import errors

# Independent random streams of one seed.
_MIXTURES = 7
_DOMAINS, _INPUTS, _NOISE, _TEST_DOMAINS, _TEST_INPUTS = range(5)
_SUM_TOLERANCE = 1e-8


@dataclasses.dataclass(frozen=True)
class DomainProblem(problem_lib.GroundTruth):
  """A ground truth with a head for each domain, and how clients see it.

  Attributes:
    representation: float64 `[d, k]` with orthonormal columns, B*.
    heads: float64 `[M, k]`, the domains' w*_m.
    mixtures: float64 `[n, M]`, the clients' probabilities of the domains.
    samples_per_client: L, at least 1.
    fresh_samples: Whether clients draw new samples in each round.
    noise_std: Standard deviation of the labels' noise.
    seed: Fixes the samples.
  """

  mixtures: np.ndarray
  samples_per_client: int
  fresh_samples: bool = False
  noise_std: float = 0.0
  seed: int = 0

  def __post_init__(self):
    super().__post_init__()
    mixtures = np.asarray(self.mixtures, np.float64)
    object.__setattr__(self, 'mixtures', mixtures)
    errors.expect(
      mixtures.ndim == 2
      and len(mixtures)
      and mixtures.shape[1] == len(self.heads),
      'mixtures',
      f'rows of {len(self.heads)} numbers, as there are heads',
      f'the shape {mixtures.shape}',
    )
    errors.expect(
      (mixtures >= 0).all()
      and (np.abs(mixtures.sum(axis=1) - 1) <= _SUM_TOLERANCE).all(),
      'mixtures',
      'rows of probabilities whose sum is 1',
      f'a least number {mixtures.min():.3g} and sums from '
      f'{mixtures.sum(axis=1).min():.3g} to {mixtures.sum(axis=1).max():.3g}',
    )
    errors.expect_int('samples_per_client', self.samples_per_client, 1)
    errors.expect_non_negative('noise_std', self.noise_std)
    errors.expect_int('seed', self.seed, 0, 2**63 - 1)

  @property
  def num_clients(self) -> int:
    """Clients that train, n."""
    return len(self.mixtures)

  @property
  def num_domains(self) -> int:
    """M."""
    return len(self.heads)

  @property
  def num_rows(self) -> int:
    """Rows of a client's samples, L."""
    return self.samples_per_client

  @property
  def is_population(self) -> bool:
    """False: clients always have samples."""
    return False

  def samples(self, round_number: Any = 0) -> problem_lib.DomainSamples:
    """What the clients compute with in a round.

    Args:
      round_number: Integer or integer tensor, at least 0. Only fresh samples
        depend on it. Works in graphs, too.
    """
    index = round_number if self.fresh_samples else 0
    samples = self._draw(_DOMAINS, _INPUTS, index, self.num_rows)
    noise = problem_lib.normal(
      problem_lib.stream_seed(self.seed, _NOISE, index),
      (self.num_clients, self.num_rows),
    )
    return samples._replace(y=samples.y + self.noise_std * noise)

  def test_samples(self, num_samples: int) -> problem_lib.DomainSamples:
    """Other samples of the same clients, whose labels have no noise.

    Args:
      num_samples: How many of each client, at least 1.
    """
    errors.expect_int('num_samples', num_samples, 1)
    return self._draw(_TEST_DOMAINS, _TEST_INPUTS, 0, num_samples)

  def domain_counts(self, round_number: int = 0) -> np.ndarray:
    """int64 `[n, M]`, the clients' samples of each domain in a round."""
    domain = self.samples(round_number).domain.numpy()
    return np.stack(
      [np.bincount(row, minlength=self.num_domains) for row in domain]
    )

  def objective_samples(self) -> problem_lib.DomainSamples:
    """Samples whose mean squared loss is what the clients minimize together.

    The training samples where they stay the same. Where they do not, a design
    of M d rows for each client whose loss is its population's: of each domain m
    the rows sqrt(M d pi_im) I.
    """
    if not self.fresh_samples:
      return self.samples()
    scales = np.sqrt(self.num_domains * self.dimension * self.mixtures)
    rows = (self.num_clients, self.num_domains * self.dimension)
    x = scales[:, :, np.newaxis, np.newaxis] * np.eye(self.dimension)
    y = scales[:, :, np.newaxis] * self.targets
    domain = np.repeat(np.arange(self.num_domains), self.dimension)
    return problem_lib.DomainSamples(
      tf.constant(x.reshape(*rows, self.dimension)),
      tf.constant(y.reshape(rows)),
      tf.constant(np.broadcast_to(domain, rows), tf.int32),
    )

  def _draw(self, domain_stream, input_stream, index, num_samples):
    """Noiseless samples."""
    shape = (self.num_clients, num_samples)
    x = problem_lib.normal(
      problem_lib.stream_seed(self.seed, input_stream, index),
      (*shape, self.dimension),
    )
    # By the inverse of the distribution function, which never takes a domain
    # of probability 0.
    position = tf.random.stateless_uniform(
      shape,
      problem_lib.stream_seed(self.seed, domain_stream, index),
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
    y = tf.reduce_sum(x * tf.gather(self.targets, domain), axis=-1)
    return problem_lib.DomainSamples(x, y, domain)


Problem = Union[problem_lib.LinearProblem, DomainProblem]


def make_domain_problem(
  num_clients: int,
  dimension: int,
  rank: int,
  num_domains: int,
  *,
  samples_per_client: int,
  concentration: float = 0.4,
  prior: Optional[Sequence[float]] = None,
  fresh_samples: bool = False,
  noise_std: float = 0.0,
  seed: int = 0,
) -> DomainProblem:
  """Draws a ground truth, and the clients' mixtures of domains.

  Args:
    num_clients: n, at least 1.
    dimension: d, at least 1.
    rank: k, from 1 to `dimension`.
    num_domains: M, at least 1.
    samples_per_client: L, at least 1.
    concentration: alpha, positive. The smaller, the more of a client's samples
      are of one domain; for large ones all mixtures are the prior.
    prior: p, M positive numbers whose sum is 1; by default all the same.
    fresh_samples: Whether clients draw new samples in each round.
    noise_std: Standard deviation of the labels' noise, at least 0.
    seed: Non-negative. Determines everything.

  Returns:
    The problem. B* is the Q factor of a Gaussian matrix; the heads are Gaussian
    vectors scaled to length sqrt(k).

  Raises:
    ValueError: An argument is out of range.
  """
  errors.expect_int('num_clients', num_clients, 1)
  errors.expect_int('num_domains', num_domains, 1)
  errors.expect_positive('concentration', concentration)
  if prior is None:
    prior = np.full(num_domains, 1 / num_domains)
  prior = np.asarray(prior, np.float64)
  errors.expect(
    prior.shape == (num_domains,)
    and (prior > 0).all()
    and abs(prior.sum() - 1) <= _SUM_TOLERANCE,
    'prior',
    f'{num_domains} positive numbers whose sum is 1',
    prior.tolist(),
  )
  # A head for each domain as there would be one for each client.
  truth = problem_lib.make_problem(num_domains, dimension, rank, seed=seed)
  return DomainProblem(
    representation=truth.representation,
    heads=truth.heads,
    mixtures=_draw_mixtures(
      concentration * prior,
      num_clients,
      np.random.default_rng([seed, _MIXTURES]),
    ),
    samples_per_client=samples_per_client,
    fresh_samples=fresh_samples,
    noise_std=noise_std,
    seed=seed,
  )


def _draw_mixtures(parameters, num_clients, rng):
  """Dirichlet distributed rows.

  From the logarithms of Gamma variables: of small parameters the variables
  themselves may all be too small for a float.
  """
  shape = (num_clients, len(parameters))
  logs = (
    np.log(rng.standard_gamma(parameters + 1, shape))
    + np.log1p(-rng.random(shape)) / parameters
  )
  weights = np.exp(logs - logs.max(axis=1, keepdims=True))
  return weights / weights.sum(axis=1, keepdims=True)
