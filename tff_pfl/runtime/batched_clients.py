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
import logging as python_logging
import threading
from typing import Any, Iterator, List, NamedTuple, Optional
from typing import Sequence as ListOrTuple

import tensorflow as tf
from absl import logging

from tff_pfl import errors
from tff_pfl.runtime import client_mapper, graph_functions, values

# Programs kept for other functions and shapes than the newest.
_MAX_PROGRAMS = 64
_MAX_REASON_CHARACTERS = 300


class BatchedMapper(client_mapper.ClientMapper):
  """Runs clients of equal shapes as one program, the others one by one."""

  def __init__(
    self,
    one_by_one: client_mapper.ClientMapper,
    device: str,
    max_clients: int = 64,
  ):
    """Prepares the mapper.

    Args:
      one_by_one: Runs what cannot be batched: functions of data sets, single
        clients, and models that do not vectorize, of which a warning tells. It
        is closed with this mapper.
      device: Where the batches run, a name that `devices.resolve` gave.
      max_clients: The most clients in one program, at least 2.

    Raises:
      ValueError: If `max_clients` is out of range.
    """
    errors.expect(max_clients >= 2, 'max_clients', 'at least 2', max_clients)
    self._one_by_one = one_by_one
    self._device = device
    self._max_clients = max_clients
    self._lock = threading.Lock()
    # From a function's hash and its arguments' shapes to its program, or to
    # None if there cannot be one.
    self._programs = collections.OrderedDict()

  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> List[values.LocalValue]:
    """Returns the function's result for each client; see `ClientMapper`."""
    if argument is None or num_clients < 2 or not function.is_tensor_function:
      return self._one_by_one.map(function, argument, num_clients)
    columns = _flat_columns(argument, num_clients)
    results = [None] * num_clients
    for clients in _clients_of_equal_shapes(columns, num_clients):
      for begin in range(0, len(clients), self._max_clients):
        chunk = clients[begin : begin + self._max_clients]
        for client, result in zip(
          chunk, self._map_chunk(function, argument, columns, chunk)
        ):
          results[client] = result
    return results

  def close(self) -> None:
    """Drops the programs and closes the other mapper."""
    self._programs.clear()
    self._one_by_one.close()

  def _map_chunk(self, function, argument, columns, clients):
    """Returns the results of some clients whose arguments have equal shapes."""
    program = None
    if len(clients) > 1:
      program = self._program(function, columns, clients)
    if program is None:
      return self._one_by_one.map(
        function,
        values.PerClient([argument.row(client) for client in clients]),
        len(clients),
      )
    with tf.device(self._device):
      outputs = program.function(*_stack(columns, clients, program.size))
    per_client = zip(*(tf.unstack(o, program.size) for o in outputs))
    return [function.pack(flat) for flat, _ in zip(per_client, clients)]

  def _program(self, function, columns, clients):
    """Returns the program for these shapes; None if there cannot be one."""
    size = _padded_size(len(clients))
    key = (function.content_hash, size, _shapes(columns, clients[0]))
    with self._lock:
      if key not in self._programs:
        self._programs[key] = self._build(function, columns, clients, size)
        while len(self._programs) > _MAX_PROGRAMS:
          self._programs.popitem(last=False)
      self._programs.move_to_end(key)
      return self._programs[key]

  def _build(self, function, columns, clients, size):
    is_shared = [column.is_shared for column in columns]
    concrete = function.concrete

    def batched(*flat):
      def client(own):
        own = iter(own)
        return concrete(
          *(
            tensor if shared else next(own)
            for tensor, shared in zip(flat, is_shared)
          )
        )

      own = [t for t, shared in zip(flat, is_shared) if not shared]
      return tf.vectorized_map(client, own, fallback_to_while_loop=False)

    arguments = _stack(columns, clients, size)
    try:
      with tf.device(self._device), _no_conversion_log():
        compiled = tf.function(
          batched,
          autograph=False,
          jit_compile=True if function.asks_for_xla else None,
        )
        # Tracing tells whether it vectorizes, a call whether XLA takes it.
        compiled(*arguments)
    except (ValueError, TypeError, tf.errors.OpError, NotImplementedError) as e:
      reason = ' '.join(str(e).split())[:_MAX_REASON_CHARACTERS]
      logging.warning(
        'Clients of this model cannot run as one program and run one by one '
        'on each device: %s',
        reason,
      )
      return None
    return _Program(compiled, size)


class _Program(NamedTuple):
  """A batched function.

  Attributes:
    function: From flat tensors, those that differ between clients stacked, to
      flat results, all stacked.
    size: The number of clients it takes.
  """

  function: Any
  size: int


class _Column(NamedTuple):
  """One tensor of the argument at all clients.

  Attributes:
    tensors: For each client; only one for all if it is shared.
    is_shared: Whether it is the same at all clients.
  """

  tensors: ListOrTuple[tf.Tensor]
  is_shared: bool


def _flat_columns(
  argument: values.ClientsValue, num_clients: int
) -> List[_Column]:
  """Returns the columns of the tensors, in the order of a function's inputs."""
  if isinstance(argument, values.Columns):
    return [
      flat
      for column in argument.columns
      for flat in _flat_columns(column, num_clients)
    ]
  if isinstance(argument, values.AllEqual):
    return [
      _Column([tensor], True) for tensor in values.flatten(argument.value)
    ]
  rows = map(values.flatten, values.rows(argument, num_clients))
  return [_Column(tensors, False) for tensors in zip(*rows)]


def _shapes(columns: ListOrTuple[_Column], client: int) -> Any:
  """Returns a hashable description of a client's tensors."""
  return tuple(
    (
      column.is_shared,
      tuple(column.tensors[0 if column.is_shared else client].shape),
    )
    for column in columns
  )


def _clients_of_equal_shapes(
  columns: ListOrTuple[_Column], num_clients: int
) -> List[List[int]]:
  groups = collections.OrderedDict()
  for client in range(num_clients):
    groups.setdefault(_shapes(columns, client), []).append(client)
  return list(groups.values())


def _padded_size(num_clients: int) -> int:
  """The next power of two, so that few programs serve groups of any size."""
  return 1 << (num_clients - 1).bit_length()


def _stack(
  columns: ListOrTuple[_Column], clients: ListOrTuple[int], size: int
) -> List[tf.Tensor]:
  """Returns a program's arguments; a missing client is the last one again."""
  clients = [*clients, *[clients[-1]] * (size - len(clients))]
  return [
    column.tensors[0]
    if column.is_shared
    else tf.stack([column.tensors[client] for client in clients])
    for column in columns
  ]


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
