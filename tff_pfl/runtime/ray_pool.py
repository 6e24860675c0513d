"""The actors of a Ray cluster, and who computes which chunk."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Optional

import tensorflow as tf
from absl import logging

from tff_pfl import errors
from tff_pfl.runtime import cancellation, ray_actor, stages, transport, values
from tff_pfl.system import ray_cluster

_SECONDS_BETWEEN_LOOKS = 0.1
# New nodes are looked for this often.
_SECONDS_BETWEEN_COUNTS = 30.0
# How long to wait for the first actor, or for one when all were lost.
_SECONDS_TO_START = 120.0
# A chunk that has ended so many actors is not tried again.
_MAX_LOSSES = 3
# What an actor finds to do when it has finished a chunk.
_MAX_ORDERS = 2
# Of how many clients it is remembered who has their data.
_MAX_REMEMBERED = 200_000

_unique_number = itertools.count()


@dataclasses.dataclass(eq=False)
class Actor:
  """A process of the cluster.

  Attributes:
    handle: Ray's.
    started: The future of its checksum.
    orders: The chunks it computes, by their futures.
  """

  handle: Any
  started: Any
  orders: dict[Any, Chunk] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Stored:
  """Something in Ray's object store that several actors take.

  Attributes:
    number: Tells it from others.
    reference: Ray's.
    num_bytes: Its size.
    takers: Those who took it.
  """

  number: int
  reference: Any
  num_bytes: int
  takers: weakref.WeakSet[Actor] = dataclasses.field(
    default_factory=weakref.WeakSet
  )


@dataclasses.dataclass(eq=False)
class Chunk:
  """Some clients of a cohort.

  Attributes:
    argument: The computation's argument for them, encoded.
    home: Who computed its last stage.
    num_losses: How many actors were lost with it.
  """

  number: int
  num_clients: int
  argument: Any
  references: list[values.Reference]
  home: Optional[Actor] = None
  num_losses: int = 0


class ActorPool:
  """As many actors as fit into a cluster.

  One that is lost, with its process or its node, is replaced if there is room,
  and its chunks are computed by others. Client work is a pure function of its
  arguments, so the result is the same.

  Attributes:
    bytes_sent: To actors so far: broadcasts once for each actor that took them,
      arguments and programs.
    bytes_received: From actors so far.
    refusals: Why actors could not take part.
  """

  def __init__(
    self,
    address: str,
    cpus_per_actor: float,
    gpus_per_actor: float,
    batched_clients: Optional[bool],
  ):
    """Connects to the cluster and starts the actors; see `RayRuntime`."""
    self._ray = ray_cluster.connect(address)
    self._resources = {'CPU': cpus_per_actor, 'GPU': gpus_per_actor}
    self._arguments = (
      max(1, int(cpus_per_actor)),
      gpus_per_actor > 0,
      batched_clients,
    )
    self._checksum = ray_cluster.code_checksum()
    self._lock = threading.Lock()
    self._actors: list[Actor] = []
    self._starting: list[Actor] = []
    self._last_count = 0.0
    self._is_closed = False
    self.refusals: dict[Any, str] = {}
    # From a shared mapping's number to its object in Ray's store.
    self._shared = weakref.WeakValueDictionary()
    self._owners = collections.OrderedDict()
    self.bytes_sent = 0
    self.bytes_received = 0
    self._start_actors()
    errors.expect(
      self._starting,
      'cpus_per_actor, gpus_per_actor',
      "no more than one of the cluster's nodes has",
      f'{cpus_per_actor:g} and {gpus_per_actor:g}, where Ray has '
      f'{self._ray.cluster_resources()}',
    )

  @property
  def num_actors(self) -> int:
    """How many there are, those that are starting included."""
    return len(self._actors) + len(self._starting)

  def store(self, value: Any, num_bytes: int) -> Stored:
    """Puts something into Ray's object store."""
    return Stored(next(_unique_number), self._ray.put(value), num_bytes)

  def share(self, mappings: tuple[Mapping[Any, Any], ...]) -> tuple[Any, ...]:
    """Returns mappings from keys to references that actors resolve."""
    number = next(_unique_number)
    owner = _Shared(self._ray.put(ray_actor.pack(mappings)))
    self._shared[number] = owner
    return tuple(
      _References((number, position), owner)
      for position in range(len(mappings))
    )

  def compute(
    self, work: Work, received: Mapping[str, Any]
  ) -> list[stages.ChunkOutput]:
    """Has a cohort's next stage computed; returns the outputs of its chunks.

    Args:
      received: What all clients receive, by name.

    Raises:
      RunError: If no actor is left.
      Exception: The first that a client's computation raised.
    """
    encoded = transport.encode(dict(received))
    work.received.append(self.store(encoded, transport.num_bytes(encoded)))
    with self._lock:
      return _Stage(self, work).run()

  def close(self) -> None:
    """Ends the actors."""
    self._is_closed = True
    for actor in (*self._actors, *self._starting):
      self._end(actor)
    self._actors, self._starting = [], []

  # From here on: what a stage asks of the pool, which it holds locked.

  def check_open(self) -> None:
    """Raises if the pool is closed or the computation is to end."""
    current = cancellation.Cancellation.current()
    if self._is_closed or (current is not None and current.is_cancelled):
      raise tf.errors.CancelledError(None, None, 'The computation was ended.')

  def actors(self) -> list[Actor]:
    """The actors that are ready."""
    if self._starting:
      ready, _ = self._ray.wait(
        [actor.started for actor in self._starting],
        num_returns=len(self._starting),
        timeout=0,
      )
      for actor in [a for a in self._starting if a.started in ready]:
        self._starting.remove(actor)
        self._admit(actor)
    if time.monotonic() - self._last_count > _SECONDS_BETWEEN_COUNTS:
      self._start_actors()
    return self._actors

  def order(self, actor: Actor, chunk: Chunk, work: Work) -> None:
    """Gives an actor a chunk to compute."""
    is_home = chunk.home is actor
    order = ray_actor.Order(
      program=(work.program.number, [work.program.reference]),
      run=work.run,
      chunk=chunk.number,
      num_clients=chunk.num_clients,
      received=[[stored.reference] for stored in work.received],
      argument=None if is_home else chunk.argument,
      shared={
        source: [self._shared[source].reference]
        for source in {r.source[0] for r in chunk.references}
      },
    )
    future = actor.handle.compute.remote(order)
    actor.orders[future] = chunk
    self._count_sent(actor, chunk, work, is_home)
    for reference in chunk.references:
      key = (reference.source, reference.key)
      self._owners[key] = actor
      self._owners.move_to_end(key)
    while len(self._owners) > _MAX_REMEMBERED:
      self._owners.popitem(last=False)

  def num_cached(self, actor: Actor, chunk: Chunk) -> int:
    """Of how many of a chunk's clients an actor had the data last."""
    return sum(
      self._owners.get((r.source, r.key)) is actor for r in chunk.references
    )

  def wait(self) -> list[tuple[Actor, Chunk, Any]]:
    """Waits for some chunks; returns who computed them, and Ray's futures."""
    orders = {
      future: actor for actor in self._actors for future in actor.orders
    }
    starting = [actor.started for actor in self._starting]
    ready, _ = self._ray.wait(
      [*orders, *starting], timeout=_SECONDS_BETWEEN_LOOKS
    )
    return [
      (orders[future], orders[future].orders.pop(future), future)
      for future in ready
      if future in orders
    ]

  def result(self, future: Any) -> Any:
    """Returns what an actor returned; None if it was lost."""
    try:
      return self._ray.get(future)
    except self._ray.exceptions.RayTaskError as error:
      raise errors.RunError(
        f'A Ray actor failed: {_one_line(error)}'
      ) from error
    except self._ray.exceptions.RayError as error:
      logging.debug('A Ray actor was lost: %s', error)
      return None

  def lose(self, actor: Actor) -> list[Chunk]:
    """Takes a lost actor out, starts another; returns its chunks."""
    if actor not in self._actors:
      return []
    logging.warning('A Ray actor was lost. Its clients are computed by others.')
    self._actors.remove(actor)
    self._end(actor)
    chunks = list(actor.orders.values())
    actor.orders.clear()
    self._start_actors()
    return chunks

  def forget_orders(self) -> None:
    """Gives up what actors were to compute."""
    for actor in self._actors:
      for future in actor.orders:
        self._ray.cancel(future)
      actor.orders.clear()

  def _count_sent(self, actor, chunk, work, is_home):
    for stored in (work.program, *work.received):
      if actor not in stored.takers:
        stored.takers.add(actor)
        self.bytes_sent += stored.num_bytes
    if not is_home:
      self.bytes_sent += transport.num_bytes(chunk.argument)

  def _admit(self, actor: Actor) -> None:
    """Takes an actor that has started, if its code is this process's."""
    try:
      checksum = self._ray.get(actor.started)
    except self._ray.exceptions.RayError as error:
      self._refuse(actor, f'An actor cannot start: {_one_line(error)}')
      return
    if checksum != self._checksum:
      self._refuse(
        actor,
        'An actor has other code of tff_pfl, or another version of Python, '
        'TensorFlow or TFF, than this process; install the same on all nodes.',
      )
      return
    self._actors.append(actor)

  def _refuse(self, actor: Actor, reason: str) -> None:
    logging.warning('%s', reason)
    self.refusals[actor] = reason
    self._end(actor)

  def _start_actors(self) -> None:
    """Starts as many as fit, besides those that there are."""
    self._last_count = time.monotonic()
    missing = self._num_fitting() - self.num_actors - len(self.refusals)
    actor_class = self._ray.remote(ray_actor.ChunkActor).options(
      num_cpus=self._resources['CPU'],
      num_gpus=self._resources['GPU'],
      max_restarts=0,
      max_task_retries=0,
      scheduling_strategy='SPREAD',
    )
    for _ in range(missing):
      handle = actor_class.remote(*self._arguments)
      self._starting.append(Actor(handle, handle.checksum.remote()))

  def _num_fitting(self) -> int:
    wanted = {name: n for name, n in self._resources.items() if n}
    return sum(
      min(
        int(node['Resources'].get(name, 0) / number + 1e-9)
        for name, number in wanted.items()
      )
      for node in self._ray.nodes()
      if node['Alive']
    )

  def _end(self, actor: Actor) -> None:
    try:
      self._ray.kill(actor.handle)
    except Exception as error:  # Ray is gone itself.
      logging.debug('A Ray actor could not be ended: %s', error)


