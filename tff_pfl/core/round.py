"""The federated round, written once: a loop over a method's exchanges.

    server                                     client i of the cohort
    ------                                     ----------------------
    broadcast(what has changed)            --> client(broadcast, C_i, examples)
    aggregate(updates, reports, weights)   <-- update = initial - final, report
    server(state, means)
    server optimizer step                      keep the cache for the next
    ... the next exchange ...
    round metrics                          <-- metric sums; keep C_i

A method provides a `ClientWork`. This module has everything else that the
server does: aggregation, its step and metrics. `clients` has the clients' part.
"""

import collections
import dataclasses
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  aggregators,
  client_computations,
  client_sampling,
  client_work,
  local_statistics,
  objectives,
  personalized_process,
  process_options,
  schedules,
  tff_learning,
  training_options,
)
from tff_pfl.models import keras_purity, split_model


def build_personalized_process(
  name: str,
  work: client_work.ClientWork,
  options: process_options.ProcessOptions,
  hparams: Any,
  seed: int,
  cohorts: Optional[client_sampling.CohortSampler],
  num_rounds: Optional[int],
) -> personalized_process.PersonalizedProcess:
  """Builds the process of a method.

  Args:
    hparams: The method's hyperparameters (a dataclass), for the description.
  """
  options, accounting = options.resolved(cohorts, num_rounds)
  if options.stateless:
    work = work.without_state(name)
  weighting = options.client_weighting or work.default_weighting
  options = dataclasses.replace(options, client_weighting=weighting)
  options.attack.expect_fits(work.model)
  work = local_statistics.kept_by_clients(work, options.statistics, name)
  the_round = _Round(work, options, seed)

  @tff.tensorflow.computation(np.int64)
  def initialize_client_state(client_index):
    return personalized_process.ClientState(
      client_index=client_index,
      num_rounds=tf.constant(0, tf.int32),
      local=tf.nest.map_structure(tf.constant, work.initial_kept),
    )

  next_fn = tff.federated_computation(
    the_round.run,
    tff.FederatedType(the_round.state_type, tff.SERVER),
    tff.FederatedType(the_round.types.client_state, tff.CLIENTS),
    tff.FederatedType(the_round.types.examples, tff.CLIENTS),
  )

  def build_learning_process():
    with_rates = dataclasses.replace(work, rates_may_be_set=True)
    own_round = _Round(with_rates, options, seed)
    return tff_learning.build_learning_process(
      name, with_rates, own_round, options.server_optimizer
    )

  def with_personalization(personalization):
    personalization = personalization.resolved(work.adaptation)
    own = dataclasses.replace(options, personalization=personalization)
    errors.expect(
      personalization.fine_tune != 'trained' or the_round.has_trained_models,
      'fine_tune',
      f'other than trained for {name}, whose clients alone do not make whole '
      'models that they keep',
      'trained',
    )
    if personalization.fine_tune == 'head':
      split_model.check_tied(work.model)
    return personalized_process.PersonalizedProcess(
      the_round.initialize,
      next_fn,
      initialize_client_state,
      name=name,
      model=work.model,
      build_personal_models=lambda: client_computations.build_personal_models(
        work, own, the_round.broadcast_of, the_round.types
      ),
      build_learning_process=build_learning_process,
      with_personalization=with_personalization,
      has_trained_models=the_round.has_trained_models,
      bytes_per_round=the_round.bytes(),
      has_global_model=work.global_model is not None,
      has_local_weights=work.fit_new_client is not None,
      trains_new_clients=(
        work.fit_new_client is not None and work.trains_new_clients
      ),
      adapts_known_clients=(
        personalization.fine_tune != 'none'
        or work.fit_new_client is not None
        and not work.keeps_local
      ),
      adaptation=work.adaptation,
      attacked_clients=own.attack.clients,
      seed=seed,
      accounting=accounting,
      description={
        'hparams': process_options.described(hparams),
        **process_options.described(own),
      },
    )

  return with_personalization(options.personalization)


