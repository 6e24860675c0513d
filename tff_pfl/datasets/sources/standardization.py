"""Means and deviations of clients' numbers, by one federated sum.

Each client counts and sums its training examples' values and squares, column by
column and without the missing ones; the server adds up what the clients send
and nothing else leaves them. As the sums are aggregated, secure or private
summation could take the place of the plain one.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl import runtime as runtime_lib

# Below this part of the mean square, a variance is what rounding leaves of 0.
_RELATIVE_ZERO = 1e-13


def standardized(
  values: np.ndarray, means: Sequence[float], deviations: Sequence[float]
) -> np.ndarray:
  """Returns values `[n, columns]` less the means, divided by the deviations.

  They are float32, and 0, the mean, where a value is missing (NaN).
  """
  standard = (values - np.array(means)) / np.array(deviations)
  return np.where(np.isnan(values), 0, standard).astype(np.float32)


def build_sums(num_columns: int) -> tff.Computation:
  """Builds `({float64[?, num_columns]}@CLIENTS -> <sums of columns>@SERVER)`.

  Values are NaN where missing. The three sums are of the others: how many there
  are, the values themselves, and their squares.
  """
  values_type = tff.TensorType(np.float64, [None, num_columns])

  @tff.tensorflow.computation(values_type)
  def client_sums(values):
    present = tf.logical_not(tf.math.is_nan(values))
    values = tf.where(present, values, tf.zeros_like(values))
    terms = tf.cast(present, tf.float64), values, tf.square(values)
    return tuple(tf.reduce_sum(term, axis=0) for term in terms)

  @tff.federated_computation(tff.FederatedType(values_type, tff.CLIENTS))
  def sums(values):
    return tff.federated_sum(tff.federated_map(client_sums, values))

  return sums


def federated_moments(
  clients: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the means and deviations of columns over all clients' values.

  Args:
    clients: Each client's float64 `[n, columns]`, NaN where missing; at least
      one client, of which some may have no rows.

  Returns:
    The means, float64 `[columns]`, 0 for a column without a value; and the
    standard deviations (of the population), 1 for a column without a value or
    whose values are all equal. Equal are values that deviate from their mean by
    less than 3e-7 of it, which is what sums of squares can tell.

  Raises:
    ValueError: Numbers are too large for their squares to be added up.
  """
  num_columns = clients[0].shape[1]
  if not num_columns:
    return np.zeros(0), np.ones(0)
  with runtime_lib.given_or_on_cpu(None) as runtime:
    counts, sums, squares = runtime.run(build_sums(num_columns), list(clients))
  counts = np.maximum(counts, 1)
  means, mean_squares = sums / counts, squares / counts
  with np.errstate(over='ignore', invalid='ignore'):
    variances = mean_squares - means**2
  errors.expect(
    np.isfinite(variances).all(),
    'values',
    'numbers whose squares can be added up',
    f'larger ones in column {np.argmin(np.isfinite(variances))}',
  )
  is_constant = variances <= _RELATIVE_ZERO * mean_squares
  return means, np.sqrt(np.where(is_constant, 1, variances))
