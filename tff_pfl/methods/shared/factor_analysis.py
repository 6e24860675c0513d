"""Factor analysis of a layer's units, from sums over clients.

On client k, unit j of a layer is a column z_kj of numbers: its weights, or
their changes in a round's training. The columns of all clients, one below the
other, are the matrix Z. Its correlations R show which units vary together. The
model R = A A^T + Psi has G common factors (the columns of A) and a diagonal
Psi. It gives the communality of a unit, the part of its variance that the
common factors explain: nu_j = sum_m a_jm^2.

R needs only three sums over clients: of Z_k^T Z_k, of Z_k^T 1 and of the number
of rows. So columns never leave their client, and any aggregator for sums or
means works. A client sends d (d + 1) / 2 + d + 1 numbers for a layer of d
units.

The principal-factor iteration finds A. It starts from Psi = 0, takes the G
largest positive eigenvalues of R - Psi with their eigenvectors, sets Psi to the
rest of R's diagonal, and repeats until the communalities converge or
`max_iterations` are done. If common factors stand out from the rest, it takes 5
to 20 iterations. If there are none, so that nothing distinguishes the units, it
does not converge in a thousand. So the limit bounds the time: an iteration on
512 units takes a twentieth of a second on a CPU core, the whole step half a
second.

Degenerate cases of Z:

* A unit with the same number in all rows of all clients (0, say, if it did not
  move) has no correlation. It is left out, with communality 0.
* R is singular if there are fewer rows than units, which does no harm.
* A communality above 1 (a Heywood case) is set to 1.
* R may have negative eigenvalues if noise is added. They give no factor.

Sources: FedSplit and FedFac (Wang, Tang, Li: Factor-Assisted Federated Learning
for Personalized Optimization with Heterogeneous Data, arXiv:2312.04281),
section 4.1. The method is Harman, Modern Factor Analysis, chapter 8.
"""

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Bound on the largest change of a communality in the last iteration.
TOLERANCE = 1e-4
# The most iterations for up to `_UNITS_OF_MOST` units. Beyond, the limit falls
# with the cube of the units, because the cost of an iteration grows with it.
_MOST_ITERATIONS = 50
_LEAST_ITERATIONS = 8
_UNITS_OF_MOST = 256
# Communalities that differ by less count as equal.
_EQUAL = 1e-9


class Factors(NamedTuple):
  """The common factors of a layer's units.

  Attributes:
    communalities: float64 `[d]`, in [0, 1].
    number: int32, number of factors.
    num_iterations: int32, number of iterations: `max_iterations` if they did
      not converge, 0 for a solution without them.
  """

  communalities: tf.Tensor
  number: tf.Tensor
  num_iterations: tf.Tensor


def max_iterations(number: int) -> int:
  """The largest number of iterations for a layer of `number` units."""
  scale = (_UNITS_OF_MOST / number) ** 3
  return int(
    np.clip(_MOST_ITERATIONS * scale, _LEAST_ITERATIONS, _MOST_ITERATIONS)
  )


def client_sums(columns: tf.Tensor) -> collections.OrderedDict:
  """A client's report on a layer.

  Args:
    columns: `[rows, d]`, Z_k.

  Returns:
    `products` `[d (d + 1) / 2]` (the upper triangle of Z_k^T Z_k by row),
    `totals` `[d]` and the scalar `rows`.
  """
  products = tf.matmul(columns, columns, transpose_a=True)
  rows = tf.cast(tf.shape(columns)[0], columns.dtype)
  return collections.OrderedDict(
    products=tf.gather(
      tf.reshape(products, [-1]), _upper_triangle(columns.shape[1])
    ),
    totals=tf.reduce_sum(columns, axis=0),
    rows=rows,
  )


def _upper_triangle(number):
  """Places of the upper triangle in a square matrix that is read by row."""
  rows, columns = np.triu_indices(number)
  return rows * number + columns


def _symmetric(upper_triangle, number):
  """The matrix with this upper triangle, whose numbers are read by row."""
  places = np.zeros([number, number], np.int64)
  rows, columns = np.triu_indices(number)
  places[rows, columns] = places[columns, rows] = np.arange(len(rows))
  return tf.gather(upper_triangle, places)


