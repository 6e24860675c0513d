"""A runtime whose clients compute on the machines of a Ray cluster.

This process computes the server's part. The clients of a cohort are divided
into chunks, which the cluster's actors compute, each like `in_process` on its
cores or GPU. An actor gets the broadcast once for all chunks, adds up its
clients' values with the aggregation's accumulation, and returns one total per
chunk, with the clients' new states. Clients' values between two exchanges stay
in the actor. Examples do not travel if an actor can open the dataset itself
(see `Runtime.share`).

A lost actor is replaced if there is room, and other actors compute its chunks.
The chunks depend only on the cohort, so the result is the same for any number
of actors, even if some are lost.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Optional

from absl import logging

from tff_pfl import errors, fields
from tff_pfl.runtime import (
  client_mapper,
  devices,
  in_process,
  ray_actor,
  stages,
  threads,
  transport,
  values,
)
from tff_pfl.system import ray_cluster

_CHUNKS_PER_COHORT = 64
_SECONDS_BETWEEN_LOOKS = 0.1
# Time between searches for new nodes, and between lines about a wait.
_SECONDS_BETWEEN_COUNTS = 30.0
# Longest wait for nodes after all actors were lost and none fits.
_SECONDS_WITHOUT_NODES = 120.0
# A chunk that has lost more actors, and a start that has failed more often, is
# not tried again.
_MAX_LOSSES = 3
# Chunks of an actor at a time: one being computed and one waiting.
_MAX_ORDERS = 2

_unique_number = itertools.count()


class RayRuntime(in_process.InterpretingRuntime):
  """A runtime with clients on a Ray cluster."""

  @fields.checked_call
  def __init__(
    self,
    *,
    address: str = ray_cluster.LOCAL,
    cpus_per_actor: fields.Positive = 1,
    gpus_per_actor: fields.NonNegative = 0,
    clients_per_chunk: Optional[fields.Count] = None,
    batched_clients: Optional[bool] = None,
    seconds_to_start: Optional[fields.Positive] = None,
  ):
    """Connects to the cluster and starts as many actors as fit.

    Args:
      address: Address of the cluster: local (a Ray of this program on this
        machine), auto (the cluster that this machine belongs to), host:port, or
        ray://host:port from outside.
      cpus_per_actor: CPU cores of each actor, a process in which clients
        compute, positive. There are as many actors as fit.
      gpus_per_actor: Share of a GPU, or number of GPUs, of each actor. 0 means
        no GPU.
      clients_per_chunk: Clients that an actor computes and adds up at a time,
        at least 1. None means a 64th of the cohort, rounded up. Results depend
        on it in their last bits, but not on the number of actors.
      batched_clients: True to run clients with data of the same size (rounded
        up to a power of two) as one program. None means True on GPUs and False
        on the CPU, where it is slower.
      seconds_to_start: Seconds to wait for an actor while none computes,
        positive. After that the run ends. None waits as long as the cluster has
        actors pending, and two minutes for new nodes if all were lost.

    Raises:
      RunError: If Ray is not installed or does not answer.
    """
    self._cluster = _Cluster(
      ray_cluster.connect(address),
      {'CPU': cpus_per_actor, 'GPU': gpus_per_actor},
      clients_per_chunk,
      batched_clients,
      seconds_to_start,
    )
    super().__init__(
      self._cluster, self._cluster.server_device, stages.StagedInterpreter
    )

  def share(self, *mappings: Mapping[Any, Any]) -> tuple[Mapping, ...]:
    """Returns mappings to references (see `base.Runtime.share`)."""
    return self._cluster.share(mappings)

  @property
  def num_actors(self) -> int:
    """Number of actors, including starting ones."""
    return len(self._cluster.actors)

  @property
  def clients_per_call(self) -> int:
    """Clients per evaluation batch, enough for all actors, which load data."""
    return max(super().clients_per_call, 4 * self.num_actors)


@dataclasses.dataclass(eq=False)
class _Actor:
  """A process of the cluster.

  Attributes:
    handle: Ray's handle.
    started: Ray's future of the actor's checksum.
    start: Number of the call of `_start_actors` that made the actor.
    is_ready: True once the actor has started.
    orders: Chunks that the actor computes, by Ray's futures.
  """

  handle: Any
  started: Any
  start: int
  is_ready: bool = False
  orders: dict[Any, _Chunk] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class _Chunk:
  """Some clients of a cohort.

  Attributes:
    number: Position of the chunk in the cohort.
    num_clients: Number of clients in the chunk.
    argument: The computation's encoded argument for the clients.
    shared: Numbers of the shared mappings that the argument refers to.
    home: The actor that computed the chunk's last stage.
    num_losses: Number of actors lost while they had the chunk.
  """

  number: int
  num_clients: int
  argument: Any
  shared: set[int]
  home: Optional[_Actor] = None
  num_losses: int = 0


class _Stored:
  """An object in Ray's store for several actors."""

  def __init__(self, reference: Any):
    self.number = next(_unique_number)
    self.reference = reference


