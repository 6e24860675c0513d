"""Multi-task linear regression with a shared representation.

Client i of n has examples (x, y) in R^d x R with

    x ~ N(0, I_d),   y = <B* w*_i, x> + noise,   noise ~ N(0, noise_std^2),

where B* has k orthonormal columns that all clients share and w*_i is the
client's own. Both papers study how well a method finds the columns' span.

Symbols:
  n (FedRep), M (FedAvg) -> num_clients
  d -> dimension
  k -> rank
  m (FedRep), n_i (FedAvg) -> samples_per_client
  B* -> representation
  w*_i -> heads[i]

What a client computes with in a round is always a set of samples, of one of
three kinds: the same in each round, new ones in each round, or a design whose
mean squared loss is the population loss: x = sqrt(d) I, y = sqrt(d) B* w*_i has
|X B w - y|^2 / (2 d) = |B w - B* w*_i|^2 / 2, with the same gradients.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, sections 4 and 5.1.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, sections 3 and 5.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.models import randomness

HEADS = ('normalized', 'gaussian')

# Independent random streams of one seed.
_REPRESENTATION, _HEADS, _INPUTS, _NOISE, _NEW_HEAD, _NEW_INPUTS, _NEW_NOISE = (
  range(7)
)
_ORTHONORMAL_TOLERANCE = 1e-8


class LinearSamples(NamedTuple):
  """Samples of clients, or of one client without the first axis.

  Attributes:
    x: float64 `[num_clients, m, d]`, the inputs.
    y: float64 `[num_clients, m]`, the labels.
  """

  x: Any
  y: Any


class DomainSamples(NamedTuple):
  """Samples of clients, or of one client without the first axis, with domains.

  Attributes:
    x: float64 `[num_clients, m, d]`, the inputs.
    y: float64 `[num_clients, m]`, the labels.
    domain: int32 `[num_clients, m]`, from 0 to M - 1.
  """

  x: Any
  y: Any
  domain: Any


Samples = Union[LinearSamples, DomainSamples]


class NewClient(NamedTuple):
  """A client that did not train.

  Attributes:
    x: float64 `[m, d]`, its inputs.
    y: float64 `[m]`, its labels.
    target: float64 `[d]`, its ground truth B* w*.
  """

  x: np.ndarray
  y: np.ndarray
  target: np.ndarray


@dataclasses.dataclass(frozen=True)
class GroundTruth:
  """A representation and the heads on it.

  Attributes:
    representation: float64 `[d, k]` with orthonormal columns, B*.
    heads: float64 `[number of heads, k]`, the w*.
  """

  representation: np.ndarray
  heads: np.ndarray

  def __post_init__(self):
    for name in ('representation', 'heads'):
      value = np.asarray(getattr(self, name), np.float64)
      object.__setattr__(self, name, value)
      errors.expect(
        np.isfinite(value).all(), name, 'finite', 'a number that is not'
      )
    errors.expect(
      np.ndim(self.representation) == 2,
      'representation',
      'a matrix',
      f'the shape {np.shape(self.representation)}',
    )
    errors.expect(
      np.ndim(self.heads) == 2
      and len(self.heads)
      and self.heads.shape[1] == self.rank,
      'heads',
      f'a row of {self.rank} numbers each',
      f'the shape {np.shape(self.heads)}',
    )
    gram = self.representation.T @ self.representation
    deviation = np.abs(gram - np.eye(self.rank)).max()
    errors.expect(
      deviation <= _ORTHONORMAL_TOLERANCE,
      'representation',
      'a matrix with orthonormal columns',
      f'a deviation of {deviation:.2g}',
    )

  @property
  def dimension(self) -> int:
    """Of the inputs, d."""
    return self.representation.shape[0]

  @property
  def rank(self) -> int:
    """Columns of the representation, k."""
    return self.representation.shape[1]

  @property
  def targets(self) -> np.ndarray:
    """float64 `[number of heads, d]`, the regressors B* w*."""
    return self.heads @ self.representation.T


@dataclasses.dataclass(frozen=True)
class LinearProblem(GroundTruth):
  """A ground truth and how clients see it.

  Attributes:
    representation: float64 `[d, k]` with orthonormal columns, B*.
    heads: float64 `[num_clients, k]`, the clients' w*_i.
    samples_per_client: m; None for gradients of the population loss.
    fresh_samples: Whether clients draw new samples in each round.
    noise_std: Standard deviation of the labels' noise. The population's
      gradients do not depend on it; the samples of a new client do.
    seed: Fixes the samples, and new clients.
    head_distribution: What a new client's head is drawn from, one of `HEADS`.
  """

  samples_per_client: Optional[int] = None
  fresh_samples: bool = False
  noise_std: float = 0.0
  seed: int = 0
  head_distribution: str = 'normalized'

  def __post_init__(self):
    super().__post_init__()
    if self.samples_per_client is not None:
      errors.expect_int('samples_per_client', self.samples_per_client, 1)
    errors.expect(
      not (self.fresh_samples and self.samples_per_client is None),
      'fresh_samples',
      'False for population gradients (samples_per_client=None)',
      self.fresh_samples,
    )
    errors.expect_non_negative('noise_std', self.noise_std)
    errors.expect_int('seed', self.seed, 0, 2**63 - 1)
    _expect_head_distribution(self.head_distribution)

  @property
  def num_clients(self) -> int:
    """Clients that train."""
    return len(self.heads)

  @property
  def num_domains(self) -> int:
    """0, as the samples have no domains."""
    return 0

  @property
  def is_population(self) -> bool:
    """Whether the clients have the gradients of the population loss."""
    return self.samples_per_client is None

  @property
  def num_rows(self) -> int:
    """Rows of a client's samples; d for the population's design."""
    return self.dimension if self.is_population else self.samples_per_client

  def samples(self, round_number: Any = 0) -> LinearSamples:
    """What the clients compute with in a round.

    Args:
      round_number: Integer or integer tensor, at least 0. Only fresh samples
        depend on it. Works in graphs, too.

    Returns:
      float64 tensors, `[num_clients, num_rows, d]` and
      `[num_clients, num_rows]`. The population's are as the module says.
    """
    if self.is_population:
      return self._population()
    index = round_number if self.fresh_samples else 0
    shape = (self.num_clients, self.num_rows)
    x = normal(stream_seed(self.seed, _INPUTS, index), (*shape, self.dimension))
    noise = normal(stream_seed(self.seed, _NOISE, index), shape)
    return LinearSamples(
      x, tf.linalg.matvec(x, self.targets) + self.noise_std * noise
    )

  def objective_samples(self) -> LinearSamples:
    """Samples whose mean squared loss is what the clients minimize together.

    The training samples where they stay the same, the population's otherwise.
    """
    if self.is_population or self.fresh_samples:
      return self._population()
    return self.samples()

  def _population(self) -> LinearSamples:
    scale = np.sqrt(self.dimension)
    design = tf.constant(scale * np.eye(self.dimension))
    return LinearSamples(
      tf.broadcast_to(design, (self.num_clients, *design.shape)),
      tf.constant(scale * self.targets),
    )

  def new_client(self, num_samples: int, index: int = 0) -> NewClient:
    """A client that did not train, with the same representation.

    Args:
      num_samples: m, at least 1. Fewer samples of the same client are the first
        ones of more.
      index: Which new client, at least 0. Its head is drawn from the
        distribution of the training clients', and is none of theirs.

    Returns:
      Its samples, with noise of `noise_std`, and its ground truth.
    """
    errors.expect_int('num_samples', num_samples, 1)
    errors.expect_int('index', index, 0)
    head = _draw_heads(
      self.head_distribution, 1, self.rank, self._rng(_NEW_HEAD, index)
    )[0]
    target = self.representation @ head
    x = self._rng(_NEW_INPUTS, index).standard_normal(
      (num_samples, self.dimension)
    )
    noise = self._rng(_NEW_NOISE, index).standard_normal(num_samples)
    return NewClient(x, x @ target + self.noise_std * noise, target)

  def _rng(self, stream: int, index: int) -> np.random.Generator:
    return np.random.default_rng([self.seed, stream, index])


def stream_seed(seed: int, stream: int, index: Any) -> tf.Tensor:
  """The seed of one of a problem's random streams in one round.

  Args:
    seed: The problem's.
    stream: Which stream, at least 0.
    index: Integer or integer tensor, at least 0.

  Returns:
    int32 tensor `[2]`.
  """
  return randomness.fold_in(
    tf.bitcast(tf.constant(seed, tf.int64), tf.int32), stream, index
  )


def normal(seed: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  """Standard normal numbers, float64, by a seed of `stream_seed`."""
  return tf.random.stateless_normal(shape, seed, dtype=tf.float64, alg='philox')


def random_orthonormal(
  num_rows: int, num_columns: int, rng: np.random.Generator
) -> np.ndarray:
  """The Q factor of a Gaussian matrix, float64."""
  return np.linalg.qr(rng.standard_normal((num_rows, num_columns)))[0]


def make_problem(
  num_clients: int,
  dimension: int,
  rank: int,
  *,
  samples_per_client: Optional[int] = None,
  fresh_samples: bool = False,
  noise_std: float = 0.0,
  heads: str = 'normalized',
  seed: int = 0,
) -> LinearProblem:
  """Draws a ground truth.

  Args:
    num_clients: n, at least 1.
    dimension: d, at least 1.
    rank: k, from 1 to `dimension`.
    samples_per_client: m, at least 1; None for population gradients.
    fresh_samples: Whether clients draw new samples in each round.
    noise_std: Standard deviation of the labels' noise, at least 0.
    heads: 'normalized': a client's head is a Gaussian vector scaled to length
      sqrt(k) (FedRep); 'gaussian': independent normal elements (FedAvg).
    seed: Non-negative. Determines everything.

  Returns:
    The problem; B* is the Q factor of a Gaussian matrix.

  Raises:
    ValueError: An argument is out of range.
  """
  errors.expect_int('num_clients', num_clients, 1)
  errors.expect_int('dimension', dimension, 1)
  errors.expect_int('rank', rank, 1, dimension)
  errors.expect_int('seed', seed, 0, 2**63 - 1)
  _expect_head_distribution(heads)
  return LinearProblem(
    representation=random_orthonormal(
      dimension, rank, np.random.default_rng([seed, _REPRESENTATION])
    ),
    heads=_draw_heads(
      heads, num_clients, rank, np.random.default_rng([seed, _HEADS])
    ),
    samples_per_client=samples_per_client,
    fresh_samples=fresh_samples,
    noise_std=noise_std,
    seed=seed,
    head_distribution=heads,
  )


def _draw_heads(distribution, num_clients, rank, rng):
  heads = rng.standard_normal((num_clients, rank))
  if distribution == 'normalized':
    heads *= np.sqrt(rank) / np.linalg.norm(heads, axis=1, keepdims=True)
  return heads


def _expect_head_distribution(value):
  errors.expect(value in HEADS, 'heads', f'one of {", ".join(HEADS)}', value)
