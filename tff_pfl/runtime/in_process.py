"""A runtime that executes computations with TensorFlow in this process.

It runs every computation that TFF's own C++ runtime runs, several times faster
where rounds are short: nothing is serialized, and values stay tensors from one
step to the next. Clients run on a pool of threads. Errors of TensorFlow reach
the caller as TensorFlow's own (`tf.errors`).
"""

import concurrent.futures
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import errors
from tff_pfl.runtime import (
  base,
  client_mapper,
  cores,
  environment,
  graph_functions,
  interpreter,
  lowering,
  python_values,
  threads,
)
from tff_pfl.runtime import batched_clients as batched_clients_lib
from tff_pfl.runtime import cancellation as cancellation_lib
from tff_pfl.runtime import devices as devices_lib
from tff_pfl.runtime.private_api import cardinalities_utils

# Megabytes of what clients have that stay on a GPU from round to round.
DEVICE_CACHE_MB = 4096
_MAX_COMPUTATIONS_AT_A_TIME = 1000
_SECONDS_FOR_ABANDONED_CALL = 1.0


class InterpretingRuntime(base.Runtime):
  """Does the server's work in this process; a mapper runs the clients'."""

  def __init__(
    self,
    mapper: client_mapper.ClientMapper,
    server_device: str,
    make_interpreter: Callable[..., Any] = interpreter.Interpreter,
  ):
    """Makes a runtime that closes the mapper with itself.

    Args:
      server_device: Where all but the clients' work is computed, a name that
        `devices.resolve` gave.
      make_interpreter: Has the arguments of `interpreter.Interpreter`, and
        returns something with its method `run`.
    """
    super().__init__(_Engine(mapper, server_device, make_interpreter))


class InProcessRuntime(InterpretingRuntime):
  """Runs computations in this process."""

  def __init__(
    self,
    *,
    devices: devices_lib.Devices = 'auto',
    max_concurrent_clients: Optional[int] = None,
    batched_clients: Optional[bool] = None,
    device_cache_mb: int = DEVICE_CACHE_MB,
    tf32: bool = False,
    cuda_graphs: bool = True,
  ):
    """Prepares the runtime.

    Args:
      devices: Where clients compute: 'auto' (the GPUs, or the CPU where there
        is none), 'cpu', 'gpu', or a list of TensorFlow's device names.
      max_concurrent_clients: How many clients' computations (or batches of
        them) run at the same time, at least 1; None for one on each GPU, and on
        the CPU one for each usable core.
      batched_clients: Whether clients of equal shapes run as one program (see
        `batched_clients`); None for yes on GPUs, no on the CPU, where it is
        slower.
      device_cache_mb: Megabytes of clients' examples and other tensors that
        stay on each GPU for later rounds, at least 0. Integers of 32 bits do
        not: TensorFlow has them in the host's memory.
      tf32: Whether GPUs multiply matrices in TensorFloat-32, which is faster
        and has 10 bits of a mantissa for 23. It holds for all of the process
        from here on.
      cuda_graphs: Whether XLA makes CUDA graphs of loops of training on GPUs.
        False holds for all of the process, if it comes before XLA compiles for
        the first time.

    Raises:
      ValueError: If a number is out of range or there is no such device.
    """
    cores.concurrent_clients(max_concurrent_clients)  # Checked early.
    cores.divide(max_concurrent_clients)
    super().__init__(
      *create_mapper(
        devices,
        max_concurrent_clients,
        batched_clients,
        device_cache_mb=device_cache_mb,
        tf32=tf32,
        cuda_graphs=cuda_graphs,
      )
    )


