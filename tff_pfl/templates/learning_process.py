"""A method without client state as TFF's own `LearningProcess`.

Such a process takes the server's state and the clients' data, nothing else, so
it runs where clients cannot be told apart: under `tff.learning.programs`, and
in production systems, for which it compiles to `MapReduceForm` and
`DistributeAggregateForm`.

A client has no number there. What its number seeds otherwise (the order of its
examples, dropout) is seeded by a fingerprint of its examples.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.models import randomness, split_model
from tff_pfl.templates import client_work, personalized_process, tff_model


def build_learning_process(
  model: split_model.SplitModel,
  work: client_work.ClientWork,
  initialize: tff.Computation,
  run_round: Callable[..., Any],
  examples_type: tff.Type,
  data_type: tff.Type,
) -> tff.learning.templates.LearningProcess:
  """Builds the process.

  Args:
    model: The model.
    work: The algorithm, whose clients keep no local state.
    initialize: The server's state before the first round.
    run_round: `(state, client_states_of, data) -> (state, client states,
      metrics)`, in a federated computation; `client_states_of` maps the
      clients' examples to their states.
    examples_type: Of `ExampleTensors`.
    data_type: Of a client's data.

  Returns:
    The process. Its metrics are those of rounds, grouped as TFF's own
    algorithms do. Its model weights are those of the model that a client gets
    that brings no data, as `tff.learning.models.ModelWeights`, in the order of
    `tff_model.model_weights`. They can be set where the global weights are
    among them; others (FedBABU's frozen head) stay.
  """
  state_type = initialize.type_signature.result.member

  @tff.tensorflow.computation(examples_type)
  def anonymous_state(examples):
    return personalized_process.ClientState(
      client_index=randomness.fingerprint(examples),
      num_rounds=tf.constant(0, tf.int32),
      local=collections.OrderedDict(),
    )

  @tff.tensorflow.computation
  def grouped(metrics):
    """The metrics where `tff.learning.programs` look for them."""
    of_clients = collections.OrderedDict(metrics)
    update_norm = of_clients.pop('update_norm')
    aggregator = of_clients.pop('aggregator', ())
    return collections.OrderedDict(
      client_work=collections.OrderedDict(train=of_clients),
      aggregator=aggregator,
      finalizer=collections.OrderedDict(update_norm=update_norm),
    )

  @tff.federated_computation(
    tff.FederatedType(state_type, tff.SERVER),
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, client_data):
    new_state, _, metrics = run_round(
      state,
      lambda examples: tff.federated_map(anonymous_state, examples),
      client_data,
    )
    return tff.learning.templates.LearningProcessOutput(
      new_state, tff.federated_map(grouped, metrics)
    )

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return tff_model.model_weights(
      model, work.model_without_data(client_work.Broadcast.of(state))
    )

  weights_type = get_model_weights.type_signature.result

  sets_global_weights = set(work.initial_global) <= set(model.initial_weights)

  @tff.tensorflow.computation(state_type, weights_type)
  def set_model_weights(state, weights):
    given = tff_model.named_weights(model, weights)
    if sets_global_weights:
      new = split_model.select(given, state.global_weights)
    else:
      refusal = tf.debugging.Assert(
        False,
        ['The weights of one model are not the global weights of this method.'],
      )
      with tf.control_dependencies([refusal]):
        new = tf.nest.map_structure(tf.identity, state.global_weights)
    return state._replace(global_weights=new)

  return tff.learning.templates.LearningProcess(
    initialize, next_fn, get_model_weights, set_model_weights
  )
