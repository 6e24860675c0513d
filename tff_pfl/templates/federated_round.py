"""The federated round, written once: a loop over a method's exchanges.

    server                                     client i of the cohort
    ------                                     ----------------------
    broadcast(what has changed)            --> client(broadcast, C_i, examples)
    aggregate(updates, reports, weights)   <-- update = initial - final, report
    server(state, means)
    server optimizer step                      carry over to the next exchange
    ... the next exchange ...
    round metrics                          <-- metric sums; keep C_i

A method gives a `ClientWork`; everything else is here: weights of clients,
clients without examples, clients whose result is not finite, aggregation, the
server's step, and metrics. A client whose result of an exchange is not finite
is left out of that one and the rest of the round; in the exchanges before it
has been counted.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.client import example_tensors, objectives
from tff_pfl.models import split_model
from tff_pfl.templates import (
  aggregators,
  client_work,
  learning_process,
  personal_models,
  personalized_process,
)
from tff_pfl.templates import options as options_lib


class _Sums(NamedTuple):
  """What is summed over the cohort.

  Attributes:
    metrics: Metric sums of training over the accepted clients.
    weight: Of the accepted clients in the aggregation.
    num_examples: int32, training examples of the accepted clients.
    num_clients: int32, the accepted clients.
    num_non_finite: int32, clients left out as their result is not finite.
  """

  metrics: Any
  weight: Any
  num_examples: Any
  num_clients: Any
  num_non_finite: Any


class _Kept(NamedTuple):
  """What stays with a client from one exchange to the next.

  Attributes:
    is_finite: bool, whether its results were finite so far.
    carried: `ClientResult.carried`.
  """

  is_finite: Any
  carried: Any


class _ClientOutput(NamedTuple):
  """What a client's computation returns; `sent` and `sums` leave the client."""

  sent: Any
  sums: _Sums
  kept: _Kept
  client_state: personalized_process.ClientState


class _News(NamedTuple):
  """What the server sends in exchanges after the first."""

  global_weights: Any
  algorithm: Any


class _Computations(NamedTuple):
  """An exchange, built.

  Attributes:
    news_of: `(S -> _News)`; None for the first exchange.
    client: `(<broadcast, C, E> -> _ClientOutput)`; after the first exchange it
      also takes the news and what the client kept.
    aggregation: Of what clients send.
    server: `(<S, mean, aggregator state, sums> -> <S, norm of the update>)`.
  """

  news_of: Optional[tff.Computation]
  client: tff.Computation
  aggregation: aggregators.Aggregation
  server: tff.Computation


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
  initial_parts = _initial_server_parts(work, options)
  types = _client_types(work, initial_parts)
  clients = _build_clients(work, options, types)
  aggregations = [
    aggregators.create(options.aggregator, client.type_signature.result.sent)
    for client in clients
  ]
  initialize = _build_initialize(initial_parts, aggregations)
  state_type = initialize.type_signature.result.member
  exchanges = [
    _Computations(
      _build_news(exchange, state_type) if number else None,
      client,
      aggregation,
      _build_server(work, number, options, state_type, client, aggregation),
    )
    for number, (exchange, client, aggregation) in enumerate(
      zip(work.exchanges, clients, aggregations)
    )
  ]
  broadcast_of = _build_broadcast(state_type)
  run_round = _build_round(work, state_type, broadcast_of, exchanges)

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
    name=name,
    model=work.model,
    initialize=initialize,
    initialize_client_state=_build_client_state(work),
    next_fn=next_fn,
    personal_models=lambda: personal_models.build_personal_models(
      work, options.personalization, broadcast_of, types
    ),
    learning_process=lambda: learning_process.build_learning_process(
      name, work, initialize, run_round
    ),
    bytes_per_round=_bytes_per_round(types, exchanges),
    has_global_model=work.global_model is not None,
    has_local_weights=work.fit_new_client is not None,
    adapts_known_clients=(
      options.personalization.resolved(work.adaptation).fine_tune != 'none'
      or work.fit_new_client is not None
      and not work.keeps_local
    ),
    adaptation=work.adaptation,
    seed=options.seed,
    description=_description(work, options, hparams),
  )


