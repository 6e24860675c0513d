"""A client's and the server's part of a round, the same wherever it runs.

server                               client i of n
------                               -------------
broadcast(shared, seed, round) ----> model = shared and local parts
                                     model <- client_update(model, samples)
shared <- server_update(mean)  <---- shared parts; keep the local ones
"""

from __future__ import annotations

import collections
from typing import Any, Callable, NamedTuple, Tuple

import tensorflow as tf

from tff_pfl.client import randomness
from tff_pfl.linear import methods
from tff_pfl.linear import model as model_lib
from tff_pfl.linear import problem as problem_lib


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
    shared: The shared parts of its model, to be averaged.
    loss: float64, of the model it started from, on its samples.
  """

  client_state: Any
  shared: Any
  loss: Any


def select(model: model_lib.LinearModel, names: Tuple[str, ...]) -> Any:
  """Parts of a model by name."""
  return collections.OrderedDict((n, getattr(model, n)) for n in names)


def initial_states(
  method: methods.LinearMethod,
  initial: model_lib.LinearModel,
  seed: Any,
  client_index: Any,
) -> Tuple[ServerState, ClientState]:
  """The states before the first round, of the server and of one client."""
  as_tensor = tf.convert_to_tensor
  shared, local = tf.nest.map_structure(
    as_tensor,
    (select(initial, method.shared_names), select(initial, method.local_names)),
  )
  return (
    ServerState(tf.constant(0, tf.int32), tf.constant(seed, tf.int64), shared),
    ClientState(tf.cast(client_index, tf.int64), local),
  )


def client_round(
  method: methods.LinearMethod,
) -> Callable[..., ClientOutput]:
  """`(server state, client state, samples of one client) -> ClientOutput`."""

  def run(server_state, client_state, samples):
    samples = problem_lib.LinearSamples(*samples)
    model = model_of(server_state, client_state)
    seed = randomness.client_seed(
      server_state.seed,
      server_state.round_number,
      client_state.client_index,
      randomness.TRAINING,
    )
    updated = method.client_update(model, samples, seed)
    return ClientOutput(
      client_state=client_state._replace(
        local=select(updated, method.local_names)
      ),
      shared=select(updated, method.shared_names),
      loss=model_lib.loss(model, samples),
    )

  return run


def server_round(method: methods.LinearMethod) -> Callable[..., ServerState]:
  """`(server state, uniform mean of the shared parts) -> server state`."""

  def run(server_state, mean):
    return server_state._replace(
      round_number=server_state.round_number + 1,
      shared=collections.OrderedDict(method.server_update(mean)),
    )

  return run


def model_of(
  server_state: ServerState, client_state: ClientState
) -> model_lib.LinearModel:
  """A client's whole model."""
  return model_lib.LinearModel(**server_state.shared, **client_state.local)
