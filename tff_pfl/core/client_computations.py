"""The computations of clients: their part in a round, and personal models.

Each exchange of a round has one client computation, which also returns the
client's weight in the mean. A client without examples, or with a result that is
not finite, is left out of the exchange and the rest of the round. It still
counts in earlier exchanges. Personal models and their scores are computed from
the server's state or, mapped over clients, from its broadcast.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_pfl import errors
from tff_pfl import tff_api as tff
from tff_pfl.core import (
  aggregators,
  client_work,
  example_tensors,
  objectives,
  personalized_process,
  private_mean,
  process_options,
  scoring,
  vectorization,
)
from tff_pfl.core import client as client_lib
from tff_pfl.core import personalization as personalization_lib
from tff_pfl.models import domains, keras_purity, randomness, split_model


def types_of(
  work: client_work.ClientWork, state: personalized_process.ServerState
) -> client_work.ClientTypes:
  """The types of a client's arguments."""
  local = tf.nest.map_structure(
    lambda value: tf.TensorSpec(value.shape, value.dtype), work.initial_kept
  )
  return client_work.ClientTypes(
    broadcast=tff.to_type(work.broadcast_of(state)),
    client_state=tff.to_type(
      personalized_process.ClientState(
        np.int64, np.int32, tff.types.tensorflow_to_type(local)
      )
    ),
    examples=example_tensors.type_of(work.model.element_spec),
  )


def build(
  work: client_work.ClientWork,
  options: process_options.ProcessOptions,
  types: client_work.ClientTypes,
  algorithm_type: tff.Type,
) -> list[tff.Computation]:
  """Builds each exchange's `(<broadcast, C, E, ...> -> output)`.

  After the first exchange, a client also takes the server's update and its own
  `cache`. Only `sent` and `sums` of the output leave the client.

  Args:
    types: The result of `types_of`.
    algorithm_type: Type of the method's own server state.
  """
  frozen = _frozen_names(work)
  clients = []
  for exchange in work.exchanges:
    errors.expect(
      exchange.server is None
      or not frozen
      or not isinstance(options.aggregator, private_mean.PRIVATE_MEANS),
      'aggregator',
      'one without noise, which would move the frozen weights of the model',
      type(options.aggregator).__name__,
    )
    parameters = list(types)
    if clients:
      weights = types.broadcast.global_weights
      update = collections.OrderedDict(
        global_weights=collections.OrderedDict(
          (name, weights[name]) for name in exchange.receives
        ),
        algorithm=algorithm_type,
      )
      cache = clients[-1].type_signature.result.cache
      parameters += [tff.to_type(update), cache]
    function = _client_function(work, options, exchange, frozen)
    clients.append(tff.tensorflow.computation(function, tuple(parameters)))
  return clients


def _client_function(work, options, exchange, frozen):
  """A client's part in an exchange, as a function of tensors."""
  model = work.model
  is_last = exchange is work.exchanges[-1]
  weighting = exchange.weighting or options.client_weighting
  errors.expect_one_of('weighting', weighting, ('num_examples', 'uniform'))
  is_uniform = weighting == 'uniform'

  # Compiles all of the work, so that the operations after training are also one
  # pass over the weights.
  @tf.function(jit_compile=model.uses_xla, autograph=False)
  @keras_purity.eager_tensors_as_constants()
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
    client = work.client(
      exchange,
      broadcast,
      client_state,
      examples,
      options.training,
      () if cache is None else cache['method'],
    )
    result = exchange.client(client)
    is_finite = _all_finite(
      (result.update, result.report, result.local, result.cache)
    )
    if cache is not None:
      is_finite = tf.logical_and(is_finite, cache['is_finite'])
    accepted = tf.logical_and(is_finite, examples.num_examples > 0)
    num_examples = tf.cast(examples.num_examples, tf.float32)
    report, scale = result.report, work.report_scale
    if scale is not None:
      if aggregators.is_weighted(options.aggregator) and not is_uniform:
        scale = tf.maximum(num_examples, 1.0)
      report = tf.nest.map_structure(
        lambda value: value / tf.cast(scale, value.dtype), report
      )
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
    sent, metrics = _or_zeros(accepted, (sent, metrics))
    sent = options.attack.on_sent(sent, client_state.client_index)
    # Summed over the cohort. All but `num_non_finite` count accepted clients.
    sums = collections.OrderedDict(
      metrics=metrics,
      weight=tf.where(accepted, 1.0 if is_uniform else num_examples, 0.0),
      num_examples=tf.where(accepted, examples.num_examples, 0),
      num_clients=tf.cast(accepted, tf.int32),
      num_non_finite=tf.cast(tf.logical_not(is_finite), tf.int32),
    )
    if options.training_metrics == 'none':
      sums = tf.nest.map_structure(tf.zeros_like, sums)
      sums.update(weight=tf.constant(1.0), num_clients=tf.constant(1))
    new_state, cache = (), ()
    if is_last:
      new_state = _state_after(work, client_state, result.local, accepted)
    else:
      cache = collections.OrderedDict(is_finite=is_finite, method=result.cache)
    return collections.OrderedDict(
      sent=sent, sums=sums, cache=cache, client_state=new_state
    )

  # TFF passes a variable number of arguments only as one structure.
  return lambda arguments: work_at_client(*arguments)


