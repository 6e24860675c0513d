"""The federated round, written once: a loop over a method's exchanges.

    server                                     client i of the cohort
    ------                                     ----------------------
    broadcast(what has changed)            --> client(broadcast, C_i, examples)
    aggregate(updates, reports, weights)   <-- update = initial - final, report
    server(state, means)
    server optimizer step                      keep the cache for the next
    ... the next exchange ...
    round metrics                          <-- metric sums; keep C_i

A method gives a `ClientWork`; everything else is here: weights of clients,
clients without examples, clients whose result is not finite, aggregation, the
server's step, and metrics. A client whose result of an exchange is not finite
is left out of that one and the rest of the round; it has counted in those
before.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.core import (
  aggregators,
  client_work,
  example_tensors,
  in_place,
  local_statistics,
  objectives,
  personal_models,
  personalized_process,
  phases,
  private_mean,
  tff_learning,
  training_options,
)
from tff_pfl.core import client as client_lib
from tff_pfl.core import options as options_lib
from tff_pfl.models import domains, split_model


def build_personalized_process(
  name: str,
  work: client_work.ClientWork,
  options: options_lib.ProcessOptions,
  hparams: Any = None,
) -> personalized_process.PersonalizedProcess:
  """Builds the process of a method.

  Args:
    name: Name of the method, for errors and records.
    work: The method.
    options: Options that every method takes.
    hparams: The method's hyperparameters (a dataclass), for the record.
  """
  if options.stateless:
    work = work.without_state(name)
  options.attack.expect_fits(work.model)
  work = local_statistics.kept_by_clients(work, options.statistics, name)
  the_round = _Round(work, options)

  @tff.federated_computation(
    tff.FederatedType(the_round.state_type, tff.SERVER),
    tff.FederatedType(the_round.types.client_state, tff.CLIENTS),
    tff.FederatedType(the_round.types.examples, tff.CLIENTS),
  )
  def next_fn(state, client_states, examples):
    return personalized_process.PersonalizedOutput(
      *the_round.run(state, client_states, examples)
    )

  return personalized_process.PersonalizedProcess(
    the_round.initialize,
    next_fn,
    _build_initialize_client_state(work),
    name=name,
    model=work.model,
    build_personal_models=lambda: personal_models.build_personal_models(
      work, options, the_round.broadcast_of, the_round.types
    ),
    build_learning_process=lambda: tff_learning.build_learning_process(
      name, work, the_round.initialize, the_round.run
    ),
    bytes_per_round=the_round.bytes(),
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


class _Round:
  """A method's round: its computations, one after the other.

  Attributes:
    types: Types of the arguments of a client's computation.
    initialize: `( -> S@SERVER)`.
    state_type: Type of S.
    broadcast_of: `(S -> Broadcast)`.
  """

  def __init__(
    self, work: client_work.ClientWork, options: options_lib.ProcessOptions
  ):
    """Builds the computations of a method under some options."""
    self._work, self._options = work, options
    initial_parts = self._initial_parts()
    parts_type = initial_parts.type_signature.result
    self.types = _client_types(work, parts_type)
    self._clients = self._build_clients(parts_type.algorithm)
    outputs = [client.type_signature.result for client in self._clients]
    self._sums_type = outputs[-1].sums
    self._aggregations = aggregators.create(
      options.aggregator,
      [output.sent for output in outputs],
      [exchange.aggregator for exchange in work.exchanges],
    )
    self.initialize = self._build_initialize(initial_parts)
    self.state_type = self.initialize.type_signature.result.member
    self.broadcast_of = tff.tensorflow.computation(
      work.broadcast_of, self.state_type
    )
    # The parts of its state that the server sends in later exchanges.
    self._server_updates = [
      self._build_server_update(exchange) for exchange in work.exchanges[1:]
    ]
    self._servers = [
      self._build_server(number) for number in range(len(work.exchanges))
    ]
    self._metrics_of = self._build_metrics()

  def run(self, state, client_states, examples):
    """Runs the round, in a federated computation.

    Returns:
      The new server state, the clients' new states, and metrics.
    """
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
      sums = tff.federated_sum(output.sums)
      state, update_norm = tff.federated_map(
        server, (state, aggregated.result, aggregated.state, sums)
      )
      measurements.append(aggregated.measurements)
    metrics = tff.federated_map(
      self._metrics_of, (state, sums, update_norm, tuple(measurements))
    )
    return state, output.client_state, metrics

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
        seed=tf.constant(options.seed, tf.int64),
        global_weights=tf.nest.map_structure(tf.constant, work.initial_global),
        aggregator=(),
        server_optimizer=tf.nest.map_structure(
          tf.convert_to_tensor, optimizer_state
        ),
        algorithm=tf.nest.map_structure(tf.constant, work.initial_algorithm),
      )

    return initial_parts

  def _build_initialize(self, initial_parts):
    @tff.federated_computation
    def initialize():
      parts = tff.federated_eval(initial_parts, tff.SERVER)
      states = tuple(a.initialize() for a in self._aggregations)
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

  # The clients' computations.

  def _build_clients(self, algorithm_type):
    """Each exchange's `(<broadcast, C, E, ...> -> output)`.

    After the first exchange a client also takes the server's update and its own
    `cache`. Of the output, `sent` and `sums` leave the client.
    """
    frozen = _frozen_names(self._work)
    clients = []
    for exchange in self._work.exchanges:
      errors.expect(
        exchange.server is None
        or not frozen
        or not isinstance(self._options.aggregator, private_mean.PRIVATE_MEANS),
        'aggregator',
        'one without noise, which would move the frozen weights of the model',
        type(self._options.aggregator).__name__,
      )
      parameters = list(self.types)
      if clients:
        weights = self.types.broadcast.global_weights
        update = collections.OrderedDict(
          global_weights=collections.OrderedDict(
            (name, weights[name]) for name in exchange.receives
          ),
          algorithm=algorithm_type,
        )
        cache = clients[-1].type_signature.result.cache
        parameters += [tff.to_type(update), cache]
      function = self._client_function(exchange, frozen)
      clients.append(tff.tensorflow.computation(function, tuple(parameters)))
    return clients

  def _client_function(self, exchange, frozen):
    """A client's part in an exchange, as a function of tensors."""
    work, options, model = self._work, self._options, self._work.model
    is_last = exchange is work.exchanges[-1]
    # Compiled as a whole, so that what follows the training is one pass over
    # the weights, too; large ones are trained by TensorFlow's own kernels.
    is_compiled = model.uses_xla and not in_place.prefers_in_place(
      model, model.initial_weights
    )

    @tf.function(jit_compile=is_compiled, autograph=False)
    def work_at_client(
      broadcast, client_state, examples, server_update=None, cache=None
    ):
      if server_update is not None:
        broadcast = broadcast._replace(
          global_weights=split_model.select(
            {**broadcast.global_weights, **server_update['global_weights']},
            broadcast.global_weights,
          ),
          algorithm=server_update['algorithm'],
        )
      examples = options.attack.on_examples(
        examples, client_state.client_index, model
      )
      client = client_lib.Client(
        model,
        broadcast,
        work.local_of(client_state),
        examples,
        broadcast.seed_of(client_state, exchange.seed_purpose),
        () if cache is None else cache['method'],
        options.training,
        options.training.rate_factor(broadcast.round_number),
      )
      with in_place.disabled(is_compiled):
        result = exchange.client(client)
      is_finite = _all_finite(
        (result.update, result.report, result.local, result.cache)
      )
      if cache is not None:
        is_finite = tf.logical_and(is_finite, cache['is_finite'])
      accepted = tf.logical_and(is_finite, examples.num_examples > 0)
      report, weight = self._weigh(exchange, result.report, examples, accepted)
      sent = collections.OrderedDict(result.update)
      if exchange.server is None:
        for name in frozen:
          sent.pop(name, None)
      else:
        sent = collections.OrderedDict(
          (name, value)
          for name, value in (('update', sent), ('report', report))
          if tf.nest.flatten(value)
        )
      metrics = result.metrics or objectives.zero_metrics(model)
      sent, metrics = _where(accepted, (sent, metrics))
      sent = options.attack.on_sent(sent, client_state.client_index)
      # Over the accepted clients; summed over the cohort.
      sums = collections.OrderedDict(
        metrics=metrics,
        weight=weight,
        num_examples=tf.where(accepted, examples.num_examples, 0),
        num_clients=tf.cast(accepted, tf.int32),
        num_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32),
      )
      if options.training_metrics == 'none':
        sums = tf.nest.map_structure(tf.zeros_like, sums)
        sums.update(weight=tf.constant(1.0), num_clients=tf.constant(1))
      if is_last:
        client_state = client_state._replace(
          num_rounds=client_state.num_rounds + tf.cast(accepted, tf.int32)
        )
        if work.keeps_local:
          client_state = client_state._replace(
            local=_where(accepted, result.local, client_state.local)
          )
      cache = collections.OrderedDict(is_finite=is_finite, method=result.cache)
      return collections.OrderedDict(
        sent=sent,
        sums=sums,
        cache=() if is_last else cache,
        client_state=client_state if is_last else (),
      )

    # TFF takes no variable number of parameters, but one structure.
    return lambda arguments: work_at_client(*arguments)

  def _weigh(self, exchange, report, examples, accepted):
    """A client's report, as it is averaged, and its weight in the mean."""
    work, options = self._work, self._options
    weighting = (
      exchange.weighting or options.client_weighting or work.default_weighting
    )
    known = options_lib.CLIENT_WEIGHTINGS
    errors.expect_one_of('weighting', weighting, known)
    is_uniform = weighting == 'uniform'
    num_examples = tf.cast(examples.num_examples, tf.float32)
    if work.report_scale is not None:
      scale = work.report_scale
      if aggregators.is_weighted(options.aggregator) and not is_uniform:
        scale = tf.maximum(num_examples, 1.0)
      report = tf.nest.map_structure(
        lambda value: value / tf.cast(scale, value.dtype), report
      )
    return report, tf.where(accepted, 1.0 if is_uniform else num_examples, 0.0)

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
        gradient = split_model.select(update, work.trained_names)
        optimizer_state, trained = _server_step(
          options,
          state,
          split_model.select(weights, work.trained_names),
          gradient,
        )
      stepped = collections.OrderedDict(
        (n, trained[n] if n in trained else old - update.get(n, 0))
        for n, old in weights.items()
      )
      for name in stepped:
        if name.endswith('/moving_variance'):
          # The noise of a private mean may be larger.
          stepped[name] = tf.maximum(stepped[name], 0)
      # A cohort without a single accepted client leaves the model as it is.
      has_update = sums['weight'] > 0

      def keep(new, old):
        return tf.where(has_update, tf.cast(new, old.dtype), old)

      algorithm = tf.nest.map_structure(keep, algorithm, state.algorithm)
      if is_last:
        for name in work.transient:
          algorithm[name] = tf.nest.map_structure(
            tf.zeros_like, algorithm[name]
          )
      states = list(state.aggregator)
      states[number] = aggregator_state
      new_state = state._replace(
        round_number=state.round_number + int(is_last),
        global_weights=tf.nest.map_structure(keep, stepped, weights),
        aggregator=tuple(states),
        server_optimizer=tf.nest.map_structure(
          keep, optimizer_state, state.server_optimizer
        ),
        algorithm=algorithm,
      )
      norm = tf.linalg.global_norm(list(gradient.values())) if gradient else 0.0
      # The aggregate of no update at all may be noise or 0 / 0.
      return new_state, tf.where(has_update, norm, 0.0)

    return server

  def _build_metrics(self):
    """`(<S, sums, norm of the update, measurements...> -> metrics)`."""
    work = self._work

    @tff.tensorflow.computation(
      self.state_type,
      self._sums_type,
      np.float32,
      tuple(
        aggregation.next.type_signature.result.measurements.member
        for aggregation in self._aggregations
      ),
    )
    def metrics_of(state, sums, update_norm, measurements):
      number = objectives.number_counted(sums['metrics'])
      metrics = tf.nest.map_structure(
        # Nothing trained on, no loss: a zero would look like success.
        lambda mean: tf.where(number > 0, mean, np.nan),
        objectives.means(sums['metrics']),
      )
      metrics['update_norm'] = update_norm
      metrics['examples'] = sums['num_examples']
      metrics['clients'] = sums['num_clients']
      metrics['non_finite_clients'] = sums['num_non_finite']
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
  local = tf.nest.map_structure(
    lambda value: tf.TensorSpec(value.shape, value.dtype), work.initial_kept
  )
  return client_work.ClientTypes(
    broadcast=tff.to_type(
      client_lib.Broadcast.of(state)._replace(algorithm=algorithm)
    ),
    client_state=tff.to_type(
      personalized_process.ClientState(
        np.int64, np.int32, tff.types.tensorflow_to_type(local)
      )
    ),
    examples=example_tensors.type_of(work.model.element_spec),
  )


