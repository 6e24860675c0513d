"""A client's and the server's part of a round, the same wherever it runs.

for each phase of a round (most methods have one):

server                                client i of n
------                                -------------
broadcast(shared, seed, round) ---->  model = shared and local parts
                                      message, local <-
                                        client_work(model, samples)
shared <- server_work(shared, mean)
                               <----  message; keep the local parts
"""

from __future__ import annotations

import collections
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from binaries.papers.linear import methods
from binaries.papers.linear import model as model_lib
from tff_pfl.models import randomness


class ServerState(NamedTuple):
  """What the server holds and broadcasts.

  Attributes:
    round_number: int32, rounds done.
    seed: int64, the experiment's.
    shared: The shared parts of the model by name; empty for some methods.
  """

  round_number: Any
  seed: Any
  shared: Any


class ClientState(NamedTuple):
  """What a client keeps.

  Attributes:
    client_index: int64, from 0.
    local: The local parts of the model by name; empty for some methods.
  """

  client_index: Any
  local: Any


class ClientOutput(NamedTuple):
  """What a client's part of a round gives.

  Attributes:
    client_state: Its new state.
    message: What it sends, to be averaged.
    loss: float64, of the model it started from, on its samples.
  """

  client_state: Any
  message: Any
  loss: Any


def initial_states(
  method: methods.LinearMethod,
  initial: model_lib.LinearModel,
  seed: Any,
  client_index: Any,
  num_domains: int = 0,
) -> tuple[ServerState, ClientState]:
  """The states before the first round, of the server and of one client.

  Args:
    initial: A model without domains; where the method has a part for each
      domain, all of them start from its.
    seed: Fixes the method's own randomness.
    client_index: From 0.
    num_domains: M; 0 for samples without domains.
  """
  parts = {
    name: tf.stack([part] * num_domains)
    if name in method.domain_names
    else tf.convert_to_tensor(part)
    for name, part in initial._asdict().items()
  }
  shared, local = (
    model_lib.select(model_lib.LinearModel(**parts), names)
    for names in (method.shared_names, method.local_names)
  )
  return (
    ServerState(tf.constant(0, tf.int32), tf.constant(seed, tf.int64), shared),
    ClientState(tf.cast(client_index, tf.int64), local),
  )


def client_phase(phase: methods.Phase) -> Callable[..., ClientOutput]:
  """`(server state, client state, samples of one client) -> ClientOutput`."""

  def run(server_state, client_state, samples):
    model = model_of(server_state, client_state)
    seed = randomness.client_seed(
      server_state.seed,
      server_state.round_number,
      client_state.client_index,
      randomness.TRAINING,
    )
    contribution = phase.client_work(model, samples, seed)
    return ClientOutput(
      client_state=client_state._replace(local=contribution.local),
      message=contribution.message,
      loss=model_lib.loss(model, samples),
    )

  return run


def server_phase(
  method: methods.LinearMethod, phase: methods.Phase
) -> Callable[..., ServerState]:
  """`(server state, uniform mean of the messages) -> server state`."""
  ends_round = phase is method.phases[-1]

  def run(server_state, mean):
    shared = phase.server_work(server_state.shared, mean)
    return server_state._replace(
      round_number=server_state.round_number + int(ends_round),
      shared=collections.OrderedDict(
        (name, shared[name]) for name in method.shared_names
      ),
    )

  return run


def model_of(
  server_state: ServerState, client_state: ClientState
) -> model_lib.LinearModel:
  """A client's whole model."""
  return model_lib.LinearModel(**server_state.shared, **client_state.local)