def _build_round(work, state_type, broadcast_of, exchanges):
  """The round, as a function in a federated computation."""
  metrics_of = _build_metrics(work, state_type, exchanges)

  def run_round(state, client_states, examples):
    """A round's new server state, the clients' new states, and metrics."""
    broadcast = tff.federated_broadcast(tff.federated_map(broadcast_of, state))
    at_clients = (broadcast, client_states, examples)
    kept, measurements = None, []
    for number, exchange in enumerate(exchanges):
      received = at_clients
      if number:
        news = tff.federated_map(exchange.news_of, state)
        received = (*at_clients, tff.federated_broadcast(news), kept)
      output = tff.federated_map(exchange.client, received)
      kept = output.kept
      aggregated = exchange.aggregation.next(
        state.aggregator[number], output.sent, output.sums.weight
      )
      sums = tff.federated_sum(output.sums)
      state, update_norm = tff.federated_map(
        exchange.server, (state, aggregated.result, aggregated.state, sums)
      )
      measurements.append(aggregated.measurements)
    metrics = tff.federated_map(
      metrics_of, (state, sums, update_norm, tuple(measurements))
    )
    return state, output.client_state, metrics

  return run_round


def _build_initialize(initial_parts, aggregations):
  """`( -> S@SERVER)`."""

  @tff.federated_computation
  def initialize():
    parts = tff.federated_eval(initial_parts, tff.SERVER)
    return tff.federated_zip(
      personalized_process.ServerState(
        round_number=parts[0],
        seed=parts[1],
        global_weights=parts[2],
        aggregator=tuple(a.process.initialize() for a in aggregations),
        server_optimizer=parts[3],
        algorithm=parts[4],
      )
    )

  return initialize


def _initial_server_parts(work, options):
  """`( -> <round number, seed, weights, optimizer state, algorithm>)`."""

  @tff.tensorflow.computation
  def initial_parts():
    optimizer_state = options.server_optimizer.initialize(
      _specs(work.initial_global, work.trained_names)
    )
    return (
      tf.constant(0, tf.int32),
      tf.constant(options.seed, tf.int64),
      tf.nest.map_structure(tf.constant, work.initial_global),
      tf.nest.map_structure(tf.convert_to_tensor, optimizer_state),
      tf.nest.map_structure(tf.constant, work.initial_algorithm),
    )

  return initial_parts


def _specs(arrays, names):
  return collections.OrderedDict(
    (name, tf.TensorSpec(arrays[name].shape, arrays[name].dtype))
    for name in names
  )


def _build_client_state(work):
  @tff.tensorflow.computation(np.int64)
  def initialize_client_state(client_index):
    return personalized_process.ClientState(
      client_index=client_index,
      num_rounds=tf.constant(0, tf.int32),
      local=tf.nest.map_structure(tf.constant, work.initial_kept),
    )

  return initialize_client_state


def _client_types(work, initial_parts):
  parts = initial_parts.type_signature.result
  kept = tf.nest.map_structure(
    lambda value: tf.TensorSpec(value.shape, value.dtype), work.initial_kept
  )
  return client_work.ClientTypes(
    broadcast=tff.to_type(
      client_work.Broadcast(parts[0], parts[1], parts[2], parts[4])
    ),
    client_state=tff.to_type(
      personalized_process.ClientState(
        np.int64, np.int32, tff.types.tensorflow_to_type(kept)
      )
    ),
    examples=example_tensors.type_of(work.model.element_spec),
  )


def _build_clients(work, options, types):
  """Each exchange's `(<broadcast, C, E, ...> -> _ClientOutput)`."""
  clients = []
  for exchange in work.exchanges:
    is_last = exchange is work.exchanges[-1]
    work_at_client = _client_function(work, exchange, options, is_last)
    parameters = list(types)
    if clients:
      news = _News(
        collections.OrderedDict(
          (name, types.broadcast.global_weights[name])
          for name in exchange.receives
        ),
        types.broadcast.algorithm,
      )
      parameters += [tff.to_type(news), clients[-1].type_signature.result.kept]
    clients.append(_computation(work_at_client, parameters))
  return clients


def _computation(function, parameters):
  # TFF takes no variable number of parameters, but one structure.
  @tff.tensorflow.computation(tuple(parameters))
  def computation(arguments):
    return function(*arguments)

  return computation


