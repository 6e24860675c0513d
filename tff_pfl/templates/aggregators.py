"""TFF's aggregators of model updates, by name, for programs.

Library users pass any `tff.aggregators` factory to a builder instead.
"""

from __future__ import annotations

from typing import Any

import tensorflow_federated as tff

from tff_pfl import errors

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
  errors.expect(
    name in AGGREGATORS, 'aggregator', f'one of {", ".join(AGGREGATORS)}', name
  )
  return AGGREGATORS[name]()
