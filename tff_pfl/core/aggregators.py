"""TFF's aggregators by name, and the library's use of them.

Programs select an aggregator by name. Library users can pass any
`tff.aggregators` factory to a builder.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.core import gather, private_mean
from tff_pfl.system.private_api import tree_analysis

FACTORIES = (
  tff.aggregators.WeightedAggregationFactory,
  tff.aggregators.UnweightedAggregationFactory,
)
AggregationFactory = Union[FACTORIES]

AGGREGATORS = {
  'mean': lambda: tff.aggregators.MeanFactory(no_nan_division=True),
  'robust': tff.learning.robust_aggregator,
  'secure': tff.learning.secure_aggregator,
  # Rounds to the nearest value, because TFF's random rounding has no seed.
  'compressed': functools.partial(
    tff.learning.compression_aggregator, stochastic=False
  ),
  'median': lambda: gather.TrimmedMeanFactory(),
  'trimmed_mean': lambda fraction=0.1: gather.TrimmedMeanFactory(fraction),
  'geometric_median': gather.GeometricMedianFactory,
}


# Bound of each number in a client's metrics and counts in secure sums.
LARGEST_SUM = 2.0**20 - 1

# Factories whose arguments are stored with a run.
DESCRIBED = (
  *private_mean.PRIVATE_MEANS,
  gather.TrimmedMeanFactory,
  gather.GeometricMedianFactory,
)


def make_aggregator(name: str) -> Any:
  """Returns the aggregation factory called `name`.

  Args:
    name: 'mean' (weighted), 'robust' (zeroes and clips outlying updates, with
      adaptive norms), 'secure' (like 'robust', with all values from clients
      summed as integers, securely if the runtime has a protocol for it),
      'compressed' (like 'robust', with large tensors quantized), 'median',
      'trimmed_mean:0.1' (the mean of each number without the highest and the
      lowest tenth of the clients) or 'geometric_median'. `create_sums`
      describes secure sums, and `gather` implements the last three. Private
      means take arguments, so `private_mean` makes them.
  """
  kind, *arguments = str(name).split(':')
  try:
    return AGGREGATORS[kind](*map(float, arguments))
  except (KeyError, TypeError, ValueError):
    known = (
      f'one of {", ".join(AGGREGATORS)} (trimmed_mean:<share up to 0.5>), a '
      'PrivateMean or a TFF factory'
    )
    raise ValueError(errors.message('aggregator', known, name)) from None


def least_share(
  factory: AggregationFactory, num_clients: tf.Tensor
) -> tf.Tensor:
  """The smallest mean share that is not treated as noise.

  The mean of a share that no client has is 0. Unweighted factories other than
  plain means and sums may add noise to it, as private ones do. For these, the
  result is half of what one client adds to the mean if all of its examples are
  in the share. If examples are counted, this client has the mean number of
  examples.

  Args:
    num_clients: int32, the number of clients in the mean.

  Returns:
    float32 scalar.
  """
  if _is_exact(factory):
    return tf.constant(0.0)
  return 0.5 / tf.cast(num_clients, tf.float32)


def is_weighted(factory: AggregationFactory) -> bool:
  """True if the aggregation uses the clients' weights."""
  return not isinstance(factory, tff.aggregators.UnweightedAggregationFactory)


def _is_exact(factory):
  """True if neither the factory nor its parts can add noise."""
  return is_weighted(factory) or (
    isinstance(
      factory,
      (tff.aggregators.SumFactory, tff.aggregators.UnweightedMeanFactory),
    )
    and all(map(_is_exact, _parts(factory)))
  )


def _is_plain(factory):
  """True for a mean of plain sums."""
  means = (tff.aggregators.MeanFactory, tff.aggregators.UnweightedMeanFactory)
  return isinstance(factory, means) and all(
    isinstance(part, tff.aggregators.SumFactory) for part in _parts(factory)
  )


