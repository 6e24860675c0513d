"""Ray actors, which compute chunks of a cohort's clients."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_pfl.runtime import (
  graph_functions,
  in_process,
  interpreter,
  stages,
  transport,
  values,
)
from tff_pfl.system import ray_cluster

_MAX_PROGRAMS = 32


class Order(NamedTuple):
  """A chunk's work in one stage.

  Ray fetches objects in a list or a dictionary only on demand.

  Attributes:
    program: The program's number, and the result of `stages.pack` for its plan.
    run: Number of the computation's run.
    chunk: Number of the chunk in the run.
    num_clients: Number of clients in the chunk.
    received: For each stage up to this one, the values that clients receive, by
      name.
    argument: The computation's argument for these clients. None if the actor
      computed the chunk's earlier stages.
    shared: Mappings by number, for the references in the argument.
  """

  program: tuple[int, list[Any]]
  run: int
  chunk: int
  num_clients: int
  received: list[Any]
  argument: Optional[tuple[Any, ...]]
  shared: Mapping[int, list[Any]]


def _fetch(boxed: list[Any]) -> Any:
  import ray

  return ray.get(boxed[0])


def pack(value: Any) -> tuple[bytes, list[np.ndarray]]:
  """Pickles a value, with its arrays kept apart so that Ray shares them."""
  from ray import cloudpickle

  buffers = []
  data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
  return data, [np.frombuffer(b.raw(), np.uint8) for b in buffers]


def unpack(packed: tuple[bytes, list[np.ndarray]]) -> Any:
  """Restores a packed value."""
  data, buffers = packed
  return pickle.loads(data, buffers=buffers)


class ChunkActor:
  """An actor that computes chunks of clients, one after another.

  It keeps its clients' values between the stages of a computation.
  """

  def __init__(
    self,
    num_threads: int,
    on_gpu: bool,
    batched_clients: Optional[bool] = None,
    fetch: Callable[[list[Any]], Any] = _fetch,
  ):
    """Prepares an actor.

    Args:
      num_threads: Number of clients that compute at the same time on the CPU.
        GPUs have one thread each.
      on_gpu: True to compute on the GPUs that Ray gave this process.
      batched_clients: See `in_process.InProcessRuntime`.
      fetch: Function from a list with a reference to the referenced object.
    """
    self._fetch = fetch
    self._mapper, self._device = in_process.create_mapper(
      'gpu' if on_gpu else 'cpu',
      None if on_gpu else num_threads,
      batched_clients,
    )
    self._library = graph_functions.FunctionLibrary()
    self._programs = collections.OrderedDict()
    self._mappings: dict[int, Any] = {}
    self._received: dict[int, Any] = {}
    self._kept: dict[int, dict[str, Any]] = {}
    self._run = None

  def checksum(self) -> str:
    """Returns the checksum of this process's code."""
    return ray_cluster.code_checksum()

  def compute(self, order: Order) -> Any:
    """Computes a chunk up to the last stage received.

    Returns:
      The encoded `stages.ChunkOutput`, or the exception of a client's
      computation.
    """
    try:
      with tf.device(self._device):
        return self._compute(order)
    except Exception as error:  # pylint: disable=broad-except
      return error

  def _compute(self, order: Order) -> tuple[Any, ...]:
    if order.run != self._run:
      self._run = order.run
      self._kept.clear()
      self._received.clear()
    program, parameter_name, parts = self._program(*order.program)
    last = len(order.received) - 1
    first = last
    bindings = self._kept.pop(order.chunk, None)
    if order.argument is not None:
      # What this actor has kept may be older than the last stage.
      first = 0
      bindings = {parameter_name: self._argument(order)}
    for number in range(first, last + 1):
      output, later = stages.compute_chunk(
        program,
        parts[number],
        {**bindings, **self._receive(number, order.received[number])},
        order.num_clients,
      )
      bindings = {parameter_name: bindings[parameter_name], **later}
    if last + 1 < len(parts):
      self._kept[order.chunk] = bindings
    return transport.encode(output)

  def _program(self, key: int, boxed: list[Any]) -> tuple[Any, ...]:
    if key not in self._programs:
      parameter_name, parts = stages.unpack(self._fetch(boxed))
      program = interpreter.Interpreter(parts, self._library, self._mapper)
      self._programs[key] = (program, parameter_name, parts)
      while len(self._programs) > _MAX_PROGRAMS:
        self._programs.popitem(last=False)
    self._programs.move_to_end(key)
    return self._programs[key]

  def _receive(self, number: int, boxed: Any) -> dict[str, Any]:
    """Returns a stage's broadcasts, decoded once for all chunks."""
    if number not in self._received:
      self._received[number] = transport.decode(self._fetch(boxed))
    return self._received[number]

  def _argument(self, order: Order) -> Any:
    # Otherwise the clients have no examples here, but perhaps in the next run.
    if order.shared:
      for number in self._mappings.keys() - order.shared.keys():
        del self._mappings[number]
    for number, boxed in order.shared.items():
      if number not in self._mappings:
        self._mappings[number] = unpack(self._fetch(boxed))
    return transport.decode(order.argument, self._load)

  def _load(self, reference: values.Reference) -> Any:
    number, position = reference.source
    return self._mappings[number][position][reference.key]
