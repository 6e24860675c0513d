"""Trials on a Ray cluster, with a task for each instead of a local process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Optional

from tff_pfl import errors, fields
from tff_pfl.system import child_processes, ray_cluster

_SECONDS_BETWEEN_LOOKS = 0.1
_GRACE_SECONDS = 8.0


@fields.dataclass
class Cluster:
  """A Ray cluster for trials, and the resources of each trial.

  Attributes:
    address: See `ray_cluster.connect`.
    cpus_per_run: CPU cores of each run.
    gpus_per_run: GPUs of each run. Runs with a fraction share a GPU.
  """

  address: str = ray_cluster.LOCAL
  cpus_per_run: fields.Count = 1
  gpus_per_run: fields.NonNegative = 0.0


def connect(cluster: Cluster) -> Callable[..., Task]:
  """Returns a function like `child_processes.start`, on a node of a cluster.

  It raises the errors of `ray_cluster.connect`.
  """
  ray = ray_cluster.connect(cluster.address)
  # Ray repeats a task if its process or node dies, and the trial resumes.
  run = ray.remote(_run_in_child).options(
    num_cpus=cluster.cpus_per_run,
    num_gpus=cluster.gpus_per_run,
    max_retries=3,
  )
  return lambda *arguments: Task(ray, run.remote(*arguments))


class Task:
  """A Ray task that runs a process, used like a `multiprocessing` process.

  Attributes:
    sentinel: File descriptor that becomes ready at the end.
  """

  def __init__(self, ray: Any, reference: Any):
    self._ray = ray
    self._reference = reference
    self._exitcode: Optional[int] = None
    self.sentinel, other_end = os.pipe()
    reference.future().add_done_callback(lambda _: os.close(other_end))

  @property
  def exitcode(self) -> Optional[int]:
    """The process's exit status, or None while it runs.

    Raises:
      RunError: If the node cannot see the trial's folder.
    """
    self.join(0)
    return self._exitcode

  def join(self, timeout: Optional[float] = None) -> None:
    """Waits for the end, for at most `timeout` seconds unless None."""
    if self._exitcode is None:
      ready, _ = self._ray.wait([self._reference], timeout=timeout)
      if ready:
        self._exitcode = self._result()
        os.close(self.sentinel)

  def terminate(self) -> None:
    """Asks the process to end."""
    self._ray.cancel(self._reference)

  def kill(self) -> None:
    """Ends the process."""
    self._ray.cancel(self._reference, force=True)

  def _result(self) -> int:
    try:
      return self._ray.get(self._reference)
    except self._ray.exceptions.RayTaskError as error:
      if isinstance(error.cause, errors.RunError):
        raise error.cause from None
      return 1
    except self._ray.exceptions.RayError:
      return -9


def _run_in_child(
  module: str, argument: str, log_path: str, environment: dict[str, str]
) -> int:
  """Runs a process on the node of a task, and returns its exit status."""
  if not os.path.isdir(os.path.dirname(log_path)):
    raise errors.RunError(
      f'{socket.gethostname()} cannot see {os.path.dirname(log_path)}: '
      'choose an output folder that all nodes of the cluster share.'
    )
  process = child_processes.start(module, argument, log_path, environment)
  try:
    # Python notices Ray's request to end only between two waits.
    while process.exitcode is None:
      process.join(_SECONDS_BETWEEN_LOOKS)
    return process.exitcode
  finally:
    child_processes.end([process], _GRACE_SECONDS)
