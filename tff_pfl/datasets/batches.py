"""Examples as the datasets that the library's computations take."""

from __future__ import annotations

import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tff_pfl.datasets import examples as examples_lib


def as_batches(examples: examples_lib.Examples) -> tf.data.Dataset:
  """A client's examples as a dataset of one batch, the fastest form."""
  return tf.data.Dataset.from_tensors(
    collections.OrderedDict(x=examples.x, y=examples.y)
  )


def no_examples(
  element_spec: Mapping[str, tf.TensorSpec],
) -> examples_lib.Examples:
  """No examples, of the given `OrderedDict(x=..., y=...)` of one example."""
  return examples_lib.Examples(
    *(
      np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)
      for spec in element_spec.values()
    )
  )
