"""Heads that belong to domains: trained by clients, combined by the server.

Client i starts from the head w_m of each domain m that the server sent, trains
it on its L_im examples of that domain and reports its change d_im. From these
the server makes the new head:

    weighted_average  w_m <- w_m + d_m,  d_m = sum_i L_im d_im / sum_i L_im
    second_order      w_m <- w_m + d_m
                             + (H_m + r I)^-1 sum_i L_im H_im (d_im - d_m)

with H_im the Hessian of the client's mean loss on domain m at its head w_im,
H_m = sum_i L_im H_im and r = `ridge` times the largest eigenvalue of H_m. With
r = 0 the second is the paper's sum H_m^-1 sum_i L_im H_im w_im; with r it is
that of the Hessians H_im + r / (sum_i L_im) I. So a ridge takes nothing from
what clients agree in. In a direction of curvature h it leaves h / (h + r) of
what second order adds to the average; one about which the cohort's data say
nothing has the average.

A client reports sums over its examples, and the server needs ratios of their
means over the cohort. So any aggregator for sums or means serves, a private or
secure one too, with any weights of clients (see `ClientWork.report_scale`). A
factory that clips lets clients with large reports count less: where it takes no
weights, those with many examples, and in second order, where the Hessians make
most of a report's norm, those with large Hessians. Noise is amplified by up to
1 / `ridge`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_pfl.core import client as client_lib
from tff_pfl.core import (
  client_work,
  example_tensors,
  objectives,
  phases,
  training_loop,
)
from tff_pfl.methods.shared import head_curvature
from tff_pfl.models import copies, domain_models, split_model


def train(
  client: client_lib.Client,
  model: split_model.SplitModel,
  heads: split_model.Weights,
  examples: example_tensors.ExampleTensors,
  phase: phases.Phase,
  inputs: Optional[Callable[[Any, tf.Tensor], Any]] = None,
) -> training_loop.TrainResult:
  """Trains each domain's head on the client's examples of that domain.

  Args:
    client: The client that trains, on `examples`.
    model: The model of one domain.
    heads: The heads of all domains, as in `domain_models.multi_head`.
    examples: Features with their domain, or, with `inputs`, the result of
      `training_loop.head_inputs` for the model of all domains.
    phase: Optimizer, batch size, and number of epochs or steps.
    inputs: See `examples`; None for none.

  Returns:
    The new heads, where that of a domain without examples is as it was, and the
    metric sums of all.
  """
  parts = domain_models.domain_copies(model)
  # One loop over the domains is compiled once for all of them.
  stacked = tf.nest.map_structure(
    lambda *values: tf.stack(values), *parts.parts(heads).values()
  )

  def features(x, seed):
    return (x if inputs is None else inputs(x, seed))['inputs']

  def train_one(m, stacked, metrics):
    trained, new_metrics = client.sgd(
      objectives.head_loss(model),
      tf.nest.map_structure(lambda values: values[m], stacked),
      phase,
      stream=m,
      model=model,
      examples=example_tensors.select(
        examples, tf.equal(examples.x['domain'], m)
      ),
      inputs=features,
    )
    return (
      m + 1,
      tf.nest.map_structure(
        lambda values, new: tf.tensor_scatter_nd_update(values, [[m]], [new]),
        stacked,
        trained,
      ),
      tf.nest.map_structure(tf.add, metrics, new_metrics),
    )

  _, stacked, metrics = tf.while_loop(
    lambda m, *_: m < len(parts.names),
    train_one,
    (0, stacked, objectives.zero_metrics(model)),
    parallel_iterations=1,
  )
  trained = {
    name: tf.nest.map_structure(lambda values, m=m: values[m], stacked)
    for m, name in enumerate(parts.names)
  }
  return training_loop.TrainResult(parts.join(trained), metrics)


def _members(model, features):
  """Bool `[domains, capacity]`, True for the examples of a domain."""
  domain = features.x['domain']
  return tf.logical_and(
    features.is_example,
    tf.equal(domain, tf.range(model.domains.number)[:, tf.newaxis]),
  )


class WeightedAverage:
  """The mean of the clients' heads, by their examples of the domain."""

  def __init__(self, model: split_model.SplitModel):
    """Takes the model of one domain."""
    self._model = model
    self._parts = domain_models.domain_copies(model)
    # The server's state from the last aggregation, and its metrics.
    self.initial_algorithm: Any = collections.OrderedDict()
    self.metrics: Optional[Callable[..., Any]] = None

  def report(
    self,
    old: split_model.Weights,
    new: split_model.Weights,
    features: example_tensors.ExampleTensors,
  ) -> collections.OrderedDict:
    """A client's report on the heads it trained, sums over its examples.

    It has the number of examples of each domain, and the change of its head
    times this number.

    Args:
      old: The heads before training.
      new: The heads after training.
      features: The client's features, with their domain.
    """
    members = _members(self._model, features)
    examples_of = tf.reduce_sum(tf.cast(members, tf.float32), axis=1)
    moved = {}
    for m, name in enumerate(self._parts.names):
      update = split_model.difference(
        self._parts.part(old, name), self._parts.part(new, name)
      )
      moved[name] = {
        key: tf.cast(examples_of[m], value.dtype) * value
        for key, value in update.items()
      }
    return collections.OrderedDict(
      shares=examples_of, moved=self._parts.join(moved)
    )

  def update(self, report: Any, cohort: client_work.Cohort) -> tuple:
    """`(update, algorithm)` from the mean report: `old - new` of all heads."""
    update = copies.means_of_members(
      self._parts, report['moved'], report['shares'], cohort.least_share
    )
    return update, self.initial_algorithm