def _one_line(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[-1].strip()


class _Shared:
  """Keeps an object in Ray's store."""

  def __init__(self, reference: Any):
    self.reference = reference


class _References:
  """From the keys of a shared mapping to references to its values."""

  def __init__(self, source: Any, owner: _Shared):
    self._source = source
    self._owner = owner

  def __getitem__(self, key: Any) -> values.Reference:
    return values.Reference(self._source, key)


class Work:
  """One run of a computation's clients' part.

  Attributes:
    program: What they compute.
    run: Tells this run from others.
    chunks: The cohort.
    received: What clients receive in each stage so far.
  """

  def __init__(
    self, program: Stored, argument: Any, num_clients: int, size: int
  ):
    """Cuts a cohort.

    Args:
      argument: The computation's argument, for the whole cohort.
      size: The number of clients of each chunk but the last.
    """
    self.program = program
    self.run = next(_unique_number)
    self.chunks = []
    self.received: list[Stored] = []
    for begin in range(0, num_clients, size):
      end = min(begin + size, num_clients)
      part = transport.encode(transport.of_clients(argument, begin, end))
      self.chunks.append(
        Chunk(len(self.chunks), end - begin, part, transport.references(part))
      )


class _Stage:
  """Hands out the chunks of one stage and gathers the outputs."""

  def __init__(self, pool: ActorPool, work: Work):
    self._pool = pool
    self._work = work
    self._waiting = list(work.chunks)
    self._outputs: list[Any] = [None] * len(work.chunks)
    self._num_left = len(work.chunks)
    self._last_seen = time.monotonic()

  def run(self) -> list[stages.ChunkOutput]:
    try:
      while self._num_left:
        self._pool.check_open()
        self._hand_out()
        for actor, chunk, future in self._pool.wait():
          self._take(actor, chunk, self._pool.result(future))
        self._check_actors()
    except BaseException:
      self._pool.forget_orders()
      raise
    return [stages.ChunkOutput(*transport.decode(o)) for o in self._outputs]

  def _hand_out(self) -> None:
    actors = self._pool.actors()
    # Each gets one chunk before any gets a second.
    for num_orders in range(_MAX_ORDERS):
      for actor in actors:
        if len(actor.orders) == num_orders and self._waiting:
          chunk = self._choose(actor, actors)
          if chunk is not None:
            self._waiting.remove(chunk)
            self._pool.order(actor, chunk, self._work)

  def _choose(self, actor: Actor, actors: list[Actor]) -> Optional[Chunk]:
    """The waiting chunk of which an actor has most."""
    own = [chunk for chunk in self._waiting if chunk.home is actor]
    if own:
      return own[0]
    free = [chunk for chunk in self._waiting if chunk.home not in actors]
    if not free:
      return None
    return max(free, key=lambda chunk: self._pool.num_cached(actor, chunk))

  def _take(self, actor: Actor, chunk: Chunk, output: Any) -> None:
    if isinstance(output, Exception):
      raise output
    if output is not None:
      chunk.home = actor
      self._outputs[chunk.number] = output
      self._num_left -= 1
      self._pool.bytes_received += transport.num_bytes(output)
      return
    lost = [chunk, *self._pool.lose(actor)]
    for each in lost:
      each.home = None
      each.num_losses += 1
      if each.num_losses > _MAX_LOSSES:
        raise errors.RunError(
          f'{each.num_losses} Ray actors died as they computed the same '
          f'{each.num_clients} clients; is there memory enough? See the logs '
          'of Ray.'
        )
    self._waiting = sorted([*lost, *self._waiting], key=lambda c: c.number)

  def _check_actors(self) -> None:
    if self._pool.actors():
      self._last_seen = time.monotonic()
      return
    if (
      not self._pool.num_actors
      or time.monotonic() - self._last_seen > _SECONDS_TO_START
    ):
      raise errors.RunError(
        ' '.join(['No Ray actor is left.', *self._pool.refusals.values()])
      )
