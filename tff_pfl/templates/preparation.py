"""The exchange that some methods have before a round's training.

    server                                     client i of the cohort
    ------                                     ----------------------
    broadcast(global weights, seed, round) --> report(broadcast, C_i, examples)
    aggregate(reports, weights)            <--
    the algorithm's own server step
    broadcast(what that changed)           --> the round's training, with what
                                               the client carried over

A client whose report, or what it carries over, is not finite is left out of the
whole round. One whose training then is not finite has been counted in the
exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.models import split_model
from tff_pfl.templates import aggregators, client_work


class ClientReport(NamedTuple):
  """A client's part in the exchange.

  Attributes:
    report: What is aggregated.
    weight: Of the client in the aggregation.
    num_clients: int32, 1 unless the client is left out.
    kept: What stays with the client until the round's training.
  """

  report: Any
  weight: Any
  num_clients: Any
  kept: Any


class Kept(NamedTuple):
  """What stays with a client between the exchange and the round's training.

  Attributes:
    is_finite: bool, whether the client was accepted, if it has examples.
    carried: `Prepared.carried`.
  """

  is_finite: Any
  carried: Any


class Changes(NamedTuple):
  """What the exchange changed at the server.

  Attributes:
    global_weights: Some of them.
    algorithm: The algorithm's server state.
  """

  global_weights: Any
  algorithm: Any

  def apply(self, before: Any) -> Any:
    """The server's state, or what it broadcast of that, with the changes."""
    return before._replace(
      global_weights=split_model.select(
        {**before.global_weights, **self.global_weights}, before.global_weights
      ),
      algorithm=self.algorithm,
    )


class Both(NamedTuple):
  """Something of the aggregation of reports and of that of updates."""

  preparation: Any
  training: Any


class Exchange(NamedTuple):
  """The computations of the exchange.

  Attributes:
    aggregation: Of the reports.
    report: `(<broadcast, C, examples> -> ClientReport)`.
    server_step: `(<global weights, algorithm, mean report, weight, num_clients>
      -> Changes)`.
  """

  aggregation: aggregators.Aggregation
  report: tff.Computation
  server_step: tff.Computation

  def run(
    self,
    broadcast_at_server: Any,
    aggregator_state: Any,
    arguments: tuple,
  ) -> tuple:
    """The exchange, in a federated computation.

    Args:
      broadcast_at_server: The `Broadcast`, before it is sent.
      aggregator_state: Of `aggregation`.
      arguments: Of `report`, at the clients.

    Returns:
      The `Changes` at the server, the clients' `Kept`, and the output of the
      aggregation.
    """
    reported = tff.federated_map(self.report, arguments)
    aggregated = self.aggregation.next(
      aggregator_state, reported.report, reported.weight
    )
    changes = tff.federated_map(
      self.server_step,
      (
        broadcast_at_server,
        aggregated.result,
        tff.federated_sum(reported.weight),
        tff.federated_sum(reported.num_clients),
      ),
    )
    return changes, reported.kept, aggregated


def build_exchange(
  model: split_model.SplitModel,
  work: client_work.ClientWork,
  aggregator: aggregators.AggregationFactory,
  weigh: Callable[..., tuple],
  *,
  broadcast_type: tff.Type,
  client_state_type: tff.Type,
  examples_type: tff.Type,
) -> Exchange:
  """Builds the exchange of a method with a `preparation`.

  Args:
    model: The model.
    work: The method.
    aggregator: Of the reports.
    weigh: From a client's report, its examples, whether it is accepted and the
      kind of weighting (None for that of the updates) to the report as it is
      averaged and its weight.
    broadcast_type: Of `Broadcast`.
    client_state_type: Of `ClientState`.
    examples_type: Of `ExampleTensors`.
  """
  preparing = work.preparation

  @tf.function(jit_compile=model.uses_xla, autograph=False)
  def prepare(broadcast, client_state, examples):
    report, carried = preparing.report(
      broadcast,
      work.local_of(client_state),
      examples,
      broadcast.seed_of(client_state, preparing.seed_purpose),
    )
    is_finite = client_work.all_finite((report, carried))
    accepted = tf.logical_and(is_finite, examples.num_examples > 0)
    report, weight = weigh(report, examples, accepted, preparing.weighting)
    return ClientReport(
      report=tf.nest.map_structure(
        lambda value: tf.where(accepted, value, tf.zeros_like(value)), report
      ),
      weight=weight,
      num_clients=tf.cast(accepted, tf.int32),
      kept=Kept(is_finite, carried),
    )

  @tff.tensorflow.computation(broadcast_type, client_state_type, examples_type)
  def report(broadcast, client_state, examples):
    return prepare(broadcast, client_state, examples)

  reported = report.type_signature.result
  aggregation = aggregators.create(aggregator, reported.report)

  @tff.tensorflow.computation(
    broadcast_type,
    aggregation.result_type,
    reported.weight,
    reported.num_clients,
  )
  def server_step(broadcast, mean, weight, num_clients):
    weights, algorithm = preparing.server_update(broadcast, mean, num_clients)

    def keep(new, old):
      # A cohort without a single accepted client changes nothing.
      return tf.where(weight > 0, tf.cast(new, old.dtype), old)

    return Changes(
      tf.nest.map_structure(
        keep, weights, split_model.select(broadcast.global_weights, weights)
      ),
      tf.nest.map_structure(keep, algorithm, broadcast.algorithm),
    )

  return Exchange(aggregation, report, server_step)
