"""Means and deviations of clients' numbers, by one federated sum.

Each client counts and sums its training examples' values and squares, column by
column and without the missing ones; the server adds up what the clients send
and nothing else leaves them. As the sums are aggregated, secure or private
summation could take the place of the plain one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl import runtime as runtime_lib

# Below this part of the mean square, a variance is what rounding leaves of 0.
_RELATIVE_ZERO = 1e-13


class Sums(NamedTuple):
  """Sums over the clients, each float64 `[columns]`.

  Attributes:
    counts: Number of values that are not missing.
    sums: Sum of the values.
    squares: Sum of their squares.
  """

  counts: np.ndarray
  sums: np.ndarray
  squares: np.ndarray


class Moments(NamedTuple):
  """How columns are standardized, each float64 `[columns]`.

  Attributes:
    means: 0 for a column without a value.
    deviations: Standard deviations (of the population); 1 for a column whose
      values are all equal, or without a value. Equal are values that deviate
      from their mean by less than 3e-7 of it, which is what sums of squares can
      tell.
  """

  means: np.ndarray
  deviations: np.ndarray

  def standardize(self, values: np.ndarray) -> np.ndarray:
    """Returns values `[n, columns]` less the means, divided by the deviations.

    They are float32, and 0, the mean, where a value is missing (NaN).
    """
    standard = (values - self.means) / self.deviations
    return np.where(np.isnan(values), 0, standard).astype(np.float32)


def build_sums(num_columns: int) -> tff.Computation:
  """Builds `({float64[?, num_columns]}@CLIENTS -> Sums@SERVER)`.

  Values are NaN where missing.

  Raises:
    ValueError: `num_columns` is not positive.
  """
  errors.expect_int('num_columns', num_columns, 1)
  values_type = tff.TensorType(np.float64, [None, num_columns])

  @tff.tensorflow.computation(values_type)
  def client_sums(values):
    present = tf.logical_not(tf.math.is_nan(values))
    values = tf.where(present, values, tf.zeros_like(values))
    return Sums(
      tf.reduce_sum(tf.cast(present, tf.float64), axis=0),
      tf.reduce_sum(values, axis=0),
      tf.reduce_sum(tf.square(values), axis=0),
    )

  @tff.federated_computation(tff.FederatedType(values_type, tff.CLIENTS))
  def sums(values):
    return tff.federated_sum(tff.federated_map(client_sums, values))

  return sums


def moments_of(sums: Sums) -> Moments:
  """Returns means and deviations of the values that were added up."""
  counts = np.maximum(np.asarray(sums.counts, np.float64), 1)
  means = np.asarray(sums.sums) / counts
  mean_squares = np.asarray(sums.squares) / counts
  with np.errstate(over='ignore', invalid='ignore'):
    variances = mean_squares - means**2
  errors.expect(
    np.isfinite(variances).all(),
    'values',
    'numbers whose squares can be added up',
    f'larger ones in column {np.argmin(np.isfinite(variances))}',
  )
  is_constant = variances <= _RELATIVE_ZERO * mean_squares
  return Moments(means, np.sqrt(np.where(is_constant, 1, variances)))


def federated_moments(clients: Sequence[np.ndarray]) -> Moments:
  """Returns the means and deviations over all clients' values.

  Args:
    clients: Each client's floats `[n, columns]`, NaN where missing; at least
      one client, of which some may have no rows.

  Raises:
    ValueError: There is no client.
  """
  errors.expect(len(clients), 'clients', 'at least one', 'none')
  num_columns = clients[0].shape[1]
  if not num_columns:
    return Moments(np.zeros(0), np.ones(0))
  values = [np.asarray(client, np.float64) for client in clients]
  with runtime_lib.given_or_on_cpu(None) as runtime:
    return moments_of(Sums(*runtime.run(build_sums(num_columns), values)))
