"""A runtime that executes computations with TensorFlow in this process.

It runs this library's processes, their learning processes and TFF's
aggregators. For short rounds it is several times faster than TFF's own C++
runtime, because nothing is serialized and values stay tensors from one step to
the next. Unsupported computations, such as Keras models of `tff.learning` with
variables, raise an error that names the native runtime. Clients run on a pool
of threads. TensorFlow's errors (`tf.errors`) reach the caller unchanged.
"""

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_pfl import fields
from tff_pfl import tff_api as tff
from tff_pfl.runtime import (
  base,
  client_mapper,
  graph_functions,
  interpreter,
  lowering,
  python_values,
  threads,
)
from tff_pfl.runtime import batched_clients as batched_clients_lib
from tff_pfl.runtime import devices as devices_lib
from tff_pfl.system import cores, program_cache
from tff_pfl.system.private_api import cardinalities_utils

# Megabytes of clients' tensors that stay on a GPU from round to round.
DEVICE_CACHE_MB = 4096
_MAX_COMPUTATIONS_AT_A_TIME = 1000
_C_LIBRARY = ctypes.CDLL(None)


class InterpretingRuntime(base.Runtime):
  """A runtime with its server in this process and its clients on a mapper."""

  def __init__(
    self,
    mapper: client_mapper.ClientMapper,
    server_device: str,
    make_interpreter: Callable[..., Any] = interpreter.Interpreter,
  ):
    """Makes a runtime, which also closes the mapper when it closes.

    Args:
      mapper: Runs the clients' functions.
      server_device: Device of all work except the clients', as named by
        `devices.resolve`.
      make_interpreter: `interpreter.Interpreter`, or a function with the same
        arguments that returns an object with its method `run`.
    """
    super().__init__(_Engine(mapper, server_device, make_interpreter))


class InProcessRuntime(InterpretingRuntime):
  """A runtime in this process."""

  @fields.checked_call
  def __init__(
    self,
    *,
    devices: devices_lib.Devices = 'auto',
    max_concurrent_clients: Optional[fields.Size] = None,
    batched_clients: Optional[bool] = None,
    device_cache_mb: fields.CountOrZero = DEVICE_CACHE_MB,
    tf32: bool = False,
  ):
    """Prepares the runtime.

    Args:
      devices: Devices on which clients compute: auto, cpu, gpu, or names such
        as GPU:0,GPU:2. auto takes the GPUs, or the CPU if there are none, but a
        run trains on GPUs only if its rounds are large enough.
      max_concurrent_clients: Number of clients (or batches of clients) that
        compute at the same time, at least 1. None means one per GPU and, on the
        CPU, one per usable core.
      batched_clients: True to run clients with data of the same size (rounded
        up to a power of two) as one program. None means True on GPUs and False
        on the CPU, where it is slower.
      device_cache_mb: Megabytes of clients' examples and other tensors that
        stay on each GPU for later rounds, at least 0. TensorFlow keeps 32-bit
        integers in host memory.
      tf32: True to multiply matrices on GPUs in TensorFloat-32, which is faster
        and has 10 bits of mantissa instead of 23. This applies to the whole
        process.
    """
    cores.divide(max_concurrent_clients)
    mapper, server_device = create_mapper(
      devices,
      max_concurrent_clients,
      batched_clients,
      device_cache_mb=device_cache_mb,
      tf32=tf32,
    )
    super().__init__(mapper, server_device)
    self.batches_clients = isinstance(mapper, batched_clients_lib.BatchedMapper)

  @property
  def clients_per_call(self) -> int:
    """Clients per evaluation batch, as many as one program may have."""
    if self.batches_clients:
      return batched_clients_lib.MAX_CLIENTS
    return super().clients_per_call


def create_mapper(
  devices: devices_lib.Devices = 'auto',
  max_concurrent_clients: Optional[int] = None,
  batched_clients: Optional[bool] = None,
  *,
  device_cache_mb: int = DEVICE_CACHE_MB,
  tf32: bool = False,
) -> tuple[client_mapper.ClientMapper, str]:
  """Returns a mapper for the clients, and the device of the server's work.

  `InProcessRuntime` describes the arguments. The server works on the CPU,
  because its work is small and the caller has its values.
  """
  names = devices_lib.resolve(devices)
  uses_gpus = any(map(devices_lib.is_gpu, names))
  if uses_gpus:
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    if tf32:
      program_cache.abandon()
  if batched_clients is None:
    batched_clients = uses_gpus
  thread_devices = devices_lib.thread_devices(names, max_concurrent_clients)
  make = client_mapper.ClientMapper
  if batched_clients:
    make = batched_clients_lib.BatchedMapper
  return make(thread_devices, device_cache_mb << 20), devices_lib.FIRST_CPU


class _Lowered(NamedTuple):
  """An interpreter, with the conversions of its argument and result."""

  interpreter: Any
  read: Optional[Callable[[Any], Any]]
  write: Callable[[Any, int], Any]


class _Engine(base.Engine):
  """The shared state of a runtime's computations."""

  def __init__(self, mapper, server_device, make_interpreter):
    super().__init__()
    self._mapper = mapper
    self._make_interpreter = make_interpreter
    self._server_device = server_device
    self._library = graph_functions.FunctionLibrary()
    self._lock = threading.Lock()
    # By a computation's id, as long as the computation exists.
    self._lowered: dict[int, _Lowered] = {}
    # One thread per concurrent computation. They are reused, because TensorFlow
    # never frees its data about a thread.
    self._threads = threads.Threads(
      _MAX_COMPUTATIONS_AT_A_TIME, 'tff-pfl-computation'
    )

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Returns the computation's result.

    It is computed in another thread, so the caller's thread reacts to Ctrl-C at
    any time, and its active graph or device does not matter.
    """
    self.check_open()
    is_abandoned = threading.Event()
    outcome = self._threads.submit(self._compute, comp, arg, is_abandoned)
    try:
      return threads.result_of(outcome)
    except threads.ClosedError:
      self.check_open()
      raise
    finally:
      # After Ctrl-C or a request to exit.
      is_abandoned.set()

  def _compute(self, comp: Any, arg: Any, is_abandoned: threading.Event) -> Any:
    threads.abandon_if(lambda: is_abandoned.is_set() or self.is_closed)
    parameter_type = comp.type_signature.parameter
    num_clients = 0
    with tf.device(self._server_device):
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
    self._mapper.close()
    self._threads.close()
    self._lowered.clear()
    # glibc would keep memory that compilations have freed.
    if hasattr(_C_LIBRARY, 'malloc_trim'):
      _C_LIBRARY.malloc_trim(0)
