"""The federated round, written once: a loop over a method's exchanges.

    server                                     client i of the cohort
    ------                                     ----------------------
    broadcast(what has changed)            --> client(broadcast, C_i, examples)
    aggregate(updates, reports, weights)   <-- update = initial - final, report
    server(state, means)
    server optimizer step                      carry over to the next exchange
    ... the next exchange ...
    round metrics                          <-- metric sums; keep C_i

A method gives a `ClientWork`; everything else is here and in `exchange_parts`:
weights of clients, clients without examples, clients whose result is not
finite, aggregation, the server's step, and metrics. A client whose result of an
exchange is not finite is left out of that one and the rest of the round; in the
exchanges before it has been counted.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.core import (
  aggregators,
  client_work,
  example_tensors,
  exchange_parts,
  learning_process,
  local_statistics,
  personal_models,
  personalized_process,
  phases,
  training_options,
)
from tff_pfl.core import client as client_lib
from tff_pfl.core import options as options_lib
from tff_pfl.models import split_model


def build_personalized_process(
  name: str,
  work: client_work.ClientWork,
  options: options_lib.ProcessOptions,
  hparams: Any = None,
) -> personalized_process.PersonalizedProcess:
  """Builds the process of a method.

  Args:
    name: The method's, for errors and records.
    work: The method.
    options: What every method takes.
    hparams: The method's hyperparameters (a dataclass), for the record.
  """
  if options.stateless:
    work = work.without_state(name)
  options.attack.expect_fits(work.model)
  work = local_statistics.kept_by_clients(work, options.statistics, name)
  initial_parts = _initial_server_parts(work, options)
  types = _client_types(work, initial_parts.type_signature.result)
  clients = exchange_parts.build_clients(
    work, options, types, initial_parts.type_signature.result.algorithm
  )
  aggregations = aggregators.create(
    options.aggregator,
    [client.type_signature.result.sent for client in clients],
    [exchange.aggregator for exchange in work.exchanges],
  )
  initialize = _build_initialize(initial_parts, aggregations)
  state_type = initialize.type_signature.result.member
  server_updates = [
    exchange_parts.build_server_update(exchange, state_type)
    for exchange in work.exchanges[1:]
  ]
  broadcast_of = tff.tensorflow.computation(work.broadcast_of, state_type)
  run_round = _build_round(
    work,
    options,
    state_type,
    broadcast_of,
    server_updates,
    clients,
    aggregations,
  )

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(types.client_state, tff.CLIENTS),
    tff.FederatedType(types.examples, tff.CLIENTS),
  )
  def next_fn(state, client_states, examples):
    return personalized_process.PersonalizedOutput(
      *run_round(state, client_states, examples)
    )

  return personalized_process.PersonalizedProcess(
    initialize,
    next_fn,
    _build_initialize_client_state(work),
    name=name,
    model=work.model,
    build_personal_models=lambda: personal_models.build_personal_models(
      work, options, broadcast_of, types
    ),
    build_learning_process=lambda: learning_process.build_learning_process(
      name, work, initialize, run_round
    ),
    bytes_per_round=_bytes_per_round(types, server_updates, clients),
    has_global_model=work.global_model is not None,
    has_local_weights=work.fit_new_client is not None,
    trains_new_clients=(
      work.fit_new_client is not None and work.trains_new_clients
    ),
    adapts_known_clients=(
      options.personalization.resolved(work.adaptation).fine_tune != 'none'
      or work.fit_new_client is not None
      and not work.keeps_local
    ),
    adaptation=work.adaptation,
    attacked_clients=options.attack.clients,
    seed=options.seed,
    description=_description(work, options, hparams),
  )


def _build_round(
  work, options, state_type, broadcast_of, server_updates, clients, aggregations
):
  """The round, as a function in a federated computation."""
  servers = [
    exchange_parts.build_server(
      work, number, options, state_type, client, aggregation
    )
    for number, (client, aggregation) in enumerate(zip(clients, aggregations))
  ]
  metrics_of = exchange_parts.build_metrics(
    work, state_type, clients[-1].type_signature.result.sums, aggregations
  )

  def run_round(state, client_states, examples):
    """A round's new server state, the clients' new states, and metrics."""
    broadcast = tff.federated_broadcast(tff.federated_map(broadcast_of, state))
    at_clients = (broadcast, client_states, examples)
    cache, measurements = None, []
    for number, (client, aggregation, server) in enumerate(
      zip(clients, aggregations, servers)
    ):
      received = at_clients
      if number:
        changed = tff.federated_map(server_updates[number - 1], state)
        received = (*at_clients, tff.federated_broadcast(changed), cache)
      output = tff.federated_map(client, received)
      cache = output.cache
      aggregated = aggregation.next(
        state.aggregator[number], output.sent, output.sums.weight
      )
      sums = tff.federated_sum(output.sums)
      state, update_norm = tff.federated_map(
        server, (state, aggregated.result, aggregated.state, sums)
      )
      measurements.append(aggregated.measurements)
    metrics = tff.federated_map(
      metrics_of, (state, sums, update_norm, tuple(measurements))
    )
    return state, output.client_state, metrics

  return run_round


def _initial_server_parts(work, options):
  """`( -> S)`, without the aggregators' states."""

  @tff.tensorflow.computation
  def initial_parts():
    trained = split_model.select(work.initial_global, work.trained_names)
    optimizer_state = options.server_optimizer.initialize(
      training_options.specs_of(trained)
    )
    return personalized_process.ServerState(
      round_number=tf.constant(0, tf.int32),
      seed=tf.constant(options.seed, tf.int64),
      global_weights=tf.nest.map_structure(tf.constant, work.initial_global),
      aggregator=(),
      server_optimizer=tf.nest.map_structure(
        tf.convert_to_tensor, optimizer_state
      ),
      algorithm=tf.nest.map_structure(tf.constant, work.initial_algorithm),
    )

  return initial_parts