def _client_function(work, exchange, options, is_last):
  """What a client does in an exchange, as a function of tensors."""

  # Compiled as a whole, so that what follows the training is one pass over the
  # weights, too.
  @tf.function(jit_compile=work.model.uses_xla, autograph=False)
  def work_at_client(broadcast, client_state, examples, news=None, kept=None):
    if news is not None:
      broadcast = broadcast._replace(
        global_weights=split_model.select(
          {**broadcast.global_weights, **news.global_weights},
          broadcast.global_weights,
        ),
        algorithm=news.algorithm,
      )
    result = exchange.client(
      broadcast,
      work.local_of(client_state),
      examples,
      broadcast.seed_of(client_state, exchange.seed_purpose),
      *([] if kept is None else [kept.carried]),
    )
    is_finite = client_work.all_finite(
      (result.update, result.report, result.local, result.carried)
    )
    if kept is not None:
      is_finite = tf.logical_and(is_finite, kept.is_finite)
    accepted = tf.logical_and(is_finite, examples.num_examples > 0)
    report, weight = _weigh(work, exchange, options, result, examples, accepted)
    metrics = result.metrics or objectives.zero_metrics(work.model)
    sent, metrics = _where(
      accepted, (_sent(exchange, result.update, report), metrics)
    )
    if is_last:
      client_state = client_state._replace(
        num_rounds=client_state.num_rounds + tf.cast(accepted, tf.int32)
      )
      if work.keeps_local:
        client_state = client_state._replace(
          local=_where(accepted, result.local, client_state.local)
        )
    return _ClientOutput(
      sent=sent,
      sums=_Sums(
        metrics=metrics,
        weight=weight,
        num_examples=tf.where(accepted, examples.num_examples, 0),
        num_clients=tf.cast(accepted, tf.int32),
        num_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32),
      ),
      kept=() if is_last else _Kept(is_finite, result.carried),
      client_state=client_state if is_last else (),
    )

  return work_at_client


def _where(condition, values, others=None):
  """Value by value of a structure; zeros if there are no others."""
  if others is None:
    others = tf.nest.map_structure(tf.zeros_like, values)
  return tf.nest.map_structure(
    lambda a, b: tf.where(condition, a, b), values, others
  )


def _sent(exchange, update, report):
  """What a client's update and report are aggregated as."""
  if exchange.server is None:
    return update
  both = collections.OrderedDict(update=update, report=report)
  return collections.OrderedDict(
    (name, value) for name, value in both.items() if tf.nest.flatten(value)
  )


def _weigh(work, exchange, options, result, examples, accepted):
  """A client's report, as it is averaged, and its weight in the mean."""
  weighting = (
    exchange.weighting or options.client_weighting or work.default_weighting
  )
  is_uniform = weighting == 'uniform'
  num_examples = tf.cast(examples.num_examples, tf.float32)
  report = result.report
  if work.report_scale is not None:
    scale = work.report_scale
    if aggregators.is_weighted(options.aggregator) and not is_uniform:
      scale = tf.maximum(num_examples, 1.0)
    report = tf.nest.map_structure(
      lambda value: value / tf.cast(scale, value.dtype), report
    )
  return report, tf.where(accepted, 1.0 if is_uniform else num_examples, 0.0)


def _build_broadcast(state_type):
  @tff.tensorflow.computation(state_type)
  def broadcast_of(state):
    return client_work.Broadcast.of(state)

  return broadcast_of


def _build_news(exchange, state_type):
  @tff.tensorflow.computation(state_type)
  def news_of(state):
    return _News(
      split_model.select(state.global_weights, exchange.receives),
      state.algorithm,
    )

  return news_of


