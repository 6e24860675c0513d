"""The federated round, written once.

    server                                     client i of the cohort
    ------                                     ----------------------
                                               examples = tensors of the data
    broadcast(global weights, seed, round) --> train(broadcast, C_i, examples)
    aggregate(updates, weights)            <-- update = initial - final
    the algorithm's own server step            keep C_i
    server optimizer step
    round metrics                          <-- metric sums

An algorithm gives a `ClientWork`; everything else is here: weights of clients,
clients without examples, clients whose result is not finite, aggregation, the
server's step, and metrics. The exchange that some methods have before is in
`preparation`, what is done with a client's model outside of rounds in
`personal_models`.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.client import example_tensors, objectives
from tff_pfl.models import randomness, split_model
from tff_pfl.templates import (
  aggregators,
  client_work,
  learning_process,
  personal_models,
  personalized_process,
  preparation,
)
from tff_pfl.templates import personalization as personalization_lib

CLIENT_WEIGHTINGS = ('num_examples', 'uniform')


class _ClientSums(NamedTuple):
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


class _ClientOutput(NamedTuple):
  update: Any
  client_state: Any
  sums: Any


def _type_of(weights) -> tff.Type:
  return tff.types.tensorflow_to_type(
    tf.nest.map_structure(lambda v: tf.TensorSpec(v.shape, v.dtype), weights)
  )


def _num_bytes(value_type) -> int:
  """Of the tensors of a type; all shapes are known."""
  if isinstance(value_type, tff.StructType):
    return sum(_num_bytes(element) for element in value_type)
  return int(np.prod(value_type.shape)) * np.dtype(value_type.dtype).itemsize


def _bytes_per_round(broadcast_type, update_type, exchange):
  down, up = _num_bytes(broadcast_type), _num_bytes(update_type)
  if exchange is not None:
    down += _num_bytes(exchange.server_step.type_signature.result)
    up += _num_bytes(exchange.report.type_signature.result.report)
  return personalized_process.BytesPerRound(down, up)


def _hparams_of(optimizer, specs):
  hparams = optimizer.get_hparams(optimizer.initialize(specs))
  return {name: float(value) for name, value in hparams.items()}


def _build_client_update(
  model,
  work,
  weigh,
  broadcast_type,
  client_state_type,
  examples_type,
  exchange,
):
  """`(<broadcast, C, examples> -> <update, C, sums>)`.

  The update is what is aggregated: with the report, if there is a place for it.
  After an exchange the parameters are also what that changed, and what the
  client kept of it.
  """

  # Compiled as a whole, so that what follows the training is one pass over the
  # weights, too.
  @tf.function(jit_compile=model.uses_xla, autograph=False)
  def update(broadcast, client_state, examples, kept=None):
    result = work.train(
      broadcast,
      work.local_of(client_state),
      examples,
      broadcast.seed_of(client_state, randomness.TRAINING),
      *([] if kept is None else [kept.carried]),
    )
    is_finite = client_work.all_finite(
      (result.update, result.report, result.local)
    )
    if kept is not None:
      is_finite = tf.logical_and(is_finite, kept.is_finite)
    accepted = tf.logical_and(is_finite, examples.num_examples > 0)
    report, weight = weigh(result.report, examples, accepted)
    update = result.update
    if work.server_update is not None:
      update = collections.OrderedDict(update=update, report=report)

    def where_accepted(new, old):
      return tf.nest.map_structure(
        lambda a, b: tf.where(accepted, a, b), new, old
      )

    zeros = tf.nest.map_structure(tf.zeros_like, (update, result.metrics))
    update, metrics = where_accepted((update, result.metrics), zeros)
    new_client_state = client_state._replace(
      num_rounds=client_state.num_rounds + tf.cast(accepted, tf.int32),
    )
    if work.keeps_local:
      new_client_state = new_client_state._replace(
        local=where_accepted(result.local, client_state.local)
      )
    return _ClientOutput(
      update=update,
      client_state=new_client_state,
      sums=_ClientSums(
        metrics=metrics,
        weight=weight,
        num_examples=tf.where(accepted, examples.num_examples, 0),
        num_clients=tf.cast(accepted, tf.int32),
        num_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32),
      ),
    )

  types = (broadcast_type, client_state_type, examples_type)
  if exchange is None:

    @tff.tensorflow.computation(*types)
    def client_update(broadcast, client_state, examples):
      return update(broadcast, client_state, examples)

    return client_update

  @tff.tensorflow.computation(
    *types,
    exchange.server_step.type_signature.result,
    exchange.report.type_signature.result.kept,
  )
  def prepared_client_update(broadcast, client_state, examples, changes, kept):
    changed = preparation.Changes(*changes).apply(broadcast)
    return update(changed, client_state, examples, preparation.Kept(*kept))

  return prepared_client_update


def _build_server_step(
  work,
  server_optimizer,
  trained_names,
  *types,
):
  """`(<S, update, aggregator state, measurements, sums> -> <S, metrics>)`."""

  @tff.tensorflow.computation(*types)
  def server_step(state, update, aggregator_state, measurements, sums):
    weights, algorithm = state.global_weights, state.algorithm
    if work.server_update is not None:
      update, algorithm = work.server_update(
        state, update['update'], update['report'], sums.num_clients
      )
    gradient = split_model.select(update, trained_names)
    new_optimizer_state, trained = state.server_optimizer, {}
    if trained_names:
      new_optimizer_state, trained = server_optimizer.next(
        state.server_optimizer,
        split_model.select(weights, trained_names),
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

    new_state = personalized_process.ServerState(
      round_number=state.round_number + 1,
      seed=state.seed,
      global_weights=tf.nest.map_structure(keep, stepped, weights),
      aggregator=aggregator_state,
      server_optimizer=tf.nest.map_structure(
        keep, new_optimizer_state, state.server_optimizer
      ),
      algorithm=tf.nest.map_structure(keep, algorithm, state.algorithm),
    )
    metrics = tf.nest.map_structure(
      # Nothing trained on, no loss: a zero would look like success.
      lambda mean: tf.where(sums.metrics['examples'] > 0, mean, float('nan')),
      objectives.means(sums.metrics),
    )
    norm = tf.linalg.global_norm(list(gradient.values())) if gradient else 0.0
    # What an aggregator gives for no update at all may be noise or 0 / 0.
    metrics['update_norm'] = tf.where(has_update, norm, 0.0)
    metrics['examples'] = sums.num_examples
    metrics['clients'] = sums.num_clients
    metrics['non_finite_clients'] = sums.num_non_finite
    if work.server_metrics is not None:
      metrics.update(work.server_metrics(new_state.algorithm))
    if tf.nest.flatten(measurements):
      metrics['aggregator'] = measurements
    return new_state, metrics

  return server_step


def build_personalized_process(
  name: str,
  model: split_model.SplitModel,
  work: client_work.ClientWork,
  *,
  aggregator: Optional[aggregators.AggregationFactory] = None,
  server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
  client_weighting: Optional[str] = None,
  stateless: bool = False,
  personalization: Optional[personalization_lib.Personalization] = None,
  seed: int = 0,
  hparams: Any = None,
) -> personalized_process.PersonalizedProcess:
  """Builds the process of an algorithm from its client work.

  Args:
    name: The method's name.
    model: The model.
    work: The algorithm.
    aggregator: Any TFF aggregation factory for the updates of the global
      weights (mean, clipped, private, secure, compressed, robust). By default
      the weighted mean. Moving statistics of batch normalization go through it
      with the weights. A client that is left out contributes a zero update of
      weight 0; to an unweighted factory (as the private ones are) the zero
      update of one more client.
    server_optimizer: Applied to the aggregated update as its gradient. By
      default SGD with learning rate 1: the new global weights are the mean of
      the clients'. Moving statistics are always averaged.
    client_weighting: 'num_examples', 'uniform' or, by default, the method's
      own.
    stateless: Whether clients forget their local state after each round and
      start the next from the initial one, as a deployment demands that cannot
      tell its clients apart. Whoever is scored then fits its local state first.
    personalization: How clients' models are made before they are scored.
    seed: The experiment's seed, any int64.
    hparams: The algorithm's hyperparameters (a dataclass), for the record.

  Returns:
    The process.

  Raises:
    TypeError: If `aggregator` is not an aggregation factory, `server_optimizer`
      not an optimizer of TFF or `personalization` not a `Personalization`.
    ValueError: If an argument is out of its range.
  """
  if client_weighting is None:
    client_weighting = work.default_weighting
  errors.expect(
    client_weighting in CLIENT_WEIGHTINGS,
    'client_weighting',
    f'one of {", ".join(CLIENT_WEIGHTINGS)}',
    client_weighting,
  )
  errors.expect(-(2**63) <= seed < 2**63, 'seed', 'a 64-bit integer', seed)
  if aggregator is None:
    aggregator = tff.aggregators.MeanFactory(no_nan_division=True)
  if server_optimizer is None:
    server_optimizer = tff.learning.optimizers.build_sgdm(1.0)
  if personalization is None:
    personalization = personalization_lib.Personalization()
  errors.expect_type(
    server_optimizer,
    tff.learning.optimizers.Optimizer,
    'server_optimizer',
    'one of tff.learning.optimizers',
  )
  errors.expect_type(
    personalization,
    personalization_lib.Personalization,
    'personalization',
    'a Personalization',
  )
  personalization = personalization.resolved(work.adaptation)
  if stateless:
    work = work.without_state(name)

  initial_global = work.initial_global
  statistics = model.statistics if work.statistics is None else work.statistics
  trained_names = tuple(n for n in initial_global if n not in statistics)
  optimizer_specs = collections.OrderedDict(
    (n, tf.TensorSpec(initial_global[n].shape, initial_global[n].dtype))
    for n in trained_names
  )
  client_state_type = tff.to_type(
    personalized_process.ClientState(
      np.int64, np.int32, _type_of(work.initial_kept)
    )
  )
  examples_of = example_tensors.build_examples_of(model.element_spec)
  data_type = examples_of.type_signature.parameter

  @tff.tensorflow.computation
  def initial_server_parts():
    optimizer_state = tf.nest.map_structure(
      tf.convert_to_tensor, server_optimizer.initialize(optimizer_specs)
    )
    return (
      tf.constant(0, tf.int32),
      tf.constant(seed, tf.int64),
      tf.nest.map_structure(tf.constant, initial_global),
      optimizer_state,
      tf.nest.map_structure(tf.constant, work.initial_algorithm),
    )

  parts_type = initial_server_parts.type_signature.result
  broadcast_type = tff.to_type(
    client_work.Broadcast(
      parts_type[0], parts_type[1], parts_type[2], parts_type[4]
    )
  )

  def weigh(report, examples, accepted, weighting=None):
    """A client's report, as it is averaged, and its weight in the mean."""
    is_uniform = (weighting or client_weighting) == 'uniform'
    num_examples = tf.cast(examples.num_examples, tf.float32)
    if work.report_scale is not None:
      scale = work.report_scale
      if aggregators.is_weighted(aggregator) and not is_uniform:
        scale = tf.maximum(num_examples, 1.0)
      report = tf.nest.map_structure(
        lambda value: value / tf.cast(scale, value.dtype), report
      )
    return report, tf.where(accepted, 1.0 if is_uniform else num_examples, 0.0)

  client_types = {
    'broadcast_type': broadcast_type,
    'client_state_type': client_state_type,
    'examples_type': examples_of.type_signature.result,
  }
  exchange = None
  if work.preparation is not None:
    exchange = preparation.build_exchange(
      model, work, aggregator, weigh, **client_types
    )
  client_update = _build_client_update(
    model, work, weigh, **client_types, exchange=exchange
  )
  update_type = client_update.type_signature.result.update
  aggregation = aggregators.create(aggregator, update_type)

  def initial_aggregator_state():
    if exchange is None:
      return aggregation.process.initialize()
    return tff.federated_zip(
      preparation.Both(
        exchange.aggregation.process.initialize(),
        aggregation.process.initialize(),
      )
    )

  @tff.federated_computation
  def initialize():
    parts = tff.federated_eval(initial_server_parts, tff.SERVER)
    return tff.federated_zip(
      personalized_process.ServerState(
        round_number=parts[0],
        seed=parts[1],
        global_weights=parts[2],
        aggregator=initial_aggregator_state(),
        server_optimizer=parts[3],
        algorithm=parts[4],
      )
    )

  server_state_type = initialize.type_signature.result.member

  @tff.tensorflow.computation(server_state_type)
  def broadcast_of(state):
    return client_work.Broadcast.of(state)

  if exchange is not None:

    @tff.tensorflow.computation(
      server_state_type, exchange.server_step.type_signature.result
    )
    def with_changes(state, changes):
      return preparation.Changes(*changes).apply(state)

  measurements_type = aggregation.measurements_type
  if exchange is not None:
    measurements_type = tff.to_type(
      preparation.Both(
        exchange.aggregation.measurements_type, measurements_type
      )
    )
  server_step = _build_server_step(
    work,
    server_optimizer,
    trained_names,
    server_state_type,
    aggregation.result_type,
    server_state_type.aggregator,
    measurements_type,
    client_update.type_signature.result.sums,
  )

  def run_round(state, client_states_of, client_data):
    """A round's new server state, the clients' new states, and metrics."""
    at_server = tff.federated_map(broadcast_of, state)
    broadcast = tff.federated_broadcast(at_server)
    examples = tff.federated_map(examples_of, client_data)
    arguments = (broadcast, client_states_of(examples), examples)
    if exchange is None:
      output = tff.federated_map(client_update, arguments)
      aggregated = aggregation.next(
        state.aggregator, output.update, output.sums.weight
      )
      aggregator = aggregated.state, aggregated.measurements
    else:
      changes, kept, prepared = exchange.run(
        at_server, state.aggregator.preparation, arguments
      )
      output = tff.federated_map(
        client_update,
        (*arguments, tff.federated_broadcast(changes), kept),
      )
      aggregated = aggregation.next(
        state.aggregator.training, output.update, output.sums.weight
      )
      aggregator = (
        tff.federated_zip(preparation.Both(prepared.state, aggregated.state)),
        tff.federated_zip(
          preparation.Both(prepared.measurements, aggregated.measurements)
        ),
      )
      state = tff.federated_map(with_changes, (state, changes))
    stepped = tff.federated_map(
      server_step,
      (state, aggregated.result, *aggregator, tff.federated_sum(output.sums)),
    )
    return stepped[0], output.client_state, stepped[1]

  @tff.federated_computation(
    tff.FederatedType(server_state_type, tff.SERVER),
    tff.FederatedType(client_state_type, tff.CLIENTS),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, client_states, client_data):
    return personalized_process.PersonalizedOutput(
      *run_round(state, lambda unused_examples: client_states, client_data)
    )

  def to_learning_process():
    errors.expect(
      not tf.nest.flatten(work.initial_kept),
      'stateless',
      f'given when {name} is built, as its clients keep local state, which a '
      "LearningProcess of TFF's has no place for",
      stateless,
    )
    return learning_process.build_learning_process(
      model,
      work,
      initialize,
      run_round,
      examples_of.type_signature.result,
      data_type,
    )

  models = personal_models.build_personal_models(
    model,
    work,
    personalization,
    broadcast_of=broadcast_of,
    examples_of=examples_of,
    client_state_type=client_state_type,
  )
  return personalized_process.PersonalizedProcess(
    name=name,
    model=model,
    initialize=initialize,
    next_fn=next_fn,
    **models._asdict(),
    has_global_model=work.global_model is not None,
    has_local_weights=work.fit_new_client is not None,
    adapts_known_clients=(
      personalization.fine_tune != 'none'
      or work.fit_new_client is not None
      and not work.keeps_local
    ),
    bytes_per_round=_bytes_per_round(broadcast_type, update_type, exchange),
    adaptation=work.adaptation,
    to_learning_process=to_learning_process,
    seed=seed,
    description={
      'hparams': dataclasses.asdict(hparams) if hparams is not None else {},
      'client_weighting': client_weighting,
      **({'stateless': True} if stateless else {}),
      'personalization': dataclasses.asdict(personalization),
      'aggregator': type(aggregator).__name__,
      'server_optimizer': {
        'name': type(server_optimizer).__name__,
        **_hparams_of(server_optimizer, optimizer_specs),
      },
    },
  )