def _parts(factory):
  """The unweighted factories that a factory is made of."""
  return [part for part in vars(factory).values() if not is_weighted(part)]


def create(
  factory: AggregationFactory,
  value_types: Sequence[tff.Type],
  own: Sequence[Optional[AggregationFactory]] = (),
) -> list[tff.templates.AggregationProcess]:
  """Creates a weighted aggregation for each exchange of a round.

  Args:
    factory: The factory for exchanges without their own. The noise multiplier
      of a private mean holds for a whole round. If there are several exchanges,
      each gets more noise, so that together they reveal as much about a client
      as one exchange would.
    value_types: Types of the values that clients send, one per exchange.
    own: The factory of each exchange that has its own, None for the others.
      Empty if no exchange has one.
  """
  errors.expect(
    not any(own) or _is_plain(factory),
    'aggregator',
    'a plain mean if the server collects what each client sends',
    type(factory).__name__,
  )
  num_uploads = sum(bool(len(value_type)) for value_type in value_types)

  def create_one(number, value_type):
    chosen = (own[number] if own else None) or factory
    if not len(value_type):
      # Nothing is global, and some factories reject an empty structure.
      chosen = tff.aggregators.SumFactory()
    if isinstance(chosen, private_mean.PRIVATE_MEANS):
      noise_multiplier = chosen.noise_multiplier * math.sqrt(num_uploads)
      chosen = dataclasses.replace(chosen, noise_multiplier=noise_multiplier)
    if isinstance(chosen, private_mean.PrivateMeanFactory):
      chosen = dataclasses.replace(chosen, number=number)
    errors.expect(
      not isinstance(chosen, gather.TrimmedMeanFactory)
      or 'report' not in tff.structure.name_list(value_type),
      'aggregator',
      'no median or trimmed mean of each number if the server needs sums over '
      'clients (use geometric_median)',
      type(chosen).__name__,
    )
    if not is_weighted(chosen):
      chosen = tff.aggregators.as_weighted_aggregator(chosen)
    return chosen.create(value_type, tff.TensorType(np.float32))

  return [create_one(*numbered) for numbered in enumerate(value_types)]


def create_sums(
  value_types: Sequence[tff.Type],
  factory: AggregationFactory,
  aggregations: Sequence[tff.templates.AggregationProcess],
) -> list[tff.templates.AggregationProcess]:
  """Creates the sums of clients' metrics and counts, one for each exchange.

  If the aggregations of updates are all secure sums, these are as well. Each
  number from a client is then clipped to [-LARGEST_SUM, LARGEST_SUM], and
  floats are rounded to a multiple of LARGEST_SUM / 2^31 (0.0005). NaN becomes
  -LARGEST_SUM. The measurements count the clients with clipped numbers.

  Args:
    value_types: Types of the values to sum: `OrderedDict`s of floats and
      integers, which may be nested.
    factory: The factory of the aggregations.
    aggregations: The aggregations that `create` made with it.

  Returns:
    Processes without state.
  """
  if not _is_secure(factory, aggregations):
    return [tff.aggregators.SumFactory().create(t) for t in value_types]
  metrics = tff.learning.metrics
  return [
    metrics.SecureSumFactory(
      metrics.create_default_secure_sum_quantization_ranges(
        value_type,
        -LARGEST_SUM,
        LARGEST_SUM,
        use_auto_tuned_bounds_for_float_values=False,
      )
    ).create(value_type)
    for value_type in value_types
  ]


def _is_secure(factory, aggregations):
  blocks = [process.next.to_building_block() for process in aggregations]
  if not any(map(tree_analysis.find_aggregations_in_tree, blocks)):
    # Nothing is global, so this checks the factory with an arbitrary type.
    some_type = tff.to_type(collections.OrderedDict(x=np.float32))
    return _is_secure(factory, create(factory, [some_type]))
  return not any(map(tree_analysis.find_unsecure_aggregation_in_tree, blocks))
