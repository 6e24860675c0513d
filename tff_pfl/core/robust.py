"""Robust means: what a minority of clients cannot move at will.

The server collects what each client sends (see `collecting`).

References:
  Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning:
  Towards Optimal Statistical Rates, ICML 2018 (median, trimmed mean). Pillutla,
  Kakade, Harchaoui: Robust Aggregation for Federated Learning, IEEE
  Transactions on Signal Processing 2022, Algorithm 2 (geometric median).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl.core import collecting

# Of Weiszfeld's iteration: the paper's smoothing, and when it ends.
_SMALLEST_DISTANCE = 1e-6
_TOLERANCE = 1e-6
_MAX_ITERATIONS = 100
# Squares of larger norms are not finite.
_LARGEST_NORM = 1e18


@dataclasses.dataclass(frozen=True)
class TrimmedMeanFactory(collecting.CollectingFactory):
  """The mean of each number without its largest and smallest values.

  Clients weigh alike, whatever their weights.

  Attributes:
    fraction: Share of the clients that is left out at either end, in [0, 0.5],
      rounded down to whole clients; 0.5 is the median.

  Raises:
    ValueError: If it is out of its range.
  """

  fraction: float = 0.5

  def __post_init__(self):
    errors.expect(
      0 <= self.fraction <= 0.5, 'fraction', 'in [0, 0.5]', self.fraction
    )

  def statistic(self, values, weights):  # noqa: D102
    num_clients = tf.size(weights)
    # 0.29 * 100 is 29 less a little.
    share = tf.cast(num_clients, tf.float64) * self.fraction + 1e-9
    num_cut = tf.minimum(tf.cast(share, tf.int32), (num_clients - 1) // 2)
    return [
      tf.reduce_mean(
        tf.sort(value, axis=0)[num_cut : num_clients - num_cut], axis=0
      )
      for value in values
    ]


@dataclasses.dataclass(frozen=True)
class GeometricMedianFactory(collecting.CollectingFactory):
  """The point with the least weighted sum of distances to the clients' values.

        z <- sum_i b_i v_i / sum_i b_i,  b_i = w_i / max(1e-6, |v_i - z|)

  from the mean on, until it moves by less than a millionth of itself, or 100
  times. A value is all that a client sends, as one vector; the result is a mean
  of them with other weights. Values of norms above 1e18 are left out.
  """

  def statistic(self, values, weights):  # noqa: D102
    shapes = [tf.shape(value)[1:] for value in values]
    rows = [
      tf.reshape(tf.cast(value, tf.float32), [tf.size(weights), -1])
      for value in values
    ]
    sizes = [tf.shape(row)[1] for row in rows]
    points = tf.concat(rows, axis=1)
    norms = tf.norm(points, axis=1)
    is_counted = norms < _LARGEST_NORM
    weights = tf.where(is_counted, weights, 0.0)
    # A weight of 0 would leave NaN of what is infinite.
    points = tf.where(is_counted[:, tf.newaxis], points, 0.0)

    def mean(weights):
      shares = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
      return tf.linalg.matvec(points, shares, transpose_a=True)

    def step(center, unused_moved):
      distances = tf.norm(points - center, axis=1)
      new = mean(weights / tf.maximum(distances, _SMALLEST_DISTANCE))
      return new, tf.norm(new - center)

    center, _ = tf.while_loop(
      lambda center, moved: moved > _TOLERANCE * tf.norm(center),
      step,
      (mean(weights), tf.constant(np.inf, tf.float32)),
      maximum_iterations=_MAX_ITERATIONS,
    )
    return [
      tf.cast(tf.reshape(part, shape), value.dtype)
      for part, shape, value in zip(tf.split(center, sizes), shapes, values)
    ]