def create_mapper(
  devices: devices_lib.Devices = 'auto',
  max_concurrent_clients: Optional[int] = None,
  batched_clients: Optional[bool] = None,
  *,
  device_cache_mb: int = DEVICE_CACHE_MB,
  tf32: bool = False,
  cuda_graphs: bool = True,
) -> tuple[client_mapper.ClientMapper, str]:
  """Returns what runs the clients, and the device for the server's work.

  The arguments are those of `InProcessRuntime`. All but the clients' work is
  for the CPU: it is little, and its values are the callers'.
  """
  errors.expect_int('device_cache_mb', device_cache_mb, 0)
  if not cuda_graphs:
    environment.leave_out_cuda_graphs()
  names = devices_lib.resolve(devices)
  uses_gpus = any(map(devices_lib.is_gpu, names))
  if uses_gpus:
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
  if batched_clients is None:
    batched_clients = uses_gpus
  thread_devices = devices_lib.thread_devices(names, max_concurrent_clients)
  make = client_mapper.ClientMapper
  if batched_clients:
    make = batched_clients_lib.BatchedMapper
  return make(thread_devices, device_cache_mb << 20), '/device:CPU:0'


class _Lowered(NamedTuple):
  """A computation that can be run, and its argument's and result's form."""

  interpreter: Any
  read: Optional[Callable[[Any], Any]]
  write: Callable[[Any, int], Any]


class _Engine(base.Engine):
  """What the computations of one runtime share."""

  def __init__(self, mapper, server_device, make_interpreter):
    super().__init__()
    self._mapper = mapper
    self._make_interpreter = make_interpreter
    self._server_device = server_device
    self._library = graph_functions.FunctionLibrary()
    self._lock = threading.Lock()
    # From the id of a computation, as long as it is there.
    self._lowered: dict[int, _Lowered] = {}
    # As many as there are computations at a time. They are used again: what
    # TensorFlow keeps of a thread, it keeps for ever.
    self._threads = threads.Threads(
      _MAX_COMPUTATIONS_AT_A_TIME, 'tff-pfl-computation'
    )
    self._cancellations = weakref.WeakSet()

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Returns the computation's result.

    The work is done in another thread, so that the caller's reacts to Ctrl-C at
    any time, whatever graph or device it has active.
    """
    self.check_open()
    cancellation = cancellation_lib.Cancellation()
    with self._lock:
      self._cancellations.add(cancellation)
    outcome = self._threads.submit(self._compute, comp, arg, cancellation)
    try:
      return threads.result_of(outcome)
    except (tf.errors.CancelledError, threads.ClosedError):
      self.check_open()
      raise
    except BaseException:
      if not outcome.done():
        # Ctrl-C or a request to exit.
        cancellation.cancel()
        concurrent.futures.wait([outcome], _SECONDS_FOR_ABANDONED_CALL)
      raise

  def _compute(
    self, comp: Any, arg: Any, cancellation: cancellation_lib.Cancellation
  ) -> Any:
    parameter_type = comp.type_signature.parameter
    num_clients = 0
    with cancellation.scope(), tf.device(self._server_device):
      lowered = self._lower(comp)
      argument = None
      if parameter_type is not None:
        argument = lowered.read(arg)
        cardinalities = cardinalities_utils.infer_cardinalities(
          arg, parameter_type
        )
        num_clients = cardinalities.get(tff.CLIENTS, 0)
      result = lowered.interpreter.run(argument, num_clients)
      return lowered.write(result, num_clients)

  def _lower(self, computation: tff.framework.ConcreteComputation) -> _Lowered:
    """Returns the lowered computation."""
    key = id(computation)
    lowered = self._lowered.get(key)
    if lowered is None:
      signature = computation.type_signature
      lowered = _Lowered(
        self._make_interpreter(
          lowering.lower(computation), self._library, self._mapper
        ),
        signature.parameter and python_values.reader(signature.parameter),
        python_values.writer(signature.result),
      )
      forget = weakref.finalize(computation, self._lowered.pop, key, None)
      forget.atexit = False
      self._lowered[key] = lowered
    return lowered

  def close(self) -> None:
    with self._lock:
      if self.is_closed:
        return
      super().close()
      under_way = list(self._cancellations)
    for cancellation in under_way:
      cancellation.cancel()
    self._mapper.close()
    self._threads.close()
    self._library.clear()
    self._lowered.clear()
