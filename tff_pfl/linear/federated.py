"""The linear methods as federated computations.

The clients' and the server's functions are those of `simulation`; the mean is
TFF's.

This is not the round of `templates.federated_round`: that one has a network in
float32, data sets that are read, and a server that takes an optimizer's step.
Here the server factorises the mean, in float64, and the same two functions must
also run thousands of rounds as one program, for which the theory is checked.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.linear import initialization, methods, rounds
from tff_pfl.linear import model as model_lib
from tff_pfl.linear import problem as problem_lib


class LinearOutput(NamedTuple):
  """What a round gives.

  Attributes:
    state: The server's state.
    client_states: The clients' states, in the order of the cohort.
    metrics: `loss`, the uniform mean of the clients' losses before the round.
  """

  state: Any
  client_states: Any
  metrics: Any


@dataclasses.dataclass(frozen=True)
class LinearProcess:
  """A linear method as federated computations.

  Attributes:
    initialize: `( -> S@SERVER)`.
    initialize_client_state: `(int64 client_index -> C)`, unplaced.
    next: `(<S@SERVER, {C}@CLIENTS, {<x=float64[m,d],y=float64[m]>}@CLIENTS> ->
      <state=S@SERVER, client_states={C}@CLIENTS, metrics=<loss>@SERVER>)`.
  """

  initialize: tff.Computation
  initialize_client_state: tff.Computation
  next: tff.Computation


def build_process(
  method: methods.LinearMethod,
  initial: model_lib.LinearModel,
  num_samples: int,
  *,
  num_domains: int = 0,
  seed: int = 0,
) -> LinearProcess:
  """Builds the federated computations of a method.

  Args:
    method: Of `methods.METHODS` or `domain_methods.DOMAIN_METHODS`.
    initial: The first model; clients that keep parts of it start from its, as
      do domains that have parts of their own.
    num_samples: Rows of each client's samples (`LinearProblem.num_rows`).
    num_domains: M; 0 for samples without domains.
    seed: Of the method's own randomness, non-negative.

  Returns:
    The process.

  Raises:
    TypeError: If `method` is none, for instance only its name.
    ValueError: If the method cannot run on so few samples, or not without
      domains.
  """
  methods.check_method(method)
  errors.expect_int('num_samples', num_samples, 1)
  errors.expect_int('seed', seed, 0, 2**63 - 1)
  errors.expect_int('num_domains', num_domains, 0)
  initial = model_lib.check_model(initial, 'initial')
  dimension, rank = initial.representation.shape
  method.check(num_samples, rank, num_domains)
  samples_type = initialization.samples_type_of(
    num_samples, dimension, domains=num_domains > 0
  )

  def initial_states(client_index):
    return rounds.initial_states(
      method, initial, seed, client_index, num_domains
    )

  @tff.tensorflow.computation
  def initial_server_state():
    return initial_states(0)[0]

  @tff.tensorflow.computation(np.int64)
  def initialize_client_state(client_index):
    return initial_states(client_index)[1]

  server_state_type = initial_server_state.type_signature.result
  client_state_type = initialize_client_state.type_signature.result
  phases = [
    _build_phase(
      method,
      phase,
      (server_state_type, client_state_type, samples_type),
      num_domains,
    )
    for phase in method.phases
  ]

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initial_server_state, tff.SERVER)

  @tff.federated_computation(
    tff.FederatedType(server_state_type, tff.SERVER),
    tff.FederatedType(client_state_type, tff.CLIENTS),
    tff.FederatedType(samples_type, tff.CLIENTS),
  )
  def next_fn(state, client_states, samples):
    losses = []
    for client_work, server_work in phases:
      output = tff.federated_map(
        client_work, (tff.federated_broadcast(state), client_states, samples)
      )
      mean = tff.federated_mean(output.message)
      state = tff.federated_map(server_work, (state, mean))
      client_states = output.client_state
      losses.append(output.loss)
    return LinearOutput(
      state=state,
      client_states=client_states,
      metrics=tff.federated_zip(
        collections.OrderedDict(loss=tff.federated_mean(losses[0]))
      ),
    )

  return LinearProcess(initialize, initialize_client_state, next_fn)


def _build_phase(method, phase, types, num_domains):
  """The computations of a phase's clients and of its server."""
  client_phase = rounds.client_phase(phase)
  server_phase = rounds.server_phase(method, phase)

  @tff.tensorflow.computation(*types)
  def client_work(server_state, client_state, samples):
    if num_domains:
      samples = _checked(problem_lib.as_samples(samples), num_domains)
    return client_phase(server_state, client_state, samples)

  @tff.tensorflow.computation(
    types[0], client_work.type_signature.result.message
  )
  def server_work(server_state, mean):
    return server_phase(server_state, mean)

  return client_work, server_work


def _checked(samples, num_domains):
  """The samples; reading them fails if a domain is out of range."""
  in_range = (samples.domain >= 0) & (samples.domain < num_domains)
  check = tf.debugging.Assert(
    tf.reduce_all(in_range),
    [
      f'Expected `domain` to be in [0, {num_domains - 1}], found',
      samples.domain,
    ],
  )
  with tf.control_dependencies([check]):
    return tf.nest.map_structure(tf.identity, samples)
