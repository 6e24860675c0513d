"""Runs a linear method on one machine, with all clients as one program.

Clients are a batch dimension (`tf.vectorized_map`), and the rounds a loop
inside one TensorFlow function. This is not the round of
`templates.federated_round`: that one has a network in float32, and a server
that takes an optimizer's step. Here the server factorizes the mean, in float64,
and the theory is checked over thousands of rounds.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from binaries.papers.linear import (
  domain_problem,
  initialization,
  methods,
  rounds,
)
from binaries.papers.linear import model as model_lib
from tff_pfl import errors

# For its rules: without them clients cannot draw batches as one program.
from tff_pfl.client import vectorization  # noqa: F401
from tff_pfl.evaluation import representation as representation_lib

# What a traced chunk of rounds may hold in representations.
_MAX_TRACE_BYTES = 2**26
_MAX_RECORDS_PER_CHUNK = 1000


@dataclasses.dataclass(frozen=True)
class History:
  """What a run did, in series of S states, the initial one first.

  Attributes:
    rounds: int64 `[S]`, the rounds done at each state. With a record of each
      round S is the number of rounds plus 1.
    distance: float64 `[S]`, the principal angle distance between the
      representation and the ground truth, in [0, 1]. Where clients, or domains,
      have representations of their own, the mean over them.
    gradient_norm: float64 `[S]`, the norm of the gradient of the global loss
      with respect to all parts of the model, those that clients keep included.
    loss: float64 `[S]`, the global loss: the mean over clients of f_i at the
      shared parts and the client's own. f_i is of the client's samples, or of
      its population where these change from round to round. All samples weigh
      the same, also for a method that gives domains weights.
    representation: float64 `[d, k]`, after the last round; `[n, d, k]` where
      clients have their own, and `[M, d, k]` where domains have.
    head: float64 `[k]`, or `[M, k]` with one for each domain: the global head
      after the last round, if there is one.
    client_heads: float64 `[n, k]`, the clients' heads after the last round, if
      they keep them.
    client_models: Both parts as each client has them after the last round, with
      a first axis of n clients.
  """

  rounds: np.ndarray
  distance: np.ndarray
  gradient_norm: np.ndarray
  loss: np.ndarray
  representation: np.ndarray
  head: Optional[np.ndarray]
  client_heads: Optional[np.ndarray]
  client_models: model_lib.LinearModel

  @property
  def model(self) -> model_lib.LinearModel:
    """The global model after the last round.

    Raises:
      ValueError: If the method has none.
    """
    errors.expect(
      self.head is not None,
      'model',
      'asked of a method with a global head',
      self.head,
    )
    return model_lib.LinearModel(self.representation, self.head)


class _Trace(NamedTuple):
  """Of each state: what is recorded."""

  representation: Any
  gradient_norm: Any
  loss: Any


def run(
  method: methods.LinearMethod,
  problem: domain_problem.Problem,
  num_rounds: int,
  *,
  initial: Optional[model_lib.LinearModel] = None,
  seed: int = 0,
  rounds_per_record: int = 1,
) -> History:
  """Runs a method with all clients in each round.

  Args:
    method: One of `methods.METHODS` or `domain_methods.DOMAIN_METHODS`.
    problem: What the clients compute with.
    num_rounds: T, at least 0.
    initial: The first model; clients that keep a head all start from its head,
      as do domains. By default a random orthonormal representation, drawn from
      `seed`, and a zero head.
    seed: Fixes the method's own randomness; non-negative.
    rounds_per_record: A state is recorded after each so many rounds: a divisor
      of `num_rounds`.

  Returns:
    The history.

  Raises:
    TypeError: If `method` is none, for instance only its name.
    ValueError: If the method cannot run on the problem.
    RunError: If the iterates diverge.
  """
  methods.check_method(method)
  errors.expect_int('num_rounds', num_rounds, 0)
  errors.expect_int('seed', seed, 0, 2**63 - 1)
  errors.expect_int('rounds_per_record', rounds_per_record, 1)
  errors.expect(
    num_rounds % rounds_per_record == 0,
    'rounds_per_record',
    f'a divisor of `num_rounds` = {num_rounds}',
    rounds_per_record,
  )
  method.check(problem.num_rows, problem.rank, problem.num_domains)
  initial = _initial_model(initial, problem, seed)
  states = _initial_states(method, initial, problem, seed)
  # As the graphs that they are: TensorFlow takes a second run's functions for
  # the first run's and would warn of repeated tracing.
  observe = _build_observe(method, problem).get_concrete_function(states)
  run_rounds = _build_run_rounds(
    method, problem, observe, rounds_per_record
  ).get_concrete_function(states, tf.TensorSpec([], tf.int32))
  recorded_rounds = np.arange(0, num_rounds + 1, rounds_per_record)
  records_per_chunk = _records_per_chunk(method, problem)
  chunks = []
  # The last state is observed after all rounds.
  for first in range(0, len(recorded_rounds) - 1, records_per_chunk):
    chunk_rounds = recorded_rounds[:-1][first : first + records_per_chunk]
    states, trace = run_rounds(states, tf.constant(len(chunk_rounds)))
    chunks.append(_summarize(method, problem, trace, chunk_rounds))
  last = tf.nest.map_structure(lambda v: v[tf.newaxis], observe(states))
  chunks.append(_summarize(method, problem, last, recorded_rounds[-1:]))
  series = np.concatenate(chunks, axis=1)
  return _history(method, problem, states, recorded_rounds, series)


def _history(method, problem, states, recorded_rounds, series):
  """The history of a run that ended with these states."""
  distance, gradient_norm, loss = series
  parts = {
    name: value.numpy()
    for state in (states[0].shared, states[1].local)
    for name, value in state.items()
  }
  has_global_head = 'head' in method.shared_names
  return History(
    rounds=recorded_rounds,
    distance=distance,
    gradient_norm=gradient_norm,
    loss=loss,
    representation=parts['representation'],
    head=parts['head'] if has_global_head else None,
    client_heads=None if has_global_head else parts['head'],
    client_models=model_lib.LinearModel(
      **{
        name: part
        if name in method.local_names
        else np.broadcast_to(part, (problem.num_clients, *part.shape))
        for name, part in parts.items()
      }
    ),
  )


def _initial_model(initial, problem, seed):
  if initial is None:
    initial = model_lib.LinearModel(
      initialization.random_representation(
        problem.dimension, problem.rank, seed
      ),
      np.zeros(problem.rank),
    )
  initial = model_lib.check_model(initial, 'initial')
  errors.expect(
    initial.representation.shape == problem.representation.shape,
    'initial.representation',
    f"of the ground truth's shape {problem.representation.shape}",
    initial.representation.shape,
  )
  return initial


def _initial_states(method, initial, problem, seed):
  """The server's state, and the clients' states stacked."""
  states = [
    rounds.initial_states(method, initial, seed, index, problem.num_domains)
    for index in range(problem.num_clients)
  ]
  clients = tf.nest.map_structure(
    lambda *values: tf.stack(values), *(client for _, client in states)
  )
  return states[0][0], clients


def _map_clients(function, problem, client_states, samples):
  """`function(client state, samples)` of every client, as one program."""
  if problem.is_population:
    # One design for all: a matrix product instead of one for each client.
    samples = samples._replace(x=samples.x[:1])
  return tf.vectorized_map(
    lambda args: function(*args),
    (client_states, samples),
    fallback_to_while_loop=False,
  )


def _mean_over_clients(structure):
  return tf.nest.map_structure(
    lambda value: tf.reduce_mean(value, axis=0), structure
  )


def _build_observe(method, problem):
  """`(states) -> _Trace` of one state."""
  objective_samples = problem.objective_samples()

  @tf.function(autograph=False)
  def observe(states):
    server_state, client_states = states

    def of_client(client_state, samples):
      model = rounds.model_of(server_state, client_state)
      return (
        model_lib.gradients(model, samples),
        model_lib.loss(model, samples),
      )

    gradients, losses = _map_clients(
      of_client, problem, client_states, objective_samples
    )
    # The global loss is the mean of the clients'; a part that a client keeps
    # is in its own term only.
    slopes = [
      tf.reduce_mean(getattr(gradients, name), axis=0)
      for name in method.shared_names
    ] + [
      getattr(gradients, name) / problem.num_clients
      for name in method.local_names
    ]
    parts = {**server_state.shared, **client_states.local}
    return _Trace(
      parts['representation'],
      tf.linalg.global_norm(slopes),
      tf.reduce_mean(losses),
    )

  return observe


def _build_run_rounds(method, problem, observe, rounds_per_record):
  """`(states, number of records) -> (states, _Trace of those before)`."""
  phases = [
    (rounds.client_phase(phase), rounds.server_phase(method, phase))
    for phase in method.phases
  ]
  # Otherwise drawn in each round.
  fixed_samples = None if problem.fresh_samples else problem.samples()

  def one_round(states):
    server_state, client_states = states
    samples = fixed_samples or problem.samples(server_state.round_number)
    for client_phase, server_phase in phases:
      output = _map_clients(
        functools.partial(client_phase, server_state),
        problem,
        client_states,
        samples,
      )
      mean = _mean_over_clients(output.message)
      server_state = server_phase(server_state, mean)
      client_states = output.client_state
    return server_state, client_states

  def rounds_of_record(states):
    if rounds_per_record == 1:
      return one_round(states)
    _, states = tf.while_loop(
      lambda index, _: index < rounds_per_record,
      lambda index, states: (index + 1, one_round(states)),
      (0, states),
      parallel_iterations=1,
    )
    return states

  @tf.function(autograph=False)
  def run_rounds(states, num_records):
    arrays = tf.nest.map_structure(
      lambda value: tf.TensorArray(
        value.dtype, size=num_records, element_shape=value.shape
      ),
      observe.structured_outputs,
    )

    def body(index, states, arrays):
      arrays = tf.nest.map_structure(
        lambda array, value: array.write(index, value), arrays, observe(states)
      )
      return index + 1, rounds_of_record(states), arrays

    _, states, arrays = tf.while_loop(
      lambda index, *_: index < num_records,
      body,
      (0, states, arrays),
      parallel_iterations=1,
    )
    return states, tf.nest.map_structure(lambda array: array.stack(), arrays)

  return run_rounds


def _records_per_chunk(method, problem):
  """States whose representations are kept in memory at a time."""
  num_bytes = 8 * problem.dimension * problem.rank
  if 'representation' in method.local_names:
    num_bytes *= problem.num_clients
  if 'representation' in method.domain_names:
    num_bytes *= problem.num_domains
  return int(np.clip(_MAX_TRACE_BYTES // num_bytes, 1, _MAX_RECORDS_PER_CHUNK))


def _summarize(method, problem, trace, recorded_rounds):
  """float64 `[3, number of states]`: distance, gradient norm, loss."""
  trace = tf.nest.map_structure(lambda value: value.numpy(), trace)
  finite = np.isfinite(trace.loss) & np.isfinite(trace.gradient_norm)
  if not finite.all():
    raise errors.RunError(
      f'{method.name} diverged: its iterates are not finite after round '
      f'{recorded_rounds[np.argmin(finite)]}. Choose a smaller step size.'
    )
  shape = trace.representation.shape
  distance = [
    _distance(representation, problem.representation)
    for representation in trace.representation.reshape(-1, *shape[-2:])
  ]
  return np.stack(
    [
      np.reshape(distance, (shape[0], -1)).mean(axis=1),
      trace.gradient_norm,
      trace.loss,
    ]
  )


def _distance(representation, ground_truth):
  if np.linalg.matrix_rank(representation) < representation.shape[1]:
    # A space of fewer dimensions misses a direction of the ground truth.
    return 1.0
  return representation_lib.principal_angle_distance(
    representation, ground_truth
  )
