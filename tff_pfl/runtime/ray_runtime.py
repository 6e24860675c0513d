"""A runtime whose clients compute on the machines of a Ray cluster.

This process does what the server does. The clients of a cohort are cut into
chunks, which the cluster's actors compute, each like `in_process` on its cores
or its GPU: they get the broadcast once for all chunks, add up what their
clients send with the aggregation's own accumulation, and return one total for
each chunk, with the clients' new states. What clients hold between two
exchanges stays in the actor. Examples do not travel where an actor can open the
data set itself, see `Runtime.share`.

The chunks depend on the cohort only, so the result is the same for any number
of actors and whatever happens to them.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Optional

from tff_pfl import errors
from tff_pfl.runtime import (
  client_mapper,
  graph_functions,
  in_process,
  ray_pool,
  stages,
  values,
)
from tff_pfl.system import ray_cluster

_CHUNKS_PER_COHORT = 64


class RayRuntime(in_process.InterpretingRuntime):
  """Runs the clients' computations on a Ray cluster."""

  def __init__(
    self,
    *,
    address: str = ray_cluster.LOCAL,
    cpus_per_actor: float = 1,
    gpus_per_actor: float = 0,
    clients_per_chunk: Optional[int] = None,
    batched_clients: Optional[bool] = None,
  ):
    """Connects to the cluster and starts as many actors as fit.

    Args:
      address: See `ray_cluster.connect`.
      cpus_per_actor: CPU cores that each actor computes on, positive.
      gpus_per_actor: The share of a GPU that each actor computes on, or the
        number of GPUs; 0 for none.
      clients_per_chunk: How many clients an actor computes at a time, and adds
        up, at least 1; None for a 64th of the cohort, rounded up. The last bits
        of results depend on it.
      batched_clients: As for `in_process.InProcessRuntime`.

    Raises:
      RunError: If Ray is not installed or does not answer.
      ValueError: If a number is out of range, or no actor fits.
    """
    errors.expect(
      cpus_per_actor > 0, 'cpus_per_actor', 'positive', cpus_per_actor
    )
    errors.expect(
      gpus_per_actor >= 0, 'gpus_per_actor', 'at least 0', gpus_per_actor
    )
    errors.expect(
      clients_per_chunk is None or clients_per_chunk >= 1,
      'clients_per_chunk',
      'at least 1',
      clients_per_chunk,
    )
    local, server_device = in_process.create_mapper('cpu')
    self._pool = ray_pool.ActorPool(
      address, cpus_per_actor, gpus_per_actor, batched_clients
    )
    super().__init__(
      _ClusterMapper(local, self._pool, clients_per_chunk),
      server_device,
      stages.StagedInterpreter,
    )

  def share(self, *mappings: Mapping[Any, Any]) -> tuple[Mapping, ...]:
    """Returns mappings to references; see `base.Runtime.share`."""
    return self._pool.share(mappings)

  @property
  def num_actors(self) -> int:
    """How many actors compute, those that are starting included."""
    return self._pool.num_actors

  @property
  def clients_per_call(self) -> int:
    """Enough for all actors; their data are not in this process."""
    return max(super().clients_per_call, 4 * self.num_actors)

  @property
  def bytes_moved(self) -> tuple[int, int]:
    """How many bytes actors have received and sent so far."""
    return self._pool.bytes_sent, self._pool.bytes_received


class _ClusterMapper(client_mapper.ClientMapper):
  """Runs stages on the cluster, and what has none in this process."""

  def __init__(
    self,
    local: client_mapper.ClientMapper,
    pool: ray_pool.ActorPool,
    clients_per_chunk: Optional[int],
  ):
    self._local = local
    self._pool = pool
    self._clients_per_chunk = clients_per_chunk

  def map(
    self,
    function: graph_functions.LocalFunction,
    argument: Optional[values.ClientsValue],
    num_clients: int,
  ) -> list[values.LocalValue]:
    return self._local.map(function, argument, num_clients)

  def prepare(self, plan: stages.Plan) -> ray_pool.Stored:
    """Puts a plan's program where actors find it."""
    program = stages.pack(plan)
    return self._pool.store(program, len(program))

  def cohort(
    self, program: ray_pool.Stored, argument: Any, num_clients: int
  ) -> Callable[[Mapping[str, Any]], list[stages.ChunkOutput]]:
    """Returns what computes a cohort's stages; see `ActorPool.compute`."""
    size = self._clients_per_chunk or -(-num_clients // _CHUNKS_PER_COHORT)
    work = ray_pool.Work(program, argument, num_clients, size)
    return functools.partial(self._pool.compute, work)

  def close(self) -> None:
    """Ends the actors and the local threads."""
    self._pool.close()
    self._local.close()
