"""The TFF workers of one runtime, on any machines: who is there, who was lost.

A worker that ends is noticed at once, for its connection breaks. One that hangs
or whose machine is gone is noticed by the health checks that are made while it
is needed. A lost worker belongs to the pool again as soon as it answers again;
trying that goes on in the background, so nobody waits for it.
"""

import collections
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, Optional

import grpc
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import worker_connection, worker_port

# A busy worker, or a slow network full of data, may take long to answer.
_SECONDS_TO_ANSWER = 20.0
_SECONDS_TO_LEAVE = 0.5
_MAX_FUNCTIONS = 64


class WorkerLostError(errors.RunError):
  """A worker ended, or cannot be reached any more."""


class Session:
  """What one connection to a worker holds there; for one thread at a time."""

  def __init__(self, address: str):
    """Opens the connection; it is made at the first call.

    Args:
      address: "host:port".
    """
    self._address = address
    self._functions = collections.OrderedDict()
    self.connection = worker_connection.WorkerConnection(
      address, self._find_loss
    )

  def executor(self) -> tff.framework.RemoteExecutor:
    """Returns what computes in the worker for one party.

    Raises:
      WorkerLostError: If the worker is lost; so do the executor's methods.
    """
    return self.connection.executor({})

  async def function(self, key: Any, proto: Any) -> Any:
    """Returns a computation that the worker keeps for further calls.

    Args:
      key: Equal for equal computations.
      proto: The serialized computation.

    Returns:
      The executor's value.

    Raises:
      WorkerLostError: If the worker is lost.
    """
    if key not in self._functions:
      self._functions[key] = await self.executor().create_value(proto)
      if len(self._functions) > _MAX_FUNCTIONS:
        self._functions.popitem(last=False)
    self._functions.move_to_end(key)
    return self._functions[key]

  def _find_loss(self, patience_seconds: float) -> Optional[errors.RunError]:
    """What to raise for a failed call; no patience means that it got through.

    Waiting would tell nothing: the process is not ours to watch.
    """
    if not patience_seconds:
      return None
    return WorkerLostError(f'The TFF worker {self._address} was lost.')


class Worker:
  """One worker, with one session at a time."""

  def __init__(self, address: str):
    """Takes the worker for well until it turns out to be lost.

    Args:
      address: "host:port".
    """
    self._address = address
    self._session = Session(address)
    self._check = None
    self._is_lost = False

  @property
  def address(self) -> str:
    """Where it is, "host:port"."""
    return self._address

  @property
  def session(self) -> Session:
    """The session, until the worker is lost or `renew` is called."""
    return self._session

  @property
  def is_lost(self) -> bool:
    """Whether it was lost and is not back."""
    return self._is_lost

  def try_again(self) -> bool:
    """Returns whether a lost worker answers again; does not wait for it."""
    if not self._check.done():
      return False
    self._is_lost = not worker_connection.has_answered(self._check)
    if self._is_lost:
      self.begin_to_reach(_SECONDS_TO_ANSWER)
    return not self._is_lost

  def begin_to_reach(self, timeout_seconds: float) -> grpc.Future:
    """Tries in the background to reach it; returns the health check."""
    self._check = self._session.connection.check_health(
      timeout_seconds, wait_for_connection=True
    )
    return self._check

  def begin_to_watch(self) -> None:
    """Begins a series of health checks."""
    self._check = self._session.connection.check_health(_SECONDS_TO_ANSWER)

  def find_loss(self) -> Optional[str]:
    """Returns why it must be taken for lost, None while it seems well.

    To be called again and again after `begin_to_watch`.
    """
    if not self._check.done():
      return None
    if worker_connection.has_answered(self._check):
      self.begin_to_watch()
      return None
    if self._check.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
      return f'it did not answer for {_SECONDS_TO_ANSWER:g} seconds'
    return 'the connection broke'

  def lose(self) -> None:
    """Ends the session and begins to try to reach the worker again."""
    self.renew()
    self._is_lost = True
    self.begin_to_reach(_SECONDS_TO_ANSWER)

  def renew(self) -> None:
    """Replaces the session; calls under way end with `WorkerLostError`."""
    self.close()
    self._session = Session(self._address)

  def close(self) -> None:
    """Ends the session."""
    self._session.connection.close()


class WorkerPool:
  """The workers of one runtime."""

  def __init__(self, addresses: Sequence[str]):
    """Prepares the connections.

    Args:
      addresses: "host:port" of each, at least one, all different.

    Raises:
      ValueError: If an address is not like that.
    """
    _check_addresses(addresses)
    self._workers = [Worker(address) for address in addresses]
    self._is_closed = False

  @property
  def workers(self) -> list[Worker]:
    """All workers, the lost ones included."""
    return self._workers

  @property
  def is_closed(self) -> bool:
    """Whether `close` has been called."""
    return self._is_closed

  def connect(self, timeout_seconds: float) -> None:
    """Waits until all workers answer.

    Args:
      timeout_seconds: How long to wait.

    Raises:
      RunError: If one does not; the message names all of these.
    """
    checks = [
      worker.begin_to_reach(timeout_seconds) for worker in self._workers
    ]
    _wait(checks, timeout_seconds + 1.0)
    missing = [
      worker.address
      for worker, check in zip(self._workers, checks)
      if not check.done() or not worker_connection.has_answered(check)
    ]
    if missing:
      raise errors.RunError(
        f'No TFF worker answers at {", ".join(missing)} (waited '
        f'{timeout_seconds:g} seconds); is it running, and can this machine '
        'reach it?'
      )

  def abandon(self) -> None:
    """Gives up all that is under way; the workers stay in the pool.

    A worker finishes what it has begun.
    """
    self._leave()
    for worker in self._workers:
      if not worker.is_lost:
        worker.renew()

  def close(self) -> None:
    """Closes the connections for good; calls under way end with an error."""
    if not self._is_closed:
      self._is_closed = True
      self._leave()
    # Again too: a worker may have been given another session meanwhile.
    for worker in self._workers:
      worker.close()

  def _leave(self) -> None:
    """Has the workers free what they hold for us."""
    answers = []
    for worker in self._workers:
      if not worker.is_lost:
        answers += worker.session.connection.begin_release()
    _wait(answers, _SECONDS_TO_LEAVE)


def _check_addresses(addresses: Sequence[str]) -> None:
  errors.expect(
    not isinstance(addresses, str) and list(addresses),
    'workers',
    "at least one 'host:port'",
    addresses,
  )
  for index, address in enumerate(addresses):
    worker_port.split_address(address, 'workers')
    errors.expect(
      address not in addresses[:index],
      'workers',
      'different addresses',
      f'{address} twice',
    )


def _wait(futures: Iterable[grpc.Future], timeout_seconds: float) -> None:
  """Waits until the calls have ended, well or not."""
  deadline = time.monotonic() + timeout_seconds
  for future in futures:
    with contextlib.suppress(
      grpc.FutureTimeoutError, grpc.FutureCancelledError
    ):
      future.exception(max(0.0, deadline - time.monotonic()))
