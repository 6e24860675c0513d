"""First models of the linear methods."""

from __future__ import annotations

import numpy as np

from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib


def with_zero_head(representation: np.ndarray) -> model_lib.LinearModel:
  """The model of a representation `[d, k]` with a head of zeros."""
  return model_lib.LinearModel(
    representation, np.zeros(representation.shape[1])
  )


def random_representation(
  dimension: int, rank: int, seed: int = 0
) -> np.ndarray:
  """A random matrix with orthonormal columns, float64 `[d, k]`.

  It is independent of the ground truth of the problem that was made with the
  same seed.
  """
  return problem_lib.random_orthonormal(
    dimension, rank, _rng(seed, b'representation')
  )


def representation_at_distance(
  representation: np.ndarray, distance: float, seed: int = 0
) -> np.ndarray:
  """Orthonormal columns at a principal angle distance from given ones.

  All k principal angles are the same, in a random direction each: a method has
  to improve on k directions to come closer (FedAvg, Proposition 1).

  Args:
    representation: float64 `[d, k]` with orthonormal columns, d >= 2 k.
    distance: In [0, 1].
    seed: Non-negative, of the directions.
  """
  directions = _rng(seed, b'distance').standard_normal(representation.shape)
  # Twice, as rounding leaves a trace of the given columns in the difference.
  for _ in range(2):
    directions -= representation @ (representation.T @ directions)
    directions = np.linalg.qr(directions)[0]
  return np.sqrt(1 - distance**2) * representation + distance * directions


def method_of_moments(problem: problem_lib.LinearProblem) -> np.ndarray:
  """The method of moments, with one aggregation over the clients.

  Client i sends Z_i = (1 / m) sum_j y_ij^2 x_ij x_ij^T; the server takes the
  eigenvectors of their uniform mean with the k largest eigenvalues. For x of
  unit covariance the mean tends to 2 B* C B*^T + trace(C) I, with C the second
  moment of the heads, so they tend to the span of B*.

  Sources: FedRep, section 4.1, Algorithm 2; FedDAR, Algorithm 2; Tripuraneni,
  Jin, Jordan: Provable Meta-Learning of Linear Representations, ICML 2021,
  Algorithm 1.

  Args:
    problem: With finitely many samples: the design of population gradients has
      other fourth moments than Gaussian inputs.

  Returns:
    float64 `[d, k]` with orthonormal columns.
  """
  samples = problem.samples()
  weighted = samples.x * samples.y[..., np.newaxis]
  of_clients = weighted.swapaxes(1, 2) @ weighted / samples.y.shape[1]
  # Eigenvalues ascend.
  _, vectors = np.linalg.eigh(of_clients.mean(axis=0))
  return vectors[:, -problem.rank :]


def _rng(seed: int, stream: bytes) -> np.random.Generator:
  return np.random.default_rng([seed, *stream])
