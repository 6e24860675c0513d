"""Heads that belong to domains: trained by clients, combined by the server.

Client i starts from the head w_m of each domain m that the server sent, trains
it on its L_im examples of that domain and reports its change d_im. The server
makes the new head from these:

    weighted_average  w_m <- w_m + d_m,  d_m = sum_i L_im d_im / sum_i L_im

`second_order` has another rule. A client reports sums over its examples, and
the server needs ratios of their means over the cohort. So any aggregator for
sums or means works, including private and secure ones, with any weights of
clients (see `ClientWork.report_scale`). If a factory clips and takes no
weights, clients with many examples count less.
"""

import collections
from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf

from tff_pfl.core import client as client_lib
from tff_pfl.core import (
  client_work,
  example_tensors,
  objectives,
  phases,
  training_loop,
)
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
    model: The model of one domain.
    heads: The heads of all domains, as in `domain_models.multi_head`.
    examples: Features with their domain or, with `inputs`, the result of
      `training_loop.head_inputs` for the model of all domains.

  Returns:
    The new heads and the metric sums of all of them. The head of a domain
    without examples is unchanged.
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
      objectives.prediction_loss(model, model.head),
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


def members_of(model, features):
  """Bool `[domains, capacity]`, True for the examples of a domain."""
  domain = features.x['domain']
  return tf.logical_and(
    features.is_example,
    tf.equal(domain, tf.range(model.domains.number)[:, tf.newaxis]),
  )


class WeightedAverage:
  """The mean of clients' heads, weighted by their examples of the domain."""

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
    """A client's report on the heads it trained, as sums over its examples.

    It has the number of examples of each domain, and the change of the domain's
    head times this number.

    Args:
      features: The client's features, with their domain.
    """
    members = members_of(self._model, features)
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
