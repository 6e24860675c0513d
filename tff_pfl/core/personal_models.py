"""Personal models and their scores.

Both are computed from the server's state or, mapped over clients, from its
broadcast.
"""

import collections
import dataclasses
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.core import client as client_lib
from tff_pfl.core import (
  client_work,
  objectives,
  personalization,
  personalized_process,
  scoring,
  vectorization,
)
from tff_pfl.core import options as options_lib
from tff_pfl.models import randomness


class PersonalModels(NamedTuple):
  """Computations of `PersonalizedProcess` about personal models."""

  personalize: tff.Computation
  model_without_data: tff.Computation
  evaluate: tff.Computation
  evaluate_clients: tff.Computation


def build_personal_models(
  work: client_work.ClientWork,
  options: options_lib.ProcessOptions,
  broadcast_of: tff.Computation,
  types: client_work.ClientTypes,
) -> PersonalModels:
  """Builds the computations for a method."""
  model = work.model
  personalization_options = options.personalization.resolved(work.adaptation)
  server_state_type = broadcast_of.type_signature.parameter
  broadcast_type, client_state_type, examples_type = types

  personalize_broadcast = _build_personalize(
    work, personalization_options, options.training, types
  )

  @tff.tensorflow.computation(
    server_state_type, client_state_type, examples_type
  )
  def personalize(state, client_state, train):
    return personalize_broadcast(broadcast_of(state), client_state, train)

  @tff.tensorflow.computation(server_state_type)
  def model_without_data(state):
    return work.model_without_data(client_lib.Broadcast.of(state))

  @tff.tensorflow.computation(
    broadcast_type, client_state_type, examples_type, examples_type
  )
  def evaluate_broadcast(broadcast, client_state, train, test):
    before = scoring.score(model, work.model_without_data(broadcast), test)
    after = before
    if work.fit_new_client is not None or (
      personalization_options.fine_tune != 'none'
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


def _build_personalize(work, options, training, types):
  """`(<broadcast, C, E> -> PersonalModel)`."""
  if options.fine_tune == 'trained':
    untuned = _build_personalize(
      work, dataclasses.replace(options, fine_tune='none'), training, types
    )

    @tff.tensorflow.computation(*types)
    def personalize_trained(broadcast, client_state, examples):
      trained = work.trained(broadcast, client_state, examples, training)
      personal = untuned(*trained, examples)
      return personalized_process.PersonalModel(personal.weights, client_state)

    return personalize_trained

  @tff.tensorflow.computation(*types)
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
      return work.fit_new_client(client, options.new_client_epochs)

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
    weights = personalization.fine_tune(
      work.model,
      work.personal_weights(broadcast, local),
      examples,
      options,
      randomness.fold_in(seed_value, 1),
    )
    return personalized_process.PersonalModel(weights, client_state)

  return personalize_broadcast
