"""Runs a linear method on one machine, with all clients as one program.

The clients' and the server's functions are those of the federated computations
in `federated`; here clients are a batch dimension (`tf.vectorized_map`), and
the rounds a loop inside one TensorFlow function.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_pfl import errors

# For its rules: without them clients cannot draw batches as one program.
from tff_pfl.client import vectorization  # noqa: F401
from tff_pfl.evaluation import representation as representation_lib
from tff_pfl.linear import initialization, methods, rounds
from tff_pfl.linear import model as model_lib
from tff_pfl.linear import problem as problem_lib

# What a traced chunk of rounds may hold in representations.
_MAX_TRACE_BYTES = 2**26
_MAX_ROUNDS_PER_CHUNK = 1000


@dataclasses.dataclass(frozen=True)
class History:
  """What a run of T rounds did; entry 0 of the series is the initial model.

  Attributes:
    distance: float64 `[T + 1]`, the principal angle distance between the
      representation and the ground truth, in [0, 1]. Where clients have
      representations of their own, the mean over clients.
    gradient_norm: float64 `[T + 1]`, the norm of the gradient of the global
      loss with respect to all parts of the model, those that clients keep
      included.
    loss: float64 `[T + 1]`, the global loss: the mean over clients of f_i at
      the shared parts and the client's own. f_i is of the client's samples, or
      of its population where these change from round to round.
    representation: float64 `[d, k]`, after the last round; `[n, d, k]` where
      clients have their own.
    head: float64 `[k]`, the global head after the last round, if there is one.
    client_heads: float64 `[n, k]`, the clients' heads after the last round, if
      they keep them.
  """

  distance: np.ndarray
  gradient_norm: np.ndarray
  loss: np.ndarray
  representation: np.ndarray
  head: Optional[np.ndarray]
  client_heads: Optional[np.ndarray]

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
  problem: problem_lib.LinearProblem,
  num_rounds: int,
  *,
  initial: Optional[model_lib.LinearModel] = None,
  seed: int = 0,
) -> History:
  """Runs a method with all clients in each round.

  Args:
    method: Of `methods.METHODS`.
    problem: What the clients compute with.
    num_rounds: T, at least 0.
    initial: The first model; clients that keep a head all start from its head.
      By default a random orthonormal representation, drawn from `seed`, and a
      zero head.
    seed: Of the method's own randomness, non-negative.

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
  method.check_samples(problem.num_rows, problem.rank)
  initial = _initial_model(initial, problem, seed)
  states = _initial_states(method, initial, problem.num_clients, seed)
  # As the graphs that they are: TensorFlow takes a second run's functions for
  # the first run's and would warn of repeated tracing.
  observe = _build_observe(method, problem).get_concrete_function(states)
  run_rounds = _build_run_rounds(
    method, problem, observe
  ).get_concrete_function(states, tf.TensorSpec([], tf.int32))
  rounds_per_chunk = _rounds_per_chunk(method, problem)
  chunks = []
  for first in range(0, num_rounds, rounds_per_chunk):
    chunk_size = min(rounds_per_chunk, num_rounds - first)
    states, trace = run_rounds(states, tf.constant(chunk_size))
    chunks.append(_summarize(method, problem, trace, first))
  last = tf.nest.map_structure(lambda v: v[tf.newaxis], observe(states))
  chunks.append(_summarize(method, problem, last, num_rounds))
  distance, gradient_norm, loss = np.concatenate(chunks, axis=1)
  parts = {
    name: value.numpy()
    for state in (states[0].shared, states[1].local)
    for name, value in state.items()
  }
  has_global_head = 'head' in method.shared_names
  return History(
    distance=distance,
    gradient_norm=gradient_norm,
    loss=loss,
    representation=parts['representation'],
    head=parts['head'] if has_global_head else None,
    client_heads=None if has_global_head else parts['head'],
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


def _initial_states(method, initial, num_clients, seed):
  """The server's state, and the clients' states stacked."""
  states = [
    rounds.initial_states(method, initial, seed, index)
    for index in range(num_clients)
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


def _build_run_rounds(method, problem, observe):
  """`(states, number of rounds) -> (states, _Trace of those before)`."""
  client_round = rounds.client_round(method)
  server_round = rounds.server_round(method)
  # Otherwise drawn in each round.
  fixed_samples = None if problem.fresh_samples else problem.samples()

  def one_round(states):
    server_state, client_states = states
    samples = fixed_samples or problem.samples(server_state.round_number)
    output = _map_clients(
      lambda client_state, samples: client_round(
        server_state, client_state, samples
      ),
      problem,
      client_states,
      samples,
    )
    mean = _mean_over_clients(output.shared)
    return server_round(server_state, mean), output.client_state

  @tf.function(autograph=False)
  def run_rounds(states, num_rounds):
    arrays = tf.nest.map_structure(
      lambda value: tf.TensorArray(
        value.dtype, size=num_rounds, element_shape=value.shape
      ),
      observe.structured_outputs,
    )

    def body(index, states, arrays):
      arrays = tf.nest.map_structure(
        lambda array, value: array.write(index, value), arrays, observe(states)
      )
      return index + 1, one_round(states), arrays

    _, states, arrays = tf.while_loop(
      lambda index, *_: index < num_rounds,
      body,
      (0, states, arrays),
      parallel_iterations=1,
    )
    return states, tf.nest.map_structure(lambda array: array.stack(), arrays)

  return run_rounds


def _rounds_per_chunk(method, problem):
  """Rounds whose representations are kept in memory at a time."""
  num_bytes = 8 * problem.dimension * problem.rank
  if 'representation' in method.local_names:
    num_bytes *= problem.num_clients
  return int(np.clip(_MAX_TRACE_BYTES // num_bytes, 1, _MAX_ROUNDS_PER_CHUNK))


def _summarize(method, problem, trace, first_round):
  """float64 `[3, number of states]`: distance, gradient norm, loss."""
  trace = tf.nest.map_structure(lambda value: value.numpy(), trace)
  finite = np.isfinite(trace.loss) & np.isfinite(trace.gradient_norm)
  if not finite.all():
    raise errors.RunError(
      f'{method.name} diverged: its iterates are not finite after round '
      f'{first_round + int(np.argmin(finite))}. Choose a smaller step size.'
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