def _state_after(work, client_state, local, is_counted):
  """A client's state after a round, unchanged if the client is not counted."""
  client_state = client_state._replace(
    num_rounds=client_state.num_rounds + tf.cast(is_counted, tf.int32)
  )
  if not work.keeps_local:
    return client_state
  return client_state._replace(
    # In the order of the state's names.
    local=tf.nest.map_structure(
      lambda old, new: tf.where(is_counted, new, old), client_state.local, local
    )
  )


def _frozen_names(work):
  """The names of the global weights that no training changes."""
  model = work.model
  if all(name.endswith(split_model.MOVING) for name in model.statistics):
    return ()
  x, _ = domains.join(domains.batched_spec(model.element_spec))
  moving = set()

  @tf.function(autograph=False)
  def step(x):
    number = tf.shape(tf.nest.flatten(x)[0])[0]
    mode = split_model.Mode(True, tf.constant([0, 0]), tf.ones([number]))
    moving.update(model.forward(model.initial_weights, x, mode)[1])

  step.get_concrete_function(x)
  frozen = model.statistics - moving

  def own_name(name):
    """The name in the model. Names of several models begin with the model's."""
    return name if name in model.initial_weights else name.partition('/')[2]

  return tuple(n for n in work.initial_global if own_name(n) in frozen)


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


def _or_zeros(condition, values):
  """A structure of values, or of zeros."""
  return tf.nest.map_structure(
    lambda value: tf.where(condition, value, tf.zeros_like(value)), values
  )


class PersonalModels(NamedTuple):
  """The computations of `PersonalizedProcess` for personal models."""

  personalize: tff.Computation
  model_without_data: tff.Computation
  evaluate: tff.Computation
  evaluate_clients: tff.Computation


