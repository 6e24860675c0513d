"""First models of the linear methods.

* `random_representation`: orthonormal columns with a random span.
* `representation_at_distance`: with a given distance from the ground truth.
* `method_of_moments`: from one aggregation over the clients' samples (FedRep,
  FedDAR).
* `theorem_1_initialization`: scaled as FedAvg's Theorem 1 asks.

References:
  Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for
  Personalized Federated Learning, ICML 2021, section 4.1, Algorithm 2.
  Tripuraneni, Jin, Jordan: Provable Meta-Learning of Linear Representations,
  ICML 2021, Algorithm 1.
  Collins, Hassani, Mokhtari, Shakkottai: FedAvg with Fine Tuning: Local Updates
  Lead to Representation Learning, NeurIPS 2022, Theorem 1, Proposition 1.
  Zhong, He, Ren, Li, Li: FedDAR: Federated Domain-Aware Representation
  Learning, ICLR 2023, Algorithm 2.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from binaries.papers.linear import domain_problem
from binaries.papers.linear import model as model_lib
from binaries.papers.linear import problem as problem_lib
from tff_pfl import errors


def random_representation(
  dimension: int, rank: int, seed: int = 0
) -> np.ndarray:
  """A random matrix with orthonormal columns.

  Args:
    dimension: d, at least 1.
    rank: k, from 1 to `dimension`.
    seed: Non-negative. The matrix is independent of the ground truth of the
      problem that was made with the same seed.

  Returns:
    float64 `[d, k]`.
  """
  errors.expect_int('dimension', dimension, 1)
  errors.expect_int('rank', rank, 1, dimension)
  return problem_lib.random_orthonormal(
    dimension, rank, _rng(seed, 'representation')
  )


def representation_at_distance(
  representation: np.ndarray, distance: float, seed: int = 0
) -> np.ndarray:
  """Orthonormal columns at a principal angle distance from given ones.

  All k principal angles are the same, in a random direction each: a method has
  to improve on k directions to come closer.

  Args:
    representation: float64 `[d, k]` with orthonormal columns, d >= 2 k.
    distance: In [0, 1].
    seed: Non-negative, of the directions.

  Returns:
    float64 `[d, k]`.
  """
  dimension, rank = np.shape(representation)
  errors.expect(
    dimension >= 2 * rank,
    'representation',
    'a matrix with at least twice as many rows as columns',
    (dimension, rank),
  )
  errors.expect(0 <= distance <= 1, 'distance', 'in [0, 1]', distance)
  directions = _rng(seed, 'distance').standard_normal((dimension, rank))
  # Twice, as rounding leaves a trace of the given columns in the difference.
  for _ in range(2):
    directions -= representation @ (representation.T @ directions)
    directions = np.linalg.qr(directions)[0]
  return np.sqrt(1 - distance**2) * representation + distance * directions


def theorem_1_initialization(
  dimension: int,
  rank: int,
  learning_rate: float,
  *,
  head_norm: float = 0.0,
  representation: Optional[np.ndarray] = None,
  seed: int = 0,
) -> model_lib.LinearModel:
  """A model as Theorem 1 asks: I - alpha B^T B = 0 and a small head.

  Args:
    dimension: d.
    rank: k.
    learning_rate: alpha, positive. B has orthonormal columns times
      1 / sqrt(alpha).
    head_norm: Length of w, whose direction is random; at least 0.
    representation: float64 `[d, k]` with orthonormal columns, to be scaled; by
      default a random one.
    seed: Non-negative.

  Returns:
    The model.
  """
  errors.expect_positive('learning_rate', learning_rate)
  errors.expect_non_negative('head_norm', head_norm)
  if representation is None:
    representation = random_representation(dimension, rank, seed)
  errors.expect(
    np.shape(representation) == (dimension, rank),
    'representation',
    f'of shape {(dimension, rank)}',
    np.shape(representation),
  )
  head = _rng(seed, 'head').standard_normal(rank)
  return model_lib.LinearModel(
    representation / np.sqrt(learning_rate),
    head * (head_norm / np.linalg.norm(head)),
  )


def method_of_moments(problem: domain_problem.Problem) -> np.ndarray:
  """The method of moments, with one aggregation over the clients.

  Client i sends Z_i = (1 / m) sum_j y_ij^2 x_ij x_ij^T; the server takes the
  eigenvectors of their uniform mean with the k largest eigenvalues. For x of
  unit covariance the mean tends to 2 B* C B*^T + trace(C) I, with C the second
  moment of the heads, so they tend to the span of B*.

  Args:
    problem: With finitely many samples; those of round 0 are used, which a run
      with fresh samples has in its first round, too.

  Returns:
    float64 `[d, k]` with orthonormal columns.

  Raises:
    ValueError: For a problem of population gradients, whose design has other
      fourth moments than Gaussian inputs.
  """
  errors.expect(
    not problem.is_population,
    'problem.samples_per_client',
    'a number of samples for the method of moments',
    problem.samples_per_client,
  )
  samples = problem.samples(0)
  mean = np.mean(
    [
      _second_moments(problem_lib.LinearSamples(x, y)).numpy()
      for x, y in zip(samples.x, samples.y)
    ],
    axis=0,
  )
  return _top_eigenvectors(tf.constant(mean), problem.rank).numpy()


def _second_moments(samples: Any) -> tf.Tensor:
  num_samples = tf.cast(tf.shape(samples.y)[0], tf.float64)
  weighted = samples.x * samples.y[:, tf.newaxis]
  return tf.matmul(weighted, weighted, transpose_a=True) / num_samples


def _top_eigenvectors(matrix: tf.Tensor, rank: int) -> tf.Tensor:
  # Eigenvalues ascend.
  return tf.linalg.eigh(matrix)[1][:, -rank:]


def _rng(seed: int, stream: str) -> np.random.Generator:
  errors.expect_int('seed', seed, 0, 2**63 - 1)
  return np.random.default_rng([seed, *stream.encode()])