def correlations(sums: Any) -> tf.Tensor:
  """The correlations of a layer's units.

  Args:
    sums: The results of `client_sums`, as a sum or mean over clients.

  Returns:
    float64 `[d, d]`, with 1 on the diagonal. The row and the column of a unit
    without variance are 0.
  """
  # A mean over no clients may be NaN, which has no eigenvalues.
  products, totals, rows = (
    tf.cast(tf.where(tf.math.is_finite(value), value, 0), tf.float64)
    for value in (sums['products'], sums['totals'], sums['rows'])
  )
  number = sums['totals'].shape[0]
  means = tf.math.divide_no_nan(totals, rows)
  squares = tf.math.divide_no_nan(_symmetric(products, number), rows)
  covariances = squares - means[:, tf.newaxis] * means
  variances = tf.linalg.diag_part(covariances)
  # A variance below this is a rounding error of the sums.
  rounding = 8 * np.finfo(sums['products'].dtype.as_numpy_dtype).eps
  varies = variances > rounding * tf.linalg.diag_part(squares)
  scales = tf.where(varies, tf.sqrt(tf.where(varies, variances, 1)), 1)
  correlation = covariances / (scales[:, tf.newaxis] * scales)
  correlation = tf.clip_by_value(correlation, -1, 1)
  both = tf.logical_and(varies, varies[:, tf.newaxis])
  correlation = tf.where(both, correlation, 0)
  return tf.linalg.set_diag(correlation, tf.cast(varies, tf.float64))


def principal_factors(
  correlation: tf.Tensor, explained_variance: float
) -> Factors:
  """The principal-factor solution.

  Args:
    correlation: float64 `[d, d]`, the result of `correlations`.
    explained_variance: kappa in (0, 1]. There are as many factors as it takes
      of R's largest eigenvalues to reach this share of the sum of all.
  """
  number = _num_factors(tf.linalg.eigvalsh(correlation), explained_variance)
  diagonal = tf.linalg.diag_part(correlation)
  last = max_iterations(correlation.shape[0])
  is_factor = tf.range(correlation.shape[0])[::-1] < number

  def iterate(step, communalities, unused_change):
    reduced = tf.linalg.set_diag(correlation, communalities)
    values, vectors = tf.linalg.eigh(reduced)
    largest = tf.where(is_factor, tf.maximum(values, 0), 0)
    new = tf.minimum(tf.linalg.matvec(vectors**2, largest), diagonal)
    return step + 1, new, tf.reduce_max(tf.abs(new - communalities))

  steps, communalities, _ = tf.while_loop(
    lambda step, _, change: tf.logical_and(step < last, change > TOLERANCE),
    iterate,
    (0, diagonal, tf.constant(np.inf, tf.float64)),
  )
  return Factors(communalities, number, steps)


def eigenvector_squares(
  correlation: tf.Tensor, explained_variance: float
) -> Factors:
  """The communalities of the authors' code (ffair/FedFac, 76101b38).

  nu_j is the sum of the squares of unit j in the first G - 1 eigenvectors of R,
  with G factors as in `principal_factors`. The eigenvectors have length 1: they
  are not scaled by their eigenvalues, and there is no iteration.
  """
  values, vectors = tf.linalg.eigh(correlation)
  number = _num_factors(values, explained_variance)
  is_summed = tf.range(correlation.shape[0])[::-1] < number - 1
  sums = tf.linalg.matvec(vectors**2, tf.cast(is_summed, vectors.dtype))
  return Factors(sums, number, tf.constant(0))


def _num_factors(eigenvalues, explained_variance):
  """Number of the largest eigenvalues that reach this share of the sum."""
  largest_first = tf.maximum(eigenvalues[::-1], 0)
  reached = tf.cumsum(largest_first)
  # Up to rounding, so that all of the variance is reached before the end.
  enough = explained_variance * reached[-1] * (1 - 1e-12)
  return tf.reduce_sum(tf.cast(reached < enough, tf.int32)) + 1


def least(values: tf.Tensor, count: int) -> tf.Tensor:
  """Marks the `count` smallest values, the first of equal ones: bool `[d]`.

  Args:
    values: `[d]`. Values that differ by rounding count as equal.
    count: Number of values to mark.
  """
  if values.dtype.is_floating:
    values = tf.round(values / _EQUAL)
  ranks = tf.argsort(tf.argsort(values, stable=True))
  return ranks < count