def _build_server(work, number, options, state_type, client, aggregation):
  """`(<S, mean, aggregator state, sums> -> <S, norm of the update>)`."""
  exchange = work.exchanges[number]
  is_last = number == len(work.exchanges) - 1

  @tff.tensorflow.computation(
    state_type,
    aggregation.result_type,
    aggregation.state_type,
    client.type_signature.result.sums,
  )
  def server(state, mean, aggregator_state, sums):
    weights, update, algorithm = state.global_weights, mean, state.algorithm
    if exchange.server is not None:
      least_share = aggregators.least_share(
        options.aggregator, sums.num_clients
      )
      update, algorithm = exchange.server(
        state,
        mean.get('update', {}),
        mean.get('report', ()),
        client_work.Cohort(sums.num_clients, least_share),
      )
    optimizer_state, trained, gradient = state.server_optimizer, {}, {}
    if any(name in update for name in work.trained_names):
      gradient = split_model.select(update, work.trained_names)
      optimizer_state, trained = options.server_optimizer.next(
        optimizer_state,
        split_model.select(weights, work.trained_names),
        gradient,
      )
    stepped = collections.OrderedDict(
      (n, trained[n] if n in trained else old - update.get(n, 0))
      for n, old in weights.items()
    )
    # A cohort without a single accepted client leaves the model as it is.
    has_update = sums.weight > 0

    def keep(new, old):
      return tf.where(has_update, tf.cast(new, old.dtype), old)

    states = list(state.aggregator)
    states[number] = aggregator_state
    new_state = state._replace(
      round_number=state.round_number + int(is_last),
      global_weights=tf.nest.map_structure(keep, stepped, weights),
      aggregator=tuple(states),
      server_optimizer=tf.nest.map_structure(
        keep, optimizer_state, state.server_optimizer
      ),
      algorithm=tf.nest.map_structure(keep, algorithm, state.algorithm),
    )
    norm = tf.linalg.global_norm(list(gradient.values())) if gradient else 0.0
    # What an aggregator gives for no update at all may be noise or 0 / 0.
    return new_state, tf.where(has_update, norm, 0.0)

  return server


def _build_metrics(work, state_type, exchanges):
  """`(<S, sums, norm of the update, measurements...> -> metrics)`."""

  @tff.tensorflow.computation(
    state_type,
    exchanges[-1].client.type_signature.result.sums,
    np.float32,
    tuple(exchange.aggregation.measurements_type for exchange in exchanges),
  )
  def metrics_of(state, sums, update_norm, measurements):
    metrics = tf.nest.map_structure(
      # Nothing trained on, no loss: a zero would look like success.
      lambda mean: tf.where(sums.metrics['examples'] > 0, mean, float('nan')),
      objectives.means(sums.metrics),
    )
    metrics['update_norm'] = update_norm
    metrics['examples'] = sums.num_examples
    metrics['clients'] = sums.num_clients
    metrics['non_finite_clients'] = sums.num_non_finite
    if work.server_metrics is not None:
      metrics.update(work.server_metrics(state.algorithm))
    if tf.nest.flatten(measurements):
      metrics['aggregator'] = measurements[0]
      if len(measurements) > 1:
        metrics['aggregator'] = collections.OrderedDict(
          (f'exchange_{number}', measured)
          for number, measured in enumerate(measurements)
        )
    return metrics

  return metrics_of


def _bytes_per_round(types, exchanges):
  down, up = _num_bytes(types.broadcast), 0
  for exchange in exchanges:
    up += _num_bytes(exchange.client.type_signature.result.sent)
    if exchange.news_of is not None:
      down += _num_bytes(exchange.news_of.type_signature.result)
  return personalized_process.BytesPerRound(down, up)


def _num_bytes(value_type) -> int:
  """Of the tensors of a type; all shapes are known."""
  if isinstance(value_type, tff.StructType):
    return sum(_num_bytes(element) for element in value_type)
  return int(np.prod(value_type.shape)) * np.dtype(value_type.dtype).itemsize


def _description(work, options, hparams):
  """All that the process was built with, as JSON types."""
  optimizer = options.server_optimizer
  optimizer_hparams = optimizer.get_hparams(
    optimizer.initialize(_specs(work.initial_global, work.trained_names))
  )
  return {
    'hparams': dataclasses.asdict(hparams) if hparams is not None else {},
    'client_weighting': options.client_weighting or work.default_weighting,
    **({'stateless': True} if options.stateless else {}),
    'personalization': dataclasses.asdict(
      options.personalization.resolved(work.adaptation)
    ),
    'aggregator': type(options.aggregator).__name__,
    'server_optimizer': {
      'name': type(optimizer).__name__,
      **{name: float(value) for name, value in optimizer_hparams.items()},
    },
  }
