"""Runs a linear method on one machine, with all clients as one program.

for each phase of a round (most methods have one):

server                                client i of n
------                                -------------
broadcast(shared, seed, round) ---->  model = shared and local parts
                                      message, local <-
                                        client_work(model, samples)
shared <- server_work(shared, mean)
                               <----  message; keep the local parts

Clients are a batch dimension (`tf.vectorized_map`). This is not the round of
`templates.federated_round`: that one has a network in float32, and a server
that takes an optimizer's step. Here the server factorizes the mean, in float64,
and the theory is checked over thousands of rounds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from binaries.papers.linear import domain_problem, methods
from binaries.papers.linear import model as model_lib
from tff_pfl import errors
from tff_pfl.evaluation import representation as representation_lib
from tff_pfl.models import randomness


@dataclasses.dataclass(frozen=True)
class History:
  """What a run did, in series of S states, the initial one first.

  Attributes:
    rounds: int64 `[S]`, the rounds done at each state.
    distance: float64 `[S]`, the principal angle distance between the
      representation and the ground truth, in [0, 1]. Where clients, or domains,
      have representations of their own, the mean over them.
    gradient_norm: float64 `[S]`, the norm of the gradient of the global loss
      with respect to all parts of the model, those that clients keep included.
      The global loss is the mean over clients of f_i at the shared parts and
      the client's own. All samples weigh the same, also for a method that gives
      domains weights.
    model: After the last round, as NumPy arrays: a part that clients keep has a
      first axis of n clients, one that domains have a first axis of M domains.
    client_models: Both parts as each client has them after the last round, with
      a first axis of n clients.
  """

  rounds: np.ndarray
  distance: np.ndarray
  gradient_norm: np.ndarray
  model: model_lib.LinearModel
  client_models: model_lib.LinearModel


class _State(NamedTuple):
  """What there is between two rounds.

  Attributes:
    round_number: int32, rounds done.
    shared: The shared parts of the model by name; empty for some methods.
    local: The parts that clients keep by name, each with a first axis of n.
  """

  round_number: Any
  shared: Any
  local: Any


def run(
  method: methods.LinearMethod,
  problem: domain_problem.Problem,
  num_rounds: int,
  *,
  initial: model_lib.LinearModel,
  seed: int = 0,
  rounds_per_record: int = 1,
) -> History:
  """Runs a method with all clients in each round.

  Args:
    problem: What the clients compute with.
    num_rounds: T, at least 0.
    initial: The first model, without domains; clients that keep a part all
      start from its, as do domains.
    seed: Fixes the method's own randomness; non-negative.
    rounds_per_record: A state is recorded after each so many rounds: a divisor
      of `num_rounds`.

  Raises:
    ValueError: If the records do not fit the rounds.
    RunError: If the iterates diverge.
  """
  rounds = np.arange(0, num_rounds + 1, rounds_per_record)
  errors.expect(
    rounds[-1] == num_rounds,
    'rounds_per_record',
    f'a divisor of `num_rounds` = {num_rounds}',
    rounds_per_record,
  )
  state = _initial_state(method, problem, initial)
  samples = problem.samples()
  observe = _build_observe(method, samples, problem.num_clients)
  one_round = _build_round(method, samples, problem.num_clients, seed)

  @tf.function(autograph=False)
  def advance(state):
    (state,) = tf.while_loop(
      lambda _: True,
      lambda state: (one_round(state),),
      (state,),
      maximum_iterations=rounds_per_record,
      parallel_iterations=1,
    )
    return state, observe(state)

  # As the graphs that they are: TensorFlow takes a second run's functions for
  # the first run's and would warn of repeated tracing.
  observe_first = tf.function(observe, autograph=False).get_concrete_function(
    state
  )
  advance = advance.get_concrete_function(state)
  series = []
  observed = observe_first(state)
  for round_number in rounds:
    if round_number:
      state, observed = advance(state)
    representation, gradient_norm = observed
    if not np.isfinite(gradient_norm):
      raise errors.RunError(
        f'{method.name} diverged: its iterates are not finite after round '
        f'{round_number}. Choose a smaller step size.'
      )
    distance = _distance(representation, problem.representation)
    series.append((distance, float(gradient_norm)))
  parts = tf.nest.map_structure(
    lambda part: part.numpy(), {**state.shared, **state.local}
  )
  return History(
    rounds,
    *np.array(series).T,
    model=model_lib.LinearModel(**parts),
    client_models=model_lib.LinearModel(
      **{
        name: part
        if name in method.local_names
        else np.broadcast_to(part, (problem.num_clients, *part.shape))
        for name, part in parts.items()
      }
    ),
  )


def _initial_state(method, problem, initial):
  def repeated(part, times):
    return tf.constant(np.stack([part] * times))

  shared = {
    name: repeated(part, problem.num_domains)
    if name in method.domain_names
    else tf.constant(part)
    for name, part in model_lib.select(initial, method.shared_names).items()
  }
  local = {
    name: repeated(part, problem.num_clients)
    for name, part in model_lib.select(initial, method.local_names).items()
  }
  return _State(tf.constant(0, tf.int32), shared, local)


def _map_clients(function, num_clients, local, samples):
  """`function(index, local parts, samples)` of every client, as one program.

  Inputs that all clients share are multiplied once for all of them.
  """
  return tf.vectorized_map(
    lambda args: function(*args),
    (tf.range(num_clients, dtype=tf.int64), local, samples),
    fallback_to_while_loop=False,
  )


def _build_observe(
  method: methods.LinearMethod, samples: Any, num_clients: int
) -> Callable[[_State], tuple[tf.Tensor, tf.Tensor]]:
  """What is recorded of a state: the representation, the gradient's norm."""

  def observe(state):
    def gradients_of_client(_, local, samples):
      model = model_lib.LinearModel(**state.shared, **local)
      return model_lib.gradients(model, samples)

    gradients = _map_clients(
      gradients_of_client, num_clients, state.local, samples
    )
    # The global loss is the mean of the clients'; a part that a client keeps
    # is in its own term only.
    slopes = [
      tf.reduce_mean(getattr(gradients, name), axis=0)
      for name in method.shared_names
    ] + [getattr(gradients, name) / num_clients for name in method.local_names]
    parts = {**state.shared, **state.local}
    return parts['representation'], tf.linalg.global_norm(slopes)

  return observe


