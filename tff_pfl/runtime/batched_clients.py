"""Clients side by side in one program.

On a GPU one small model does not keep the device busy. Clients whose arguments
have the same shapes (their examples are padded to one bucket) run as one
program: `tf.vectorized_map` of the client's function, compiled by XLA where the
function asks for that. What all clients share, such as the broadcast weights,
is not copied.

Each client computes what it would alone, up to the rounding of a different
order of additions.
"""

import collections
import contextlib
import functools
import logging as python_logging
import re
import threading
from collections.abc import Iterator
from collections.abc import Sequence as ListOrTuple
from typing import Any, Optional

import tensorflow as tf
from absl import logging

from tff_pfl.runtime import (
  cancellation,
  client_mapper,
  graph_functions,
  graph_programs,
  values,
)
from tff_pfl.runtime.private_api import function_def_to_graph

_MAX_CLIENTS = 64  # In one program.
# Programs kept for other functions and shapes than the newest.
_MAX_PROGRAMS = 64
_MAX_REASON_CHARACTERS = 300
_ERROR_LINE = re.compile(r'\s*\w*(Error|Exception): ')


class BatchedMapper(client_mapper.ClientMapper):
  """Runs clients of equal shapes as one program, the others one by one."""

  def __init__(self, devices: ListOrTuple[Optional[str]]):
    """Prepares the mapper.

    What cannot be batched runs as in `ClientMapper`: functions of data sets,
    single clients, and models that do not vectorize, about which a warning is
    logged.

    Args:
      devices: As for `ClientMapper`.
    """
    super().__init__(devices)
    self._lock = threading.Lock()
    # From a function's hash and which of its arguments are shared to its
    # program, or to None if there cannot be one.
    self._programs = collections.OrderedDict()

  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> list[values.LocalValue]:
    """Returns the function's result for each client; see `ClientMapper`."""
    if argument is None or num_clients < 2 or not function.is_tensor_function:
      if function.program().has_resources:
        logging.log_first_n(
          logging.WARNING,
          'Clients whose function has variables, as those of Keras models in '
          'tff.learning, run one by one on each device.',
          1,
        )
      return super().map(function, argument, num_clients)
    is_shared = _is_shared(argument)
    if all(is_shared):
      # Nothing to stack; such clients draw random numbers, for example.
      return super().map(function, argument, num_clients)
    rows = values.rows(argument, num_clients)
    tensors = list(map(values.flatten, rows))
    chunks = self._chunks(tensors)
    program = self._program(
      function, is_shared, [tensors[i] for i in max(chunks, key=len)]
    )
    if program is None:
      return super().map(function, argument, num_clients)

    def compute(clients):
      if len(clients) == 1:
        return [function(rows[clients[0]])]
      stacked, size = _stack([tensors[i] for i in clients], is_shared)
      try:
        outputs = program(*stacked)
      except tf.errors.OpError as e:
        if not (
          graph_programs.xla_refuses(e)
          or isinstance(e, tf.errors.ResourceExhaustedError)
        ):
          raise
        _warn(e)
        return [function(rows[client]) for client in clients]
      results = zip(*(tf.unstack(output, size) for output in outputs))
      return [function.pack(row) for _, row in zip(clients, results)]

    results = [None] * num_clients
    tasks = [functools.partial(compute, clients) for clients in chunks]
    for clients, computed in zip(chunks, self.run_all(tasks)):
      for client, result in zip(clients, computed):
        results[client] = result
    return results

  def close(self) -> None:
    """Drops the programs and ends the threads."""
    self._programs.clear()
    super().close()

  def _chunks(self, tensors):
    """Returns lists of clients of equal shapes, one or more for each device."""
    groups = {}
    for client, row in enumerate(tensors):
      shapes = tuple(tuple(tensor.shape) for tensor in row)
      groups.setdefault(shapes, []).append(client)
    chunks = []
    for clients in groups.values():
      share = -(-len(clients) // self.num_threads)
      size = min(_MAX_CLIENTS, share)
      chunks.extend(
        clients[begin : begin + size] for begin in range(0, len(clients), size)
      )
    return chunks

  def _program(self, function, is_shared, tensors):
    """Returns the batched function; None if there cannot be one."""
    key = (function.content_hash, is_shared)
    with self._lock:
      if key not in self._programs:
        if len(tensors) < 2:
          return None  # Nothing to try it with.
        self._programs[key] = _build(function, is_shared, tensors)
        while len(self._programs) > _MAX_PROGRAMS:
          self._programs.popitem(last=False)
      self._programs.move_to_end(key)
      return self._programs[key]


def _build(
  function: graph_functions.LocalFunction,
  is_shared: ListOrTuple[bool],
  tensors: ListOrTuple[ListOrTuple[tf.Tensor]],
) -> Optional[Any]:
  """Returns the batched function; None if it does not work.

  It is from flat tensors, those that differ between clients stacked, to flat
  results, all stacked.

  Args:
    function: What one client computes.
    is_shared: For each of the function's flat arguments, whether all clients
      have the same.
    tensors: The flat arguments of clients to try it with.
  """
  function = function.together
  concrete = _with_graphs(function.program().concrete)

  def batched(*flat):
    def client(own):
      own = iter(own)
      return concrete(
        *(
          tensor if shared else next(own)
          for tensor, shared in zip(flat, is_shared)
        )
      )

    own = [tensor for tensor, shared in zip(flat, is_shared) if not shared]
    return tf.vectorized_map(client, own, fallback_to_while_loop=False)

  program = tf.function(
    batched,
    autograph=False,
    jit_compile=True if function.program().asks_for_xla else None,
  )
  try:
    # An error cancels all that its scope's calls could go on with.
    with _no_conversion_log(), cancellation.Cancellation().scope():
      # Tracing tells whether it vectorizes, the call whether XLA takes it.
      program(*_stack(tensors, is_shared)[0])
  except (ValueError, TypeError, NotImplementedError) as e:
    _warn(e)
    return None
  except tf.errors.OpError as e:
    if graph_programs.xla_refuses(e):
      _warn(e)
      return None
    # It is about these clients' values, and comes again in its place.
  return program


def _warn(error: BaseException) -> None:
  logging.warning(
    'Clients of this model cannot run as one program; they run one by one on '
    'each device: %s',
    _reason(error),
  )


def _is_shared(argument: values.ClientsValue) -> tuple[bool, ...]:
  """Returns for each of the tensors whether it is the same at all clients."""
  if isinstance(argument, values.Columns):
    return sum(map(_is_shared, argument.columns), ())
  is_shared = isinstance(argument, values.AllEqual)
  return (is_shared,) * len(values.flatten(argument.row(0)))


def _stack(
  tensors: ListOrTuple[ListOrTuple[tf.Tensor]], is_shared: ListOrTuple[bool]
) -> tuple[list[tf.Tensor], int]:
  """Returns a program's arguments and how many clients they have.

  That is the next power of two, so that few programs serve groups of any size;
  a missing client is the last one again.
  """
  size = 1 << (len(tensors) - 1).bit_length()
  rows = [*tensors, *[tensors[-1]] * (size - len(tensors))]
  stacked = [
    column[0] if shared else tf.stack(column)
    for column, shared in zip(zip(*rows), is_shared)
  ]
  return stacked, size


def _with_graphs(concrete: Any) -> Any:
  """Gives a function Python's graphs of all functions it calls; returns it.

  Those that a graph brings in its library have none, and TensorFlow vectorizes
  only what it has the graph of.
  """
  library = concrete.graph.as_graph_def().library.function
  with tf.init_scope():
    graphs = {
      definition.signature.name: function_def_to_graph(
        definition, include_library_functions=True
      )
      for definition in library
    }
  for graph in (concrete.graph, *graphs.values()):
    for name in graph._functions:
      graph._functions[name] = _FunctionWithGraph(name, graphs[name])
  return concrete


class _FunctionWithGraph:
  """What TensorFlow needs of a function to vectorize its calls."""

  def __init__(self, name: str, graph: Any):
    self.name = name
    self.graph = graph
    self.function_type = self
    self.flat_outputs = graph.outputs


def _reason(error: BaseException) -> str:
  """Returns the line that says what is wrong.

  TensorFlow's errors of tracing quote the user's code around it, and may fail
  in doing so.
  """
  while error.__context__ is not None:
    error = error.__context__
  lines = str(error).strip().splitlines() or [type(error).__name__]
  named = [line for line in lines if _ERROR_LINE.match(line)]
  return (named or lines)[0].strip()[:_MAX_REASON_CHARACTERS]


@contextlib.contextmanager
def _no_conversion_log() -> Iterator[None]:
  """Keeps TensorFlow from logging graphs that do not vectorize."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel(python_logging.CRITICAL)
  try:
    yield
  finally:
    logger.setLevel(level)
