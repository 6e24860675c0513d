"""A gRPC connection to one TFF worker, with errors that say what happened.

TFF's own stub marks the loss of its worker as worth retrying, and TFF's
execution contexts then retry for ever, silently: a computation that kills its
worker never returns. Here the loss raises an error that TFF does not retry.
The errors of the user's computations pass unchanged, as `grpc.RpcError` with
TensorFlow's message in `details()`.
"""

import collections
from collections.abc import Callable
from typing import Any, Optional

import grpc
import tensorflow_federated as tff

from tff_pfl import errors
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
# Takes how long to wait for signs of a loss, in seconds; returns what to raise,
# or None if the worker is well.
FindLoss = Callable[[float], Optional[errors.RunError]]


class WorkerConnection:
  """A channel to one worker and the executors made on it."""

  def __init__(self, target: str, find_loss: FindLoss):
    """Opens the channel; it connects by itself at the first call.

    Args:
      target: The worker's gRPC address, "host:port".
      find_loss: Called when a call fails, such as `WorkerProcess.find_loss`.
        Takes how long to wait for signs of a loss, in seconds. Returns what to
        raise, or None if the worker is well: the error is the call's own.
    """
    self._channel = grpc.insecure_channel(target, _CHANNEL_OPTIONS)
    self._stub = _WorkerStub(self._channel, find_loss)
    self._executors = collections.OrderedDict()

  def wait_until_ready(self, timeout_seconds: float) -> None:
    """Returns when the channel is connected.

    Args:
      timeout_seconds: How long to wait.

    Raises:
      RunError: If it did not connect in time.
    """
    try:
      grpc.channel_ready_future(self._channel).result(timeout_seconds)
    except grpc.FutureTimeoutError:
      raise errors.RunError(
        f'The TFF worker did not answer within {timeout_seconds:g} seconds.'
      ) from None

  def executor(self, cardinalities: Any) -> tff.framework.RemoteExecutor:
    """Returns the executor for some numbers of clients, a new one if need be.

    Args:
      cardinalities: The number of members of each placement; `tff.CLIENTS` may
        be missing when the computation has no client-placed argument.

    Returns:
      An executor that lives in the worker.

    Raises:
      RunError: If the worker is lost; as `find_loss` returns it.
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
    self._stub.close()
    self._channel.close()
    self._executors.clear()


class _WorkerStub(tff.framework.RemoteExecutorStub):
  """TFF's worker protocol with this module's errors."""

  def __init__(self, channel: grpc.Channel, find_loss: FindLoss):
    self._stub = executor_pb2_grpc.ExecutorGroupStub(channel)
    self._find_loss = find_loss
    self._is_closed = False

  def close(self) -> None:
    """Makes the release of values a no-op: nothing is left to release."""
    self._is_closed = True

  def get_executor(self, request):
    return self._call(self._stub.GetExecutor, request)

  def create_value(self, request):
    return self._call(self._stub.CreateValue, request)

  def create_struct(self, request):
    return self._call(self._stub.CreateStruct, request)

  def create_call(self, request):
    return self._call(self._stub.CreateCall, request)

  def create_selection(self, request):
    return self._call(self._stub.CreateSelection, request)

  def compute(self, request):
    return self._call(self._stub.Compute, request)

  def dispose(self, request):
    self._release(self._stub.Dispose, request)

  def dispose_executor(self, request):
    self._release(self._stub.DisposeExecutor, request)

  def _call(self, method, request):
    """Returns the worker's answer."""
    try:
      return method(request)
    except grpc.RpcError as error:
      is_lost = error.code() in _LOST_CODES
      loss = self._find_loss(_SECONDS_FOR_END if is_lost else 0.0)
      if loss is not None:
        raise loss from error
      raise
    except ValueError as error:
      # What gRPC raises for a call on a closed channel.
      if self._is_closed:
        raise errors.RunError(
          'The connection to the TFF worker was closed.'
        ) from error
      raise

  def _release(self, method, request) -> None:
    """Releases what the worker holds, where there still is a worker.

    Finalizers of values call this at any moment, the interpreter's exit
    included; what cannot be released is gone with its worker.
    """
    if self._is_closed:
      return
    try:
      method(request, timeout=_SECONDS_TO_RELEASE)
    except (grpc.RpcError, ValueError):
      pass


def _key(cardinalities: Any) -> Any:
  """Returns a hashable form of `cardinalities`."""
  return tuple(sorted((str(name), n) for name, n in cardinalities.items()))