class SecondOrder(WeightedAverage):
  """The minimum of the sum of the clients' second-order expansions (eq. 8)."""

  def __init__(self, model: split_model.SplitModel, ridge: float = 0.0):
    """Takes the model of one domain.

    Args:
      model: The model, with a linear head and a known loss.
      ridge: See `solve`.
    """
    super().__init__(model)
    head_curvature.expect_known_loss(model)
    self._head = domain_models.linear_head(model)
    self._ridge = ridge
    kernel = model.initial_weights[self._head.kernel]
    self._num_outputs = kernel.shape[1]
    self.initial_algorithm = collections.OrderedDict(
      effective_rank=np.zeros([model.domains.number], np.float32)
    )
    # The number of directions of each domain's head in which second order
    # decides; in the others the head is the average.
    self.metrics = lambda algorithm: collections.OrderedDict(
      effective_rank=model.domains.by_name(algorithm['effective_rank'])
    )

  def report(self, old, new, features):
    """The average's report, the Hessians, and these times the changes."""
    report = super().report(old, new, features)
    members = _members(self._model, features)
    hessians = tf.stack(
      [
        head_curvature.head_hessian(
          self._model,
          self._head,
          self._parts.part(new, name),
          features.x['inputs'],
          members[m],
          features.y,
          features.weight,
        )
        for m, name in enumerate(self._parts.names)
      ]
    )
    moved = self._vectors(old) - self._vectors(new)
    return collections.OrderedDict(
      **report,
      hessian=hessians,
      hessian_moved=tf.linalg.matvec(hessians, moved),
    )

  def _vectors(self, heads):
    return tf.stack(
      [
        head_curvature.as_vector(self._head, self._parts.part(heads, name))
        for name in self._parts.names
      ]
    )

  def update(self, report, cohort):
    """The average's update with the correction by the Hessians."""
    average, _ = super().update(report, cohort)
    is_present = report['shares'] >= cohort.least_share
    hessians = tf.where(
      is_present[:, tf.newaxis, tf.newaxis], report['hessian'], 0
    )
    steps = self._vectors(average)
    corrections, ranks = solve(
      hessians,
      report['hessian_moved'] - tf.linalg.matvec(hessians, steps),
      self._ridge,
    )
    update = {
      name: head_curvature.from_vector(self._head, step, self._num_outputs)
      for name, step in zip(self._parts.names, tf.unstack(steps + corrections))
    }
    return self._parts.join(update), collections.OrderedDict(
      effective_rank=ranks
    )


def solve(hessians: tf.Tensor, right_sides: tf.Tensor, ridge: float) -> tuple:
  """Solves `(hessian + r I) @ step = right_side` in the sense of least squares.

  It works in float64 with eigenvalues h: directions in which the Hessian is 0
  up to rounding (or, with noise added, negative) get no step.

  Args:
    hessians: float `[domains, size, size]`, symmetric up to rounding.
    right_sides: float `[domains, size]`.
    ridge: Ratio of r to the largest eigenvalue, at least 0; so r has the scale
      of the rounding errors.

  Returns:
    `steps` `[domains, size]`, and float32 `[domains]` in [0, size], the
    effective ranks: the sum of h / (h + r) over the directions with a step.
  """
  dtype, size = hessians.dtype, hessians.shape[-1]
  tolerance = size * np.finfo(dtype.as_numpy_dtype).eps
  # The mean over nobody may be NaN, for which there are no eigenvalues.
  hessians = tf.where(tf.math.is_finite(hessians), hessians, 0)
  hessians = tf.cast(hessians, tf.float64)
  values, vectors = tf.linalg.eigh(
    (hessians + tf.linalg.matrix_transpose(hessians)) / 2
  )
  largest = tf.maximum(values[:, -1:], 0)
  is_kept = values > tolerance * largest
  inverse = tf.where(
    is_kept, 1 / tf.where(is_kept, values + ridge * largest, 1), 0
  )
  along = tf.linalg.matvec(vectors, tf.cast(right_sides, tf.float64), True)
  steps = tf.linalg.matvec(vectors, inverse * along)
  ranks = tf.reduce_sum(inverse * values, axis=1)
  return tf.cast(steps, dtype), tf.cast(ranks, tf.float32)