def _build_round(
  method: methods.LinearMethod, samples: Any, num_clients: int, seed: int
) -> Callable[[_State], _State]:
  def work_of_client(client_work, state, index, local, samples):
    model = model_lib.LinearModel(**state.shared, **local)
    client_seed = randomness.client_seed(
      tf.constant(seed, tf.int64),
      state.round_number,
      index,
      randomness.TRAINING,
    )
    return client_work(model, samples, client_seed)

  def one_round(state):
    for phase in method.phases:
      messages, local = _map_clients(
        functools.partial(work_of_client, phase.client_work, state),
        num_clients,
        state.local,
        samples,
      )
      mean = tf.nest.map_structure(
        lambda value: tf.reduce_mean(value, axis=0), messages
      )
      state = state._replace(
        shared=phase.server_work(state.shared, mean), local=local
      )
    return state._replace(round_number=state.round_number + 1)

  return one_round


def _distance(representations, ground_truth):
  """The mean distance of one or more representations."""
  shape = representations.shape
  return np.mean(
    [
      _principal_angle_distance(representation, ground_truth)
      for representation in np.reshape(representations, (-1, *shape[-2:]))
    ]
  )


def _principal_angle_distance(representation, ground_truth):
  if np.linalg.matrix_rank(representation) < representation.shape[1]:
    # A space of fewer dimensions misses a direction of the ground truth.
    return 1.0
  return representation_lib.principal_angle_distance(
    representation, ground_truth
  )
