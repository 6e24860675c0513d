"""The linear model x -> <B w, x> of many clients: its algebra, first models.

A part of a model that all clients share has the axes below. A leading axis
`[n]` means that each client has its own part, and `[M]` that each domain has:
w_z (and B_z) predict an example of domain z. The regressors B w of n clients
are `[n, d]`, and `[n, M, d]` with domains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import problem as problem_lib

# Smaller singular values and eigenvalues, relative to the largest, are rounding
# errors.
_RELATIVE_ZERO = 1e-13


class LinearModel(NamedTuple):
  """A two-layer linear model.

  Attributes:
    representation: float64 `[..., d, k]`, B.
    head: float64 `[..., k]`, w.
  """

  representation: np.ndarray
  head: np.ndarray


def multiply(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
  """`[..., p, q]` times `[..., q]`."""
  # BLAS would use threads for each of many small products, einsum does not.
  return np.einsum('...pq,...q->...p', matrices, vectors)


def regressors(model: LinearModel) -> np.ndarray:
  """B w, `[..., d]`, one for each head."""
  return multiply(model.representation, model.head)


def membership(samples: problem_lib.Samples, num_domains: int) -> np.ndarray:
  """float64 `[n, m, M]`: 1 if a sample belongs to the domain, else 0."""
  is_member = samples.domain[..., np.newaxis] == np.arange(num_domains)
  return is_member.astype(np.float64)


def residuals(theta: np.ndarray, samples: problem_lib.Samples) -> np.ndarray:
  """X theta - y, `[n, m]`, or `[n, m, M]` with domains, 0 for other domains."""
  if theta.ndim == 2:
    return multiply(samples.x, theta) - samples.y
  errors = samples.x @ theta.swapaxes(1, 2) - samples.y[..., np.newaxis]
  return errors * membership(samples, theta.shape[1])


def losses(theta: np.ndarray, samples: problem_lib.Samples) -> np.ndarray:
  """The clients' losses f_i = |X theta - y|^2 / (2 m), `[n]`."""
  num_clients, num_samples = samples.y.shape
  squares = np.square(residuals(theta, samples)).reshape(num_clients, -1)
  return squares.sum(axis=1) / (2 * num_samples)


def regressor_gradients(
  theta: np.ndarray, samples: problem_lib.Samples
) -> np.ndarray:
  """The gradients of f_i for the regressors: X^T (X theta - y) / m.

  Each row is for the samples of one domain if there are domains, but m counts
  all samples.
  """
  errors = residuals(theta, samples) / samples.y.shape[1]
  if theta.ndim == 2:
    return multiply(samples.x.swapaxes(1, 2), errors)
  return errors.swapaxes(1, 2) @ samples.x


def part_gradients(model: LinearModel, g: np.ndarray) -> LinearModel:
  """The gradients for B and w of a function whose gradient for B w is g.

  Returns:
    g w^T, `[..., d, k]`, and B^T g, `[..., k]`, one for each head, even if
    several heads share a representation.
  """
  return LinearModel(
    g[..., np.newaxis] * model.head[..., np.newaxis, :],
    multiply(model.representation.swapaxes(-1, -2), g),
  )


def gradients(model: LinearModel, samples: problem_lib.Samples) -> LinearModel:
  """The gradients of f_i, `[n, d, k]` and `[n, k]`, for n heads."""
  g = regressor_gradients(regressors(model), samples)
  return part_gradients(model, g)


def for_clients(model: LinearModel, num_clients: int) -> LinearModel:
  """A shared model with a leading axis of `num_clients` copies."""
  return LinearModel(
    *(np.broadcast_to(part, (num_clients, *part.shape)) for part in model)
  )


def descend(
  models: LinearModel,
  samples: problem_lib.Samples,
  learning_rate: float,
  num_steps: int,
) -> LinearModel:
  """The clients' models after full-batch gradient steps on both parts."""
  for _ in range(num_steps):
    slopes = gradients(models, samples)
    models = LinearModel(
      *(part - learning_rate * slope for part, slope in zip(models, slopes))
    )
  return models