def _frozen_names(work):
  """The global weights that no training changes."""
  model = work.model
  if all(name.endswith(split_model.MOVING) for name in model.statistics):
    return ()
  x, _ = domains.join(example_tensors.batched_spec(model.element_spec))
  moving = set()

  @tf.function(autograph=False)
  def step(x):
    number = tf.shape(tf.nest.flatten(x)[0])[0]
    mode = split_model.Mode(True, tf.constant([0, 0]), tf.ones([number]))
    moving.update(model.forward(model.initial_weights, x, mode)[1])

  step.get_concrete_function(x)
  # The names of several models have that of the model before them.
  frozen = tuple(f'/{name}' for name in model.statistics - moving)
  return tuple(n for n in work.initial_global if f'/{n}'.endswith(frozen))


def _all_finite(values: Any) -> tf.Tensor:
  """True if all floating-point numbers in a structure are finite."""
  return tf.reduce_all(
    [
      tf.reduce_all(tf.math.is_finite(value))
      for value in tf.nest.flatten(values)
      if value.dtype.is_floating
    ]
    or [True]
  )


def _where(condition, values, others=None):
  """`tf.where` on each value of a structure; others are zeros by default."""
  if others is None:
    others = tf.nest.map_structure(tf.zeros_like, values)
  return tf.nest.map_structure(
    lambda a, b: tf.where(condition, a, b), values, others
  )


def _server_step(options, state, weights, gradient):
  """The server optimizer's new state, and the new weights."""
  optimizer, schedule = options.server_optimizer, options.server_schedule
  optimizer_state = state.server_optimizer
  if schedule is not None:
    factor = tf.cast(schedule(state.round_number), tf.float32)
    optimizer_state = training_options.scaled(
      optimizer, optimizer_state, factor
    )
  new_state, weights = optimizer.next(optimizer_state, weights, gradient)
  if schedule is not None:
    hparams = optimizer.get_hparams(state.server_optimizer)
    new_state = optimizer.set_hparams(new_state, hparams)
  return new_state, weights


def _num_bytes(value_type) -> int:
  """The size of the tensors of a type, whose shapes are all known."""
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