class _References:
  """A mapping from the keys of a shared mapping to references."""

  def __init__(self, owner: _Stored, position: int):
    self._owner = owner  # Keeps the mapping in Ray's store.
    self._source = (owner.number, position)

  def __getitem__(self, key: Any) -> values.Reference:
    return values.Reference(self._source, key)


class _Cluster(client_mapper.ClientMapper):
  """As many actors as fit into a cluster.

  Computations without stages run in this process, as in the base class.

  Attributes:
    actors: The actors, including starting ones.
  """

  def __init__(
    self,
    ray: Any,
    resources: Mapping[str, float],
    clients_per_chunk: Optional[int],
    batched_clients: Optional[bool],
    seconds_to_start: Optional[float],
  ):
    names = devices.resolve('cpu')
    super().__init__(devices.thread_devices(names))
    self.server_device = names[0]
    self._ray = ray
    self._resources = {name: n for name, n in resources.items() if n}
    self._clients_per_chunk = clients_per_chunk
    self._seconds_to_start = seconds_to_start
    self._actor_class = ray.remote(ray_actor.ChunkActor).options(
      num_cpus=resources['CPU'],
      num_gpus=resources['GPU'],
      max_restarts=0,
      max_task_retries=0,
      scheduling_strategy='SPREAD',
    )
    self._arguments = (
      max(1, int(resources['CPU'])),
      resources['GPU'] > 0,
      batched_clients,
    )
    self._checksum = ray_cluster.code_checksum()
    self._lock = threading.Lock()
    # Number of the run whose values the actors keep.
    self._last_run = None
    self._refusals: list[str] = []
    self._num_starts = 0
    # Starts in which an actor died, since an actor last came up.
    self._failed_starts: set[int] = set()
    # Shared mappings by number.
    self._shared = weakref.WeakValueDictionary()
    self.actors: list[_Actor] = []
    self._start_actors()
    errors.expect(
      self.actors,
      'cpus_per_actor, gpus_per_actor',
      "no more than one of the cluster's nodes has",
      f'{resources["CPU"]:g} and {resources["GPU"]:g}, where Ray has '
      f'{ray.cluster_resources()}',
    )

  def share(self, mappings: tuple[Mapping[Any, Any], ...]) -> tuple[Any, ...]:
    """Returns mappings from keys to references that actors resolve."""
    owner = _Stored(self._ray.put(ray_actor.pack(mappings)))
    self._shared[owner.number] = owner
    return tuple(_References(owner, i) for i in range(len(mappings)))

  def prepare(self, plan: stages.Plan) -> _Stored:
    """Puts a plan's program into Ray's store."""
    return _Stored(self._ray.put(stages.pack(plan)))

  def cohort(
    self, program: _Stored, argument: Any, num_clients: int
  ) -> Callable[[Mapping[str, Any]], list[stages.ChunkOutput]]:
    """Returns a function that computes a cohort's stages, one per call.

    The function takes the values that all clients receive, by name, and returns
    the chunks' outputs.
    """
    size = self._clients_per_chunk or -(-num_clients // _CHUNKS_PER_COHORT)
    chunks = []
    for begin in range(0, num_clients, size):
      end = min(begin + size, num_clients)
      part = transport.encode(transport.client_part(argument, begin, end))
      shared = {r.source[0] for r in transport.references(part)}
      chunks.append(_Chunk(len(chunks), end - begin, part, shared))
    run = next(_unique_number)
    stored = []

    def compute(received):
      stored.append(self._ray.put(transport.encode(dict(received))))
      with self._lock:
        return self._compute(program, run, stored, chunks)

    return compute

  def _compute(
    self,
    program: _Stored,
    run: int,
    received: list[Any],
    chunks: list[_Chunk],
  ) -> list[stages.ChunkOutput]:
    """Computes the last stage in `received` for all chunks."""
    if run != self._last_run:
      # Actors keep values of one run. They compute its earlier stages anew.
      for chunk in chunks:
        chunk.home = None
      self._last_run = run
    waiting = list(chunks)
    outputs = {}
    begin = time_of_line = time.monotonic()
    try:
      while len(outputs) < len(chunks):
        threads.raise_if_abandoned()
        ready = self._ready_actors()
        now = time.monotonic()
        if ready:
          begin = time_of_line = now
        else:
          self._check_wait(now - begin)
          if now - time_of_line > _SECONDS_BETWEEN_COUNTS:
            time_of_line = now
            logging.warning(
              'No Ray actor has run for %.0f seconds: %d start, or wait for '
              'cores or GPUs that are in use (--ray_seconds_to_start limits '
              'the wait).',
              now - begin,
              len(self.actors),
            )
        # Each actor gets one chunk before any gets a second.
        for num_orders in range(_MAX_ORDERS):
          for actor in ready:
            if len(actor.orders) == num_orders:
              chunk = _choose(waiting, actor, ready)
              if chunk is not None:
                waiting.remove(chunk)
                self._order(actor, chunk, program, run, received)
        for actor, chunk, future in self._finished_orders():
          output = self._result(future)
          if isinstance(output, Exception):
            raise output
          if output is None:
            waiting += self._lose(actor, chunk)
            waiting.sort(key=lambda chunk: chunk.number)
          else:
            chunk.home = actor
            outputs[chunk.number] = output
    except BaseException:
      for actor in self.actors:
        for future in actor.orders:
          self._ray.cancel(future)
        actor.orders.clear()
      raise
    return [transport.decode(outputs[chunk.number]) for chunk in chunks]

  def _check_wait(self, seconds: float) -> None:
    """Raises `RunError` if no actor is coming or the wait is too long."""
    most = self._seconds_to_start
    if most is None:
      most = math.inf if self.actors else _SECONDS_WITHOUT_NODES
    reasons = self._refusals
    if seconds > most:
      reasons = [*reasons, f'None started in {most:g} seconds.']
    elif self.actors or not reasons:
      return
    reasons = dict.fromkeys(['No Ray actor is left.', *reasons])
    raise errors.RunError(' '.join(reasons))

  def _order(
    self,
    actor: _Actor,
    chunk: _Chunk,
    program: _Stored,
    run: int,
    received: list[Any],
  ) -> None:
    """Gives an actor a chunk to compute."""
    order = ray_actor.Order(
      program=(program.number, [program.reference]),
      run=run,
      chunk=chunk.number,
      num_clients=chunk.num_clients,
      received=[[reference] for reference in received],
      argument=None if chunk.home is actor else chunk.argument,
      shared={n: [self._shared[n].reference] for n in chunk.shared},
    )
    actor.orders[actor.handle.compute.remote(order)] = chunk

  def _finished_orders(self) -> list[tuple[_Actor, _Chunk, Any]]:
    """Waits briefly for finished orders: actors, chunks and futures."""
    orders = {future: actor for actor in self.actors for future in actor.orders}
    futures = [*orders, *[a.started for a in self.actors if not a.is_ready]]
    if not futures:
      time.sleep(_SECONDS_BETWEEN_LOOKS)
      return []
    finished, _ = self._ray.wait(futures, timeout=_SECONDS_BETWEEN_LOOKS)
    return [
      (orders[future], orders[future].orders.pop(future), future)
      for future in finished
      if future in orders
    ]

  def _result(self, future: Any) -> Any:
    """Returns an actor's result, or None if the actor was lost."""
    try:
      return self._ray.get(future)
    except self._ray.exceptions.RayTaskError as error:
      raise errors.RunError(
        f'A Ray actor failed: {_one_line(error)}'
      ) from error
    except self._ray.exceptions.RayError as error:
      logging.debug('A Ray actor was lost: %s', error)
      return None

  def _lose(self, actor: _Actor, chunk: _Chunk) -> list[_Chunk]:
    """Replaces a lost actor and returns its chunks."""
    lost = [chunk, *actor.orders.values()]
    if actor in self.actors:
      logging.warning('A Ray actor was lost. Other actors compute its clients.')
      actor.orders.clear()
      self._end(actor)
      self._start_actors()
    for each in lost:
      each.home = None
      each.num_losses += 1
      if each.num_losses > _MAX_LOSSES:
        raise errors.RunError(
          f'{each.num_losses} Ray actors died while they computed the same '
          f'{each.num_clients} clients; perhaps memory ran out (see the logs '
          'of Ray).'
        )
    return lost

  def _ready_actors(self) -> list[_Actor]:
    starting = [actor for actor in self.actors if not actor.is_ready]
    if starting:
      started, _ = self._ray.wait(
        [a.started for a in starting], num_returns=len(starting), timeout=0
      )
      for actor in starting:
        if actor.started in started:
          self._admit(actor)
    if time.monotonic() - self._last_count > _SECONDS_BETWEEN_COUNTS:
      self._start_actors()
    return [actor for actor in self.actors if actor.is_ready]

  def _admit(self, actor: _Actor) -> None:
    """Admits a started actor if it has the same code as this process."""
    is_refusal = True
    try:
      actor.is_ready = self._ray.get(actor.started) == self._checksum
      self._failed_starts.clear()
      reason = (
        'An actor has different code of tff_pfl, or another version of Python, '
        'TensorFlow or TFF, than this process; install the same on all nodes.'
      )
    except self._ray.exceptions.RayError as error:
      reason = f'An actor cannot start: {_one_line(error)}'
      # Its node died or its process crashed: another one may start.
      if not getattr(error, 'actor_init_failed', True):
        self._failed_starts.add(actor.start)
        is_refusal = len(self._failed_starts) > _MAX_LOSSES
    if not actor.is_ready:
      logging.warning('%s', reason)
      self._end(actor)
      if is_refusal:
        self._refusals.append(reason)
      else:
        # All that died together are replaced together, at once.
        self._last_count = -math.inf

  def _start_actors(self) -> None:
    """Starts as many more actors as fit."""
    self._last_count = time.monotonic()
    self._num_starts += 1
    missing = self._num_fitting() - len(self.actors) - len(self._refusals)
    for _ in range(missing):
      handle = self._actor_class.remote(*self._arguments)
      self.actors.append(
        _Actor(handle, handle.checksum.remote(), self._num_starts)
      )

  def _num_fitting(self) -> int:
    return sum(
      min(
        int(node['Resources'].get(name, 0) / number + 1e-9)
        for name, number in self._resources.items()
      )
      for node in self._ray.nodes()
      if node['Alive']
    )

  def _end(self, actor: _Actor) -> None:
    self.actors.remove(actor)
    try:
      self._ray.kill(actor.handle)
    except Exception as error:  # Ray itself has ended.
      logging.debug('A Ray actor could not be ended: %s', error)

  def close(self) -> None:
    """Ends the actors and the local threads."""
    for actor in list(self.actors):
      self._end(actor)
    super().close()


def _choose(
  waiting: list[_Chunk], actor: _Actor, ready: list[_Actor]
) -> Optional[_Chunk]:
  """Returns an actor's earlier chunk, or else the first without an actor."""
  return max(
    (c for c in waiting if c.home is actor or c.home not in ready),
    key=lambda chunk: chunk.home is actor,
    default=None,
  )


def _one_line(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[-1].strip()