def orthonormalize(matrix: np.ndarray) -> np.ndarray:
  """The Q of `matrix` = Q R whose R has a non-negative diagonal.

  This Q is unique and changes little if the matrix does, so that the heads that
  clients keep from one round to the next still fit it.
  """
  q, r = np.linalg.qr(matrix)
  return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def least_squares(
  matrix: np.ndarray, right_side: np.ndarray, ridge: float = 0.0
) -> np.ndarray:
  """The w that minimizes |matrix w - right_side|^2 / (2 m) + ridge |w|^2 / 2.

  Args:
    matrix: `[..., m, k]`.
    right_side: `[..., m]`.
    ridge: 0 means least squares. If there are several solutions, as for
      `m < k`, it is the solution of the least norm.
  """
  if not ridge:
    return multiply(np.linalg.pinv(matrix, _RELATIVE_ZERO), right_side)
  transposed = matrix.swapaxes(-1, -2)
  moments = multiply(transposed, right_side)
  num_rows, num_columns = matrix.shape[-2:]
  gram = transposed @ matrix + num_rows * ridge * np.eye(num_columns)
  return np.linalg.solve(gram, moments[..., np.newaxis])[..., 0]


def solve_normal_equations(gram: np.ndarray, moments: np.ndarray) -> np.ndarray:
  """The w of the least norm with gram w = moments. Zeros give zeros.

  It needs only the sums. `least_squares` of the rows behind the sums has the
  same solution, with twice as many correct digits.

  Args:
    gram: `[..., k, k]`, such as a sum of z z^T.
    moments: `[..., k]`, in the range of gram, such as the sum of y z.
  """
  inverse = np.linalg.pinv(gram, _RELATIVE_ZERO, hermitian=True)
  return multiply(inverse, moments)


def with_zero_head(representation: np.ndarray) -> LinearModel:
  """The model of a representation `[d, k]` with a head of zeros."""
  return LinearModel(representation, np.zeros(representation.shape[1]))


def random_representation(
  dimension: int, rank: int, seed: int = 0
) -> np.ndarray:
  """Orthonormal columns, `[d, k]`, unlike those in the seed's problem."""
  return problem_lib.random_orthonormal(
    dimension, rank, np.random.default_rng([seed, *b'representation'])
  )


def representation_at_distance(
  representation: np.ndarray, distance: float, seed: int = 0
) -> np.ndarray:
  """Orthonormal columns at a principal angle distance from given ones.

  All k principal angles are equal, each in a random direction: a method has to
  improve k directions to come closer (FedAvg, Proposition 1).

  Args:
    representation: `[d, k]` with orthonormal columns, d >= 2 k.
    distance: Principal angle distance, in [0, 1].
  """
  directions = np.random.default_rng([seed, *b'distance']).standard_normal(
    representation.shape
  )
  # Twice, because rounding leaves a trace of the given columns.
  for _ in range(2):
    directions -= representation @ (representation.T @ directions)
    directions = np.linalg.qr(directions)[0]
  return np.sqrt(1 - distance**2) * representation + distance * directions


def method_of_moments(problem: problem_lib.LinearProblem) -> np.ndarray:
  """The method of moments, with one aggregation over the clients: `[d, k]`.

  Client i sends Z_i = (1 / m) sum_j y_ij^2 x_ij x_ij^T. The server takes the
  eigenvectors of their uniform mean with the k largest eigenvalues. For x of
  unit covariance the mean tends to 2 B* C B*^T + trace(C) I, with C the second
  moment of the heads, so the eigenvectors tend to the span of B*. (The design
  for population gradients has other fourth moments.)

  Sources: FedRep, section 4.1, Algorithm 2; FedDAR, Algorithm 2; Tripuraneni,
  Jin, Jordan: Provable Meta-Learning of Linear Representations, ICML 2021,
  Algorithm 1.
  """
  samples = problem.samples()
  weighted = samples.x * samples.y[..., np.newaxis]
  of_clients = weighted.swapaxes(1, 2) @ weighted / samples.y.shape[1]
  # Eigenvalues ascend.
  _, vectors = np.linalg.eigh(of_clients.mean(axis=0))
  return vectors[:, -problem.rank :]
