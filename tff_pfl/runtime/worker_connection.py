"""A gRPC connection to one TFF worker, with errors that say what happened.

TFF's own stub marks the loss of its worker as worth retrying, and TFF's
execution contexts then retry for ever, silently: a computation that kills its
worker never returns. Here the loss raises an error that TFF does not retry.
The errors of the user's computations pass unchanged, as `grpc.RpcError` with
TensorFlow's message in `details()`.
"""

import collections
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import grpc
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import worker_process
from tff_pfl.runtime.private_api import executor_pb2_grpc

# gRPC's limit is a signed 32-bit number of bytes.
_MAX_MESSAGE_BYTES = 2**31 - 1
_CHANNEL_OPTIONS = (
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  # A proxy set in the environment must not carry the traffic.
  ('grpc.enable_http_proxy', 0),
)
# A worker keeps its loaded graphs for each number of clients; the least
# recently used beyond this many are given up.
_MAX_EXECUTORS = 16
# The worker frees values in batches of this many. TFF's default of 20 keeps the
# arguments and results of several past rounds alive.
_DISPOSE_BATCH_SIZE = 4
# What gRPC answers when the connection breaks or is closed, and how long to
# wait for the worker's end then: the kernel closes a dying process's sockets
# just before the process is gone.
_LOST_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_SECONDS_FOR_END = 2.0
# A worker does not answer a release while it computes with what is released;
# it does what was asked in any case.
_SECONDS_TO_RELEASE = 1.0


class WorkerConnection:
  """A channel to one worker and the executors made on it."""

  def __init__(self, worker: worker_process.WorkerProcess):
    """Opens the channel; it connects by itself at the first call."""
    self._channel = grpc.insecure_channel(worker.target, _CHANNEL_OPTIONS)
    self._stub = _Stub(self._channel, worker)
    self._executors = collections.OrderedDict()

  def executor(self, cardinalities: Any) -> tff.framework.RemoteExecutor:
    """Returns the executor for some numbers of clients, a new one if need be.

    Args:
      cardinalities: The number of members of each placement; `tff.CLIENTS` may
        be missing when the computation has no client-placed argument.

    Returns:
      An executor that lives in the worker.

    Raises:
      RunError: If the worker is lost; see `WorkerProcess.check`.
    """
    key = _key(cardinalities)
    if key not in self._executors:
      executor = tff.framework.RemoteExecutor(
        self._stub, dispose_batch_size=_DISPOSE_BATCH_SIZE
      )
      executor.set_cardinalities({tff.CLIENTS: 0, **cardinalities})
      self._executors[key] = executor
      if len(self._executors) > _MAX_EXECUTORS:
        _, oldest = self._executors.popitem(last=False)
        oldest.close()
    self._executors.move_to_end(key)
    return self._executors[key]

  def close_executor(self, cardinalities: Any) -> None:
    """Gives up the executor for these numbers of clients, if there is one."""
    executor = self._executors.pop(_key(cardinalities), None)
    if executor is not None:
      executor.close()

  def close(self) -> None:
    """Closes the channel; calls under way end with an error."""
    self._stub.is_closed = True  # Nothing is left to release.
    self._channel.close()
    self._executors.clear()


class _Stub:
  """TFF's worker protocol (`RemoteExecutorStub`) with this module's errors."""

  def __init__(
    self, channel: grpc.Channel, worker: worker_process.WorkerProcess
  ):
    self._stub = executor_pb2_grpc.ExecutorGroupStub(channel)
    self._worker = worker
    self.is_closed = False

  def __getattr__(self, name: str) -> Callable[[Any], Any]:
    call = self._release if name.startswith('dispose') else self._call
    method = getattr(self._stub, name.title().replace('_', ''))
    return functools.partial(call, method)

  def _call(self, method, request):
    """Returns the worker's answer."""
    try:
      return method(request)
    except grpc.RpcError as error:
      is_lost = error.code() in _LOST_CODES
      self._worker.check(_SECONDS_FOR_END if is_lost else 0.0)
      raise
    except ValueError as error:
      # What gRPC raises for a call on a closed channel.
      if self.is_closed:
        raise errors.RunError(
          'The connection to the TFF worker was closed.'
        ) from error
      raise

  def _release(self, method, request) -> None:
    """Releases what the worker holds, where there still is a worker.

    Finalizers of values call this at any moment, the interpreter's exit
    included; what cannot be released is gone with its worker.
    """
    if not self.is_closed:
      with contextlib.suppress(grpc.RpcError, ValueError):
        method(request, timeout=_SECONDS_TO_RELEASE)


def _key(cardinalities: Any) -> Any:
  """Returns a hashable form of `cardinalities`."""
  return tuple(sorted((str(name), n) for name, n in cardinalities.items()))
