"""A runtime that executes computations with TensorFlow in this process.

It runs every computation that TFF's own C++ runtime runs, several times faster
where rounds are short: nothing is serialized, and values stay tensors from one
step to the next. Clients run on a pool of threads. Errors of TensorFlow reach
the caller as TensorFlow's own (`tf.errors`).
"""

from typing import Optional

from tff_pfl.runtime import batched_clients as batched_clients_lib
from tff_pfl.runtime import client_mapper, interpreting
from tff_pfl.runtime import devices as devices_lib
from tff_pfl.system import cores


class InProcessRuntime(interpreting.InterpretingRuntime):
  """Runs computations in this process."""

  def __init__(
    self,
    *,
    devices: devices_lib.Devices = 'auto',
    max_concurrent_clients: Optional[int] = None,
    batched_clients: Optional[bool] = None,
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

    Raises:
      ValueError: If a number is out of range or there is no such device.
    """
    cores.concurrent_clients(max_concurrent_clients)  # Checked early.
    cores.divide(max_concurrent_clients)
    mapper, server_device = create_mapper(
      devices, max_concurrent_clients, batched_clients
    )
    super().__init__(mapper, server_device)


def create_mapper(
  devices: devices_lib.Devices = 'auto',
  max_concurrent_clients: Optional[int] = None,
  batched_clients: Optional[bool] = None,
) -> tuple[client_mapper.ClientMapper, str]:
  """Returns what runs the clients, and the device for the server's work.

  The arguments are those of `InProcessRuntime`.
  """
  names = devices_lib.resolve(devices)
  mapper = client_mapper.ThreadMapper(
    devices_lib.of_threads(names, max_concurrent_clients)
  )
  if batched_clients is None:
    batched_clients = any(map(devices_lib.is_gpu, names))
  if batched_clients:
    return batched_clients_lib.BatchedMapper(mapper), names[0]
  return mapper, names[0]