def build_personal_models(
  work: client_work.ClientWork,
  options: process_options.ProcessOptions,
  broadcast_of: tff.Computation,
  types: client_work.ClientTypes,
) -> PersonalModels:
  """Builds the computations for a method."""
  model = work.model
  server_state_type = broadcast_of.type_signature.parameter
  broadcast_type, client_state_type, examples_type = types
  personalize_broadcast = _build_personalize(work, options, types)

  @tff.tensorflow.computation(
    server_state_type, client_state_type, examples_type
  )
  def personalize(state, client_state, train):
    return personalize_broadcast(broadcast_of(state), client_state, train)

  @tff.tensorflow.computation(server_state_type)
  @keras_purity.eager_tensors_as_constants()
  def model_without_data(state):
    return work.model_without_data(broadcast_of(state))

  @tff.tensorflow.computation(
    broadcast_type, client_state_type, examples_type, examples_type
  )
  @keras_purity.eager_tensors_as_constants()
  def evaluate_broadcast(broadcast, client_state, train, test):
    before = scoring.score(model, work.model_without_data(broadcast), test)
    after = before
    if work.fit_new_client is not None or (
      options.personalization.fine_tune != 'none'
    ):
      personal = personalize_broadcast(broadcast, client_state, train)
      after = scoring.score(model, personal.weights, test)
    return _scores(model, before, after, test)

  @tff.tensorflow.computation(
    server_state_type, client_state_type, examples_type, examples_type
  )
  def evaluate(state, client_state, train, test):
    return evaluate_broadcast(broadcast_of(state), client_state, train, test)

  @tff.federated_computation(
    tff.FederatedType(server_state_type, tff.SERVER),
    tff.FederatedType(client_state_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
    tff.FederatedType(examples_type, tff.CLIENTS),
  )
  def evaluate_clients(state, client_states, train, test):
    broadcast = tff.federated_broadcast(tff.federated_map(broadcast_of, state))
    return tff.federated_map(
      evaluate_broadcast, (broadcast, client_states, train, test)
    )

  return PersonalModels(
    personalize, model_without_data, evaluate, evaluate_clients
  )


def _scores(model, before, after, test):
  """The result of `PersonalizedProcess.evaluate`."""
  scores = collections.OrderedDict(
    before=objectives.means(before.sums),
    after=objectives.means(after.sums),
    examples=test.num_examples,
  )
  if model.domains is not None:
    sums = collections.OrderedDict(
      before=objectives.per_example(before.by_domain),
      after=objectives.per_example(after.by_domain),
    )
    counts = [by_domain.pop('examples') for by_domain in sums.values()]
    scores['domains'] = collections.OrderedDict(examples=counts[0], **sums)
  if model.client_metrics:
    scores['predictions'] = collections.OrderedDict(
      before=before.predictions, after=after.predictions, y=test.y
    )
  if not isinstance(before.class_1, tuple):
    scores['scores'] = collections.OrderedDict(
      before=before.class_1, after=after.class_1, y=test.y
    )
    if model.domains is not None:
      scores['scores']['domain'] = test.x['domain']
  return scores


def _build_personalize(work, options, types):
  """`(<broadcast, C, E> -> PersonalModel)`."""
  training, personalization = options.training, options.personalization
  if personalization.fine_tune == 'trained':
    untuned = _build_personalize(
      work, dataclasses.replace(options, fine_tune='none'), types
    )

    # Clients send updates of all global weights that change.
    (exchange,) = work.exchanges

    @tff.tensorflow.computation(*types)
    @keras_purity.eager_tensors_as_constants()
    def personalize_trained(broadcast, client_state, examples):
      result = exchange.client(
        work.client(exchange, broadcast, client_state, examples, training)
      )
      has_examples = examples.num_examples > 0
      weights = collections.OrderedDict(broadcast.global_weights)
      for name, update in result.update.items():
        moved = weights[name] - update
        weights[name] = tf.where(has_examples, moved, weights[name])
      personal = untuned(
        broadcast._replace(global_weights=weights),
        _state_after(work, client_state, result.local, has_examples),
        examples,
      )
      return personalized_process.PersonalModel(personal.weights, client_state)

    return personalize_trained

  @tff.tensorflow.computation(*types)
  @keras_purity.eager_tensors_as_constants()
  def personalize_broadcast(broadcast, client_state, examples):
    seed_value = broadcast.seed_of(client_state, randomness.PERSONALIZATION)
    local = work.local_of(client_state)

    def fitted(examples):
      client = client_lib.Client(
        work.model,
        broadcast,
        local,
        examples,
        randomness.fold_in(seed_value, 0),
        training=training,
      )
      return work.fit_new_client(client, personalization.new_client_epochs)

    if work.fit_new_client is not None and work.keeps_local:
      is_new = tf.equal(client_state.num_rounds, 0)

      def fitted_if_new():
        number = tf.where(is_new, examples.num_examples, 0)
        return tf.nest.map_structure(
          lambda new, old: tf.where(is_new, new, old),
          fitted(examples._replace(num_examples=number)),
          client_state.local,
        )

      # True for all clients that run as one program if any of them is new.
      any_is_new = vectorization.longest(tf.cast(is_new, tf.int32)) > 0
      local = tf.cond(any_is_new, fitted_if_new, lambda: client_state.local)
      client_state = client_state._replace(local=local)
    elif work.fit_new_client is not None:
      local = fitted(examples)
    weights = personalization_lib.fine_tune(
      work.model,
      work.personal_weights(broadcast, local),
      examples,
      personalization,
      randomness.fold_in(seed_value, 1),
    )
    return personalized_process.PersonalModel(weights, client_state)

  return personalize_broadcast
