"""A runtime that has the clients' computations done by several TFF workers.

This process does what the server does; the workers, on this and other machines,
do what the clients do (see `remote_mapper` for how it is divided). They are
TFF's own: `binaries.worker` starts one. The result is the same for any number
of workers.

* A worker that dies, hangs or cannot be reached any more is reported in a
  warning, and the others repeat its share. Client work in this library is a
  pure function of its arguments and seed, so that gives the same result. When
  none is left, the computation raises `RunError`.
* A lost worker that answers again, as one that was started again does, takes
  part from then on.

What is sent is neither encrypted nor authenticated; `binaries.worker` says how
to tunnel it. The workers run TensorFlow on CPU only.
"""

from collections.abc import Sequence
from typing import Optional

from tff_pfl import errors
from tff_pfl.runtime import (
  in_process,
  interpreting,
  remote_mapper,
  worker_pool,
)


class RemoteRuntime(interpreting.InterpretingRuntime):
  """Runs the clients' computations on several workers."""

  def __init__(
    self,
    *,
    workers: Sequence[str],
    max_concurrent_clients: Optional[int] = None,
    connect_timeout_seconds: float = 10.0,
  ):
    """Connects to the workers.

    Args:
      workers: Their addresses, "host:port", or "[host]:port" for IPv6; at least
        one, all different.
      max_concurrent_clients: How many clients' computations a worker is given
        at the same time, at least 1; None for the number of usable CPU cores of
        this machine. Right is what the workers were started with
        (`--max_concurrent_clients`), their number of cores by default.
      connect_timeout_seconds: How long to wait for the workers, more than 0.

    Raises:
      RunError: If a worker does not answer; the message names all these.
      ValueError: If an address is no address, or a number is out of range.
    """
    errors.expect(
      connect_timeout_seconds > 0,
      'connect_timeout_seconds',
      'positive',
      connect_timeout_seconds,
    )
    pool = worker_pool.WorkerPool(workers)
    try:
      local, server_device = in_process.create_mapper('cpu')
      mapper = remote_mapper.RemoteMapper(pool, local, max_concurrent_clients)
      super().__init__(mapper, server_device)
      pool.connect(connect_timeout_seconds)
    except BaseException:
      pool.close()
      raise
