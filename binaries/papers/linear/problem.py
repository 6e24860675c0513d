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

What a client computes with is always a set of samples, the same in each round.
For population gradients it is a design whose mean squared loss is the
population loss: x = sqrt(d) I, y = sqrt(d) B* w*_i has
|X B w - y|^2 / (2 d) = |B w - B* w*_i|^2 / 2, with the same gradients.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, sections 4 and 5.1.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, sections 3 and 5.1.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl.models import randomness

# Independent random streams of one seed.
_REPRESENTATION, _HEADS, _INPUTS, _NOISE, _NEW_HEAD, _NEW_INPUTS, _NEW_NOISE = (
  range(7)
)


class LinearSamples(NamedTuple):
  """Samples of clients, or of one client without the first axis.

  Attributes:
    x: float64 `[num_clients, m, d]`, the inputs; `[1, m, d]` where all clients
      have the same.
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
class LinearProblem:
  """A ground truth with a head for each client, and how clients see it.

  Attributes:
    num_clients: Clients that train.
    dimension: Of the inputs, d.
    rank: Columns of the representation, k, at most d.
    samples_per_client: m; None for gradients of the population loss.
    noise_std: Standard deviation of the labels' noise. The population's
      gradients do not depend on it; the samples of a new client do.
    head_distribution: 'normalized': a client's head is a Gaussian vector scaled
      to length sqrt(k) (FedRep); 'gaussian': independent normal elements
      (FedAvg).
    seed: Non-negative. Determines everything.
  """

  num_clients: int
  dimension: int
  rank: int
  samples_per_client: Optional[int] = None
  noise_std: float = 0.0
  head_distribution: str = 'normalized'
  seed: int = 0

  @functools.cached_property
  def representation(self) -> np.ndarray:
    """B*, the Q factor of a Gaussian matrix: float64 `[d, k]`."""
    return random_orthonormal(
      self.dimension, self.rank, self._rng(_REPRESENTATION)
    )

  @functools.cached_property
  def heads(self) -> np.ndarray:
    """The clients' w*_i: float64 `[num_clients, k]`."""
    return self._draw_heads(self.num_clients, self._rng(_HEADS))

  @property
  def targets(self) -> np.ndarray:
    """The regressors B* w*_i: float64 `[num_clients, d]`."""
    return self.heads @ self.representation.T

  def samples(self) -> LinearSamples:
    """What the clients compute with in each round.

    Returns:
      float64 tensors, `[num_clients, m, d]` and `[num_clients, m]`. The
      population's are as the module says, `[1, d, d]` and `[num_clients, d]`.
    """
    if self.samples_per_client is None:
      scale = np.sqrt(self.dimension)
      design = tf.constant(scale * np.eye(self.dimension))
      return LinearSamples(
        design[tf.newaxis], tf.constant(scale * self.targets)
      )
    shape = (self.num_clients, self.samples_per_client)
    x = normal(stream_seed(self.seed, _INPUTS), (*shape, self.dimension))
    noise = normal(stream_seed(self.seed, _NOISE), shape)
    return LinearSamples(
      x, tf.linalg.matvec(x, self.targets) + self.noise_std * noise
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
    head = self._draw_heads(1, self._rng(_NEW_HEAD, index))[0]
    target = self.representation @ head
    inputs, noises = (self._rng(s, index) for s in (_NEW_INPUTS, _NEW_NOISE))
    x = inputs.standard_normal((num_samples, self.dimension))
    noise = noises.standard_normal(num_samples)
    return NewClient(x, x @ target + self.noise_std * noise, target)

  def _rng(self, *stream):
    return np.random.default_rng([self.seed, *stream])

  def _draw_heads(self, num_heads, rng):
    heads = rng.standard_normal((num_heads, self.rank))
    if self.head_distribution == 'normalized':
      lengths = np.linalg.norm(heads, axis=1, keepdims=True)
      heads *= np.sqrt(self.rank) / lengths
    return heads


def stream_seed(seed: int, stream: int) -> tf.Tensor:
  """The seed of one of a problem's random streams, an int32 tensor `[2]`."""
  return randomness.fold_in(
    tf.bitcast(tf.constant(seed, tf.int64), tf.int32), stream, 0
  )


def normal(seed: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
  """Standard normal numbers, float64, by a seed of `stream_seed`."""
  return tf.random.stateless_normal(shape, seed, dtype=tf.float64, alg='philox')


def random_orthonormal(
  num_rows: int, num_columns: int, rng: np.random.Generator
) -> np.ndarray:
  """The Q factor of a Gaussian matrix, float64."""
  return np.linalg.qr(rng.standard_normal((num_rows, num_columns)))[0]
