"""Class means of features: clients report them, features are pulled to them.

For each class c, a client with n examples of features z reports

    share_c = n_c / n,    sum_c = 1 / n sum_{j: y_j = c} z_j

and the server takes mean(sum_c) / mean(share_c) over the cohort. If clients are
weighted by their numbers of examples, this is the mean of all the cohort's
examples of the class. If clients have equal weights, it is the mean of their
class means, weighted by their shares. A class that no client of the cohort has
keeps its mean. If a private factory adds noise, this also holds for a class
whose share is less than half of one client with all of its examples in it
(`aggregators.least_share`).

Features may have any number of axes, and distances are means over all of them.
"""

import collections
from typing import Any

import numpy as np
import tensorflow as tf

from tff_pfl.core import client_work, example_tensors, objectives
from tff_pfl.models import split_model


class ClassMeans:
  """The class means of a model's features, as server state."""

  def __init__(self, model: split_model.SplitModel, method: str):
    """Prepares the class means.

    Args:
      model: A classifier of examples with one class each.
      method: Name of the method, for errors of `split_model.feature_spec`.
    """
    self._features = split_model.feature_spec(model, method)
    self._num_classes = model.classifier.num_classes

  @property
  def initial_algorithm(self) -> collections.OrderedDict:
    """The state before the first round: `means` and `is_known`, zeros."""
    dtype = self._features.dtype.as_numpy_dtype
    return collections.OrderedDict(
      means=np.zeros([self._num_classes, *self._features.shape], dtype),
      is_known=np.zeros([self._num_classes], np.float32),
    )

  def report(
    self, features: example_tensors.ExampleTensors
  ) -> collections.OrderedDict:
    """A client's report, from its examples with features instead of `x`."""
    values = features.x
    is_example = tf.cast(features.is_example, values.dtype)
    number = tf.maximum(tf.reduce_sum(is_example), 1)
    members = tf.one_hot(
      tf.cast(features.y, tf.int32), self._num_classes, dtype=values.dtype
    )
    members *= is_example[:, tf.newaxis] / number
    # Rows of padding may be NaN after the body.
    rows = tf.where(is_example[:, tf.newaxis] > 0, flat(values), 0)
    sums = tf.matmul(members, rows, transpose_a=True)
    return collections.OrderedDict(
      shares=tf.reduce_sum(members, axis=0),
      sums=tf.reshape(sums, [self._num_classes, *self._features.shape]),
    )

  def update(
    self, algorithm: Any, report: Any, cohort: client_work.Cohort
  ) -> collections.OrderedDict:
    """The new server state from the old one and the mean report."""
    shares, sums = report['shares'], report['sums']
    is_present = tf.logical_and(shares > 0, shares >= cohort.least_share)
    new = flat(sums) / tf.where(is_present, shares, 1)[:, tf.newaxis]
    means = tf.where(is_present[:, tf.newaxis], new, flat(algorithm['means']))
    return collections.OrderedDict(
      means=tf.reshape(means, tf.shape(sums)),
      is_known=tf.where(is_present, 1.0, algorithm['is_known']),
    )

  def pull(self, algorithm: Any, strength: float) -> objectives.Penalty:
    """The mean squared distance of features to the mean of their class.

    The mean is over a batch's examples and feature values, and is multiplied by
    `strength`. An example whose class mean is not known adds 0.
    """

    def penalty(features, unused_statistics, batch):
      y = tf.cast(batch.y, tf.int32)
      centers = tf.gather(flat(algorithm['means']), y)
      counts = batch.example_weights * tf.gather(algorithm['is_known'], y)
      squares = tf.reduce_mean((flat(features) - centers) ** 2, axis=1)
      squares = tf.where(counts > 0, squares, tf.zeros_like(squares))
      number = tf.maximum(tf.reduce_sum(batch.example_weights), 1)
      return strength * tf.reduce_sum(squares) / tf.cast(number, squares.dtype)

    return penalty


def flat(values):
  """Values `[rows, ...]` as `[rows, numbers]`."""
  return tf.reshape(values, [tf.shape(values)[0], -1])