class _Round:
  """The computations of a method's round, in sequence.

  Attributes:
    types: Types of the arguments of a client's computation.
    initialize: `( -> S@SERVER)`.
    state_type: Type of S.
    broadcast_of: `(S -> Broadcast)`.
  """

  def __init__(
    self,
    work: client_work.ClientWork,
    options: process_options.ProcessOptions,
    seed: int,
  ):
    """Builds the computations of a method."""
    self._work, self._options, self._seed = work, options, seed
    initial_parts = self._initial_parts()
    parts_type = initial_parts.type_signature.result
    self.types = client_computations.types_of(work, parts_type)
    self._clients = client_computations.build(
      work, options, self.types, parts_type.algorithm
    )
    outputs = [client.type_signature.result for client in self._clients]
    self._aggregations = aggregators.create(
      options.aggregator,
      [output.sent for output in outputs],
      [exchange.aggregator for exchange in work.exchanges],
    )
    self._sums = aggregators.create_sums(
      [output.sums for output in outputs],
      options.aggregator,
      self._aggregations,
    )
    self.initialize = self._build_initialize(initial_parts)
    self.state_type = self.initialize.type_signature.result.member
    self.broadcast_of = tff.tensorflow.computation(
      work.broadcast_of, self.state_type
    )
    # The parts of the server's state that it sends in later exchanges.
    self._server_updates = [
      self._build_server_update(exchange) for exchange in work.exchanges[1:]
    ]
    self._servers = [
      self._build_server(number) for number in range(len(work.exchanges))
    ]
    self._metrics_of = self._build_metrics()

  def run(self, state, client_states, examples):
    """Runs the round inside a federated computation."""
    broadcast = tff.federated_broadcast(
      tff.federated_map(self.broadcast_of, state)
    )
    at_clients = (broadcast, client_states, examples)
    cache, measurements = None, []
    for number, (client, aggregation, server) in enumerate(
      zip(self._clients, self._aggregations, self._servers)
    ):
      received = at_clients
      if number:
        update = tff.federated_map(self._server_updates[number - 1], state)
        received = (*at_clients, tff.federated_broadcast(update), cache)
      output = tff.federated_map(client, received)
      cache = output.cache
      aggregated = aggregation.next(
        state.aggregator[number], output.sent, output.sums.weight
      )
      sums = self._sums[number].next(
        self._sums[number].initialize(), output.sums
      )
      state, update_norm = tff.federated_map(
        server, (state, aggregated.result, aggregated.state, sums.result)
      )
      measurements.append(aggregated.measurements)
    metrics = tff.federated_map(
      self._metrics_of,
      (state, sums.result, sums.measurements, update_norm, tuple(measurements)),
    )
    return personalized_process.PersonalizedOutput(
      state, output.client_state, metrics
    )

  @property
  def has_trained_models(self) -> bool:
    """See `PersonalizedProcess`."""
    exchange, *more = self._work.exchanges
    sent = self._clients[0].type_signature.result.sent
    updated = dir(sent.update) if 'update' in dir(sent) else ()
    # Without state, a client would refit its local weights before it is scored.
    is_forgotten = (
      self._options.stateless and self._work.fit_new_client is not None
    )
    return not (more or is_forgotten) and (
      exchange.server is None or set(self._work.initial_global) <= set(updated)
    )

  def bytes(self) -> personalized_process.BytesPerRound:
    """The bytes that a client receives and sends in a round."""
    updates = [u.type_signature.result for u in self._server_updates]
    sent = [client.type_signature.result.sent for client in self._clients]
    return personalized_process.BytesPerRound(
      down=sum(map(_num_bytes, [self.types.broadcast, *updates])),
      up=sum(map(_num_bytes, sent)),
    )

  # The state before the first round.

  def _initial_parts(self):
    """`( -> S)`, without the aggregators' states."""
    work, options = self._work, self._options

    @tff.tensorflow.computation
    def initial_parts():
      trained = split_model.select(work.initial_global, work.trained_names)
      optimizer_state = options.server_optimizer.initialize(
        training_options.specs_of(trained)
      )
      return personalized_process.ServerState(
        round_number=tf.constant(0, tf.int32),
        seed=tf.constant(self._seed, tf.int64),
        global_weights=tf.nest.map_structure(tf.constant, work.initial_global),
        aggregator=(),
        server_optimizer=tf.nest.map_structure(
          tf.convert_to_tensor, optimizer_state
        ),
        algorithm=tf.nest.map_structure(tf.constant, work.initial_algorithm),
        rate_factor=tf.constant(1.0),
      )

    return initial_parts

  def _build_initialize(self, initial_parts):
    @tff.federated_computation
    def initialize():
      parts = tff.federated_eval(initial_parts, tff.SERVER)
      states = tuple(a.initialize() for a in self._aggregations)
      values = {
        name: getattr(parts, name)
        for name in personalized_process.ServerState._fields
      }
      values['aggregator'] = states
      return tff.federated_zip(personalized_process.ServerState(**values))

    return initialize

  # The server's computations.

  def _build_server_update(self, exchange):
    """`(S -> update)`: the message at the beginning of a later exchange."""

    @tff.tensorflow.computation(self.state_type)
    def server_update(state):
      return collections.OrderedDict(
        global_weights=split_model.select(
          state.global_weights, exchange.receives
        ),
        algorithm=state.algorithm,
      )

    return server_update

  def _build_server(self, number):
    """`(<S, mean, aggregator state, sums> -> <S, norm of the update>)`."""
    work, options = self._work, self._options
    exchange = work.exchanges[number]
    is_last = number == len(work.exchanges) - 1
    aggregated = self._aggregations[number].next.type_signature.result

    @tff.tensorflow.computation(
      self.state_type,
      aggregated.result.member,
      aggregated.state.member,
      self._clients[number].type_signature.result.sums,
    )
    @keras_purity.eager_tensors_as_constants()
    def server(state, mean, aggregator_state, sums):
      weights, update, algorithm = state.global_weights, mean, state.algorithm
      if exchange.server is not None:
        least_share = aggregators.least_share(
          options.aggregator, sums['num_clients']
        )
        update, algorithm = exchange.server(
          state,
          mean.get('update', {}),
          mean.get('report', ()),
          client_work.Cohort(sums['num_clients'], least_share),
        )
      optimizer_state, trained, gradient = state.server_optimizer, {}, {}
      if any(name in update for name in work.trained_names):
        gradient = collections.OrderedDict(
          (n, update[n] if n in update else tf.zeros_like(weights[n]))
          for n in work.trained_names
        )
        optimizer_state, trained = _server_step(
          options,
          state,
          split_model.select(weights, work.trained_names),
          gradient,
        )
        # Its momentum or weight decay may change weights without an update.
        trained = {n: new for n, new in trained.items() if n in update}
      stepped = collections.OrderedDict(
        (n, trained[n] if n in trained else old - update.get(n, 0))
        for n, old in weights.items()
      )
      for name in stepped:
        if name.endswith('/moving_variance'):
          # The noise of a private mean may exceed the variance.
          stepped[name] = tf.maximum(stepped[name], 0)
      # A cohort without any accepted client does not change the model.
      has_update = sums['weight'] > 0

      def after(old, new):
        # In the order of the old names.
        return tf.nest.map_structure(
          lambda a, b: tf.where(has_update, tf.cast(b, a.dtype), a), old, new
        )

      algorithm = after(state.algorithm, algorithm)
      if is_last:
        for name in work.transient:
          algorithm[name] = tf.nest.map_structure(
            tf.zeros_like, algorithm[name]
          )
      states = list(state.aggregator)
      states[number] = aggregator_state
      new_state = state._replace(
        round_number=state.round_number + int(is_last),
        global_weights=after(weights, stepped),
        aggregator=tuple(states),
        server_optimizer=after(state.server_optimizer, optimizer_state),
        algorithm=algorithm,
      )
      norm = tf.linalg.global_norm(list(gradient.values())) if gradient else 0.0
      # The aggregate of no updates may be noise or 0 / 0.
      return new_state, tf.where(has_update, norm, 0.0)

    return server

  def _build_metrics(self):
    """`(<S, sums, sums_measured, update_norm, measurements> -> metrics)`."""
    work = self._work

    @tff.tensorflow.computation(
      self.state_type,
      self._clients[-1].type_signature.result.sums,
      self._sums[-1].next.type_signature.result.measurements.member,
      np.float32,
      tuple(
        aggregation.next.type_signature.result.measurements.member
        for aggregation in self._aggregations
      ),
    )
    def metrics_of(state, sums, sums_measured, update_norm, measurements):
      number = objectives.number_counted(sums['metrics'])
      metrics = tf.nest.map_structure(
        # If no example was trained on, a loss of zero would look like success.
        lambda mean: tf.where(number > 0, mean, np.nan),
        objectives.means(sums['metrics']),
      )
      metrics['update_norm'] = update_norm
      metrics['examples'] = sums['num_examples']
      metrics['clients'] = sums['num_clients']
      metrics['non_finite_clients'] = sums['num_non_finite']
      if work.server_metrics is not None:
        metrics.update(work.server_metrics(state.algorithm))
      if sums_measured:
        metrics['clipped_sums'] = tf.add_n(
          [
            measured[f'secure_{side}_clipped_count']
            for measured in sums_measured.values()
            for side in ('lower', 'upper')
          ]
        )
      if tf.nest.flatten(measurements):
        metrics['aggregator'] = measurements[0]
        if len(measurements) > 1:
          metrics['aggregator'] = collections.OrderedDict(
            (f'exchange_{number}', measured)
            for number, measured in enumerate(measurements)
          )
      return metrics

    return metrics_of


def _server_step(options, state, weights, gradient):
  """The server optimizer's new state and the new weights."""
  optimizer, optimizer_state = options.server_optimizer, state.server_optimizer
  factor = schedules.factor(
    options.server_learning_rate_schedule, state.round_number
  )
  if factor is not None:
    optimizer_state = training_options.scaled(
      optimizer, optimizer_state, factor
    )
  new_state, weights = optimizer.next(optimizer_state, weights, gradient)
  if factor is not None:
    hparams = optimizer.get_hparams(state.server_optimizer)
    new_state = optimizer.set_hparams(new_state, hparams)
  return new_state, weights


def _num_bytes(value_type) -> int:
  """The bytes of a type's tensors, whose shapes must all be known."""
  if isinstance(value_type, tff.StructType):
    return sum(_num_bytes(element) for element in value_type)
  return int(np.prod(value_type.shape)) * np.dtype(value_type.dtype).itemsize
