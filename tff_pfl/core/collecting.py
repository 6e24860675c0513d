"""Aggregations for which the server collects what each client sends.

The server so holds all values of a cohort, and sees what each client sends:
secure sums cannot do this. Clients of weight 0 (without examples, or with a
result that is not finite) are left out.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf
import tensorflow_federated as tff


class CollectingFactory(tff.aggregators.WeightedAggregationFactory):
  """Aggregation by a function of all clients' values and weights."""

  def statistic(
    self, values: list[tf.Tensor], weights: tf.Tensor
  ) -> list[tf.Tensor]:
    """What is made of values `[clients, ...]` and weights `[clients]`.

    These are of the clients with positive weights; there is at least one.
    """
    raise NotImplementedError

  def of_nobody(self, spec: tf.TensorSpec) -> tf.Tensor:
    """What is made of no values of a spec: zeros."""
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
        lambda: [self.of_nobody(spec) for spec in specs[:-1]],
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
class StackFactory(CollectingFactory):
  """The clients' values themselves, `[max_cohort_size, ...]`.

  Their order is that of the cohort; where there are fewer, zeros follow.

  Attributes:
    max_cohort_size: The most clients of a cohort; a round with more fails.
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
      empty = tf.maximum(self.max_cohort_size - number, 0)
    return [
      tf.ensure_shape(
        tf.concat(
          [value, tf.zeros([empty, *value.shape[1:]], value.dtype)], axis=0
        ),
        [self.max_cohort_size, *value.shape[1:]],
      )
      for value in values
    ]

  def of_nobody(self, spec):  # noqa: D102
    return tf.zeros([self.max_cohort_size, *spec.shape], spec.dtype)