def _build_initialize(initial_parts, aggregations):
  """`( -> S@SERVER)`."""

  @tff.federated_computation
  def initialize():
    parts = tff.federated_eval(initial_parts, tff.SERVER)
    states = tuple(a.initialize() for a in aggregations)
    return tff.federated_zip(
      personalized_process.ServerState(
        parts.round_number,
        parts.seed,
        parts.global_weights,
        states,
        parts.server_optimizer,
        parts.algorithm,
      )
    )

  return initialize


def _build_initialize_client_state(work):
  """`(int64 -> C)`."""

  @tff.tensorflow.computation(np.int64)
  def initialize_client_state(client_index):
    return personalized_process.ClientState(
      client_index=client_index,
      num_rounds=tf.constant(0, tf.int32),
      local=tf.nest.map_structure(tf.constant, work.initial_kept),
    )

  return initialize_client_state


def _client_types(work, state):
  algorithm = state.algorithm
  if work.transient:
    algorithm = collections.OrderedDict(
      (name, algorithm[name]) for name in work.lasting(work.initial_algorithm)
    )
  kept = tf.nest.map_structure(
    lambda value: tf.TensorSpec(value.shape, value.dtype), work.initial_kept
  )
  return client_work.ClientTypes(
    broadcast=tff.to_type(
      client_lib.Broadcast.of(state)._replace(algorithm=algorithm)
    ),
    client_state=tff.to_type(
      personalized_process.ClientState(
        np.int64, np.int32, tff.types.tensorflow_to_type(kept)
      )
    ),
    examples=example_tensors.type_of(work.model.element_spec),
  )


def _bytes_per_round(types, server_updates, clients):
  later = [update.type_signature.result for update in server_updates]
  sent = [client.type_signature.result.sent for client in clients]
  return personalized_process.BytesPerRound(
    down=sum(map(_num_bytes, [types.broadcast, *later])),
    up=sum(map(_num_bytes, sent)),
  )


def _num_bytes(value_type) -> int:
  """Of the tensors of a type; all shapes are known."""
  if isinstance(value_type, tff.StructType):
    return sum(_num_bytes(element) for element in value_type)
  return int(np.prod(value_type.shape)) * np.dtype(value_type.dtype).itemsize


def _description(work, options, hparams):
  """All that the process was built with, as JSON types."""
  return {
    'hparams': phases.described(hparams) if hparams is not None else {},
    'client_weighting': options.client_weighting or work.default_weighting,
    **({'stateless': True} if options.stateless else {}),
    **options.more_description(),
    'personalization': phases.described(
      options.personalization.resolved(work.adaptation)
    ),
    'aggregator': type(options.aggregator).__name__,
    'server_optimizer': phases.describe_optimizer(options.server_optimizer),
  }
