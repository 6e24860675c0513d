"""Aggregations for which the server gathers what each client sends.

The server holds all values of a cohort and sees what each client sends, which
secure sums do not allow. Clients with weight 0 (no examples, or a result that
is not finite) are left out. `StackFactory` returns the values themselves. The
others are robust means, which a minority of clients cannot move at will.

References:
  Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning:
  Towards Optimal Statistical Rates, ICML 2018 (median, trimmed mean). Pillutla,
  Kakade, Harchaoui: Robust Aggregation for Federated Learning, IEEE
  Transactions on Signal Processing 2022, Algorithm 2 (geometric median).
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tff_pfl import fields
from tff_pfl import tff_api as tff

# The paper's smoothing of Weiszfeld's iteration, and its stopping rules.
_SMALLEST_DISTANCE = 1e-6
_TOLERANCE = 1e-6
_MAX_ITERATIONS = 100
# Squares of larger norms are not finite.
_LARGEST_NORM = 1e18


class GatherFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregation by a function of all clients' values and weights."""

  def statistic(
    self, values: list[tf.Tensor], weights: tf.Tensor
  ) -> list[tf.Tensor]:
    """Aggregates values `[clients, ...]` with weights `[clients]`.

    There is at least one client, and all weights are positive.
    """
    raise NotImplementedError

  def empty(self, spec: tf.TensorSpec) -> tf.Tensor:
    """The aggregate if there are no values, by default zeros."""
    return tf.zeros(spec.shape, spec.dtype)

  def create(
    self, value_type: tff.Type, weight_type: tff.Type
  ) -> tff.templates.AggregationProcess:
    """See the base class."""
    structure = tff.types.type_to_tf_tensor_specs(value_type)
    specs = [
      *tf.nest.flatten(structure),
      tff.types.type_to_tf_tensor_specs(weight_type),
    ]
    stacked = tff.to_type(
      tuple((spec.dtype.as_numpy_dtype, [None, *spec.shape]) for spec in specs)
    )

    @tff.tensorflow.computation
    def zero():
      return tuple(tf.zeros([0, *spec.shape], spec.dtype) for spec in specs)

    @tff.tensorflow.computation(stacked, (value_type, weight_type))
    def accumulate(collected, new):
      return tuple(
        tf.concat([old, leaf[tf.newaxis]], axis=0)
        for old, leaf in zip(collected, tf.nest.flatten(new))
      )

    @tff.tensorflow.computation(stacked, stacked)
    def merge(first, second):
      return tuple(tf.concat(both, axis=0) for both in zip(first, second))

    @tff.tensorflow.computation(stacked)
    def report(collected):
      *values, weights = collected
      is_counted = weights > 0
      results = tf.cond(
        tf.reduce_any(is_counted),
        lambda: self.statistic(
          [tf.boolean_mask(value, is_counted) for value in values],
          tf.boolean_mask(weights, is_counted),
        ),
        lambda: [self.empty(spec) for spec in specs[:-1]],
      )
      return tf.nest.pack_sequence_as(structure, results)

    @tff.federated_computation
    def initialize():
      return tff.federated_value((), tff.SERVER)

    @tff.federated_computation(
      initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
      tff.FederatedType(weight_type, tff.CLIENTS),
    )
    def next_fn(state, values, weights):
      result = tff.federated_aggregate(
        tff.federated_zip((values, weights)), zero(), accumulate, merge, report
      )
      return tff.templates.MeasuredProcessOutput(
        state, result, tff.federated_value((), tff.SERVER)
      )

    return tff.templates.AggregationProcess(initialize, next_fn)


@dataclasses.dataclass(frozen=True)
class StackFactory(GatherFactory):
  """The clients' values themselves, `[max_cohort_size, ...]`.

  They are in the order of the cohort, followed by zeros.

  Attributes:
    max_cohort_size: Largest number of clients. A round with more fails.
  """

  max_cohort_size: int

  def statistic(self, values, weights):  # noqa: D102
    number = tf.size(weights)
    check = tf.debugging.Assert(
      number <= self.max_cohort_size,
      [
        'Expected `max_cohort_size` to be at least the number of clients in a '
        f'round, found {self.max_cohort_size} and clients:',
        number,
      ],
    )
    with tf.control_dependencies([check]):
      missing = tf.maximum(self.max_cohort_size - number, 0)
    return [
      tf.ensure_shape(
        tf.concat(
          [value, tf.zeros([missing, *value.shape[1:]], value.dtype)], axis=0
        ),
        [self.max_cohort_size, *value.shape[1:]],
      )
      for value in values
    ]

  def empty(self, spec):  # noqa: D102
    return tf.zeros([self.max_cohort_size, *spec.shape], spec.dtype)


@fields.dataclass
class TrimmedMeanFactory(GatherFactory):
  """The mean of each number without its largest and smallest values.

  All clients count equally, whatever their weights.

  Attributes:
    fraction: Share of the clients that is left out at each end, in [0, 0.5],
      rounded down to whole clients. 0.5 is the median.
  """

  fraction: fields.number(float, ge=0, le=0.5) = 0.5

  def statistic(self, values, weights):  # noqa: D102
    num_clients = tf.size(weights)
    # In floating point, 0.29 * 100 is slightly less than 29.
    share = tf.cast(num_clients, tf.float64) * self.fraction + 1e-9
    num_cut = tf.minimum(tf.cast(share, tf.int32), (num_clients - 1) // 2)
    return [
      tf.reduce_mean(
        tf.sort(value, axis=0)[num_cut : num_clients - num_cut], axis=0
      )
      for value in values
    ]


@dataclasses.dataclass(frozen=True)
class GeometricMedianFactory(GatherFactory):
  """The point with the least weighted sum of distances to clients' values.

        z <- sum_i b_i v_i / sum_i b_i,  b_i = w_i / max(1e-6, |v_i - z|)

  The iteration begins at the mean. It ends when z moves by at most a millionth
  of its norm, or after 100 steps. A value v_i is everything that a client
  sends, as one vector. Values with norms of 1e18 or more are left out.
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
    # An infinite value times a weight of 0 would be NaN.
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
