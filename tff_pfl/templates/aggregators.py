"""TFF's aggregators by name, and how the library uses them.

Programs name them; library users pass any `tff.aggregators` factory to a
builder.
"""

from __future__ import annotations

from typing import Any, Union

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors

AggregationFactory = Union[
  tff.aggregators.WeightedAggregationFactory,
  tff.aggregators.UnweightedAggregationFactory,
]


AGGREGATORS = {
  'mean': lambda: tff.aggregators.MeanFactory(no_nan_division=True),
  'robust': tff.learning.robust_aggregator,
  'secure': tff.learning.secure_aggregator,
  'compressed': tff.learning.compression_aggregator,
}


def make_aggregator(name: str) -> Any:
  """Returns the aggregation factory called `name`.

  Args:
    name: 'mean' (weighted), 'robust' (zeroes and clips outlying updates with
      adaptive norms), 'secure' (the same, summed as integers by secure
      aggregation where the runtime has a protocol for it; the round's metrics
      and counts are always summed in the clear), 'compressed' (the same as
      'robust', with large tensors quantized).

  Raises:
    ValueError: If there is none.
  """
  errors.expect_one_of('aggregator', name, AGGREGATORS)
  return AGGREGATORS[name]()


def least_share(
  factory: AggregationFactory, num_clients: tf.Tensor
) -> tf.Tensor:
  """The least mean share that is not taken for noise.

  Where nobody has a share the mean is 0. Factories without weights, except
  plain means and sums, may add noise to that, as private ones do: for these it
  is half the share of one client that has all of its examples in it (where
  examples are counted, of a client with the mean number of them).

  Args:
    num_clients: int32, clients in the mean.

  Returns:
    float32 scalar.
  """
  if _is_exact(factory):
    return tf.constant(0.0)
  return 0.5 / tf.cast(num_clients, tf.float32)


def is_weighted(factory: AggregationFactory) -> bool:
  """Whether the aggregation takes the clients' weights."""
  return not isinstance(factory, tff.aggregators.UnweightedAggregationFactory)


def _is_exact(factory):
  """Whether neither it nor what it is made of may add noise."""
  return is_weighted(factory) or (
    isinstance(
      factory,
      (tff.aggregators.SumFactory, tff.aggregators.UnweightedMeanFactory),
    )
    and all(
      _is_exact(part)
      for part in vars(factory).values()
      if isinstance(part, tff.aggregators.UnweightedAggregationFactory)
    )
  )


def create(
  factory: AggregationFactory, value_type: tff.Type
) -> tff.templates.AggregationProcess:
  """Creates an aggregation of what clients send, and their weights."""
  if not len(value_type):
    # Nothing is global. Not every factory takes an empty structure.
    factory = tff.aggregators.SumFactory()
  if not is_weighted(factory):
    factory = tff.aggregators.as_weighted_aggregator(factory)
  return factory.create(value_type, tff.TensorType(np.float32))
