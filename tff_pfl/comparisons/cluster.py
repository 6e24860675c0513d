"""Trials on a Ray cluster: a task for each, instead of a process here."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from tff_pfl import errors
from tff_pfl.system import child_processes, ray_cluster

_SECONDS_BETWEEN_LOOKS = 0.1


class Cluster(NamedTuple):
  """A Ray cluster for trials, and the resources of each.

  Attributes:
    address: See `ray_cluster.connect`.
    cpus_per_run: CPU cores of a trial, at least 1.
    gpus_per_run: GPUs of a trial; fractions share one.
  """

  address: str = ray_cluster.LOCAL
  cpus_per_run: int = 1
  gpus_per_run: float = 0.0


def connect(cluster: Cluster) -> Callable[..., Task]:
  """Returns a function that starts a program on some node of a cluster.

  It takes the arguments of `_run_in_child`. Raises as `ray_cluster.connect`
  does.
  """
  ray = ray_cluster.connect(cluster.address)
  # Ray repeats the task of a process or node that died; the trial resumes.
  run = ray.remote(_run_in_child).options(
    num_cpus=cluster.cpus_per_run,
    num_gpus=cluster.gpus_per_run,
    max_retries=3,
  )
  return lambda *arguments: Task(ray, run.remote(*arguments))


class Task:
  """A program that runs as a Ray task, with methods like `subprocess.Popen`.

  Attributes:
    returncode: The program's exit status; None while it runs.
  """

  def __init__(self, ray: Any, future: Any):
    self._ray = ray
    self._future = future
    self.returncode: Optional[int] = None

  def poll(self) -> Optional[int]:
    """Returns the status if the program has ended."""
    return self.wait(0)

  def wait(self, timeout: Optional[float] = None) -> Optional[int]:
    """Waits so many seconds for the end; None for as long as it takes.

    Raises:
      RunError: If the node cannot see the trial's folder.
    """
    if self.returncode is None:
      ready, _ = self._ray.wait([self._future], timeout=timeout)
      if ready:
        self.returncode = self._result()
    return self.returncode

  def terminate(self) -> None:
    """Asks the program to end."""
    self._ray.cancel(self._future)

  def kill(self) -> None:
    """Ends the program."""
    self._ray.cancel(self._future, force=True)

  def _result(self) -> int:
    try:
      return self._ray.get(self._future)
    except self._ray.exceptions.RayTaskError as error:
      if isinstance(error.cause, errors.RunError):
        raise error.cause from None
      return 1
    except self._ray.exceptions.RayError:
      return -9


def _run_in_child(
  arguments: list[str], log_path: str, environment: dict[str, str]
) -> int:
  """Runs a program on the node of a task; returns its status.

  Args:
    arguments: The program and its arguments. It ends with the task.
    log_path: Path of its log, in an existing folder.
    environment: Variables besides those of the node.
  """
  if not os.path.isdir(os.path.dirname(log_path)):
    raise errors.RunError(
      f'{socket.gethostname()} does not see {os.path.dirname(log_path)}: '
      'choose an output folder that all nodes of the cluster share.'
    )
  with open(log_path, 'w', encoding='utf-8') as log:
    process = subprocess.Popen(
      child_processes.launch_command(*arguments),
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      env={**os.environ, **environment},
      start_new_session=True,
    )
    try:
      # Ray's request to end is noticed between two waits.
      while process.poll() is None:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
      return process.returncode
    finally:
      if process.poll() is None:
        process.terminate()
        try:
          process.wait(8)
        except subprocess.TimeoutExpired:
          process.kill()
          process.wait()
