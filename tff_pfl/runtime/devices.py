"""Clients' devices and threads."""

import contextlib
import contextvars
import itertools
import os
import threading
from collections.abc import Sequence
from typing import Optional, Union

import tensorflow as tf

from tff_pfl import errors
from tff_pfl.system import cores, environment, tf_library
from tff_pfl.system.private_api import eager_context

# Product of weights and a round's examples from which on a GPU is faster than
# 16 cores. docs/runtimes.md has the measurements.
_LEAST_WORK_OF_GPUS = 50_000_000
# 'auto', 'cpu', 'gpu', or TensorFlow's names of logical devices.
Devices = Union[str, Sequence[str]]
FIRST_CPU = '/device:CPU:0'
_NUM_THREADS = 'TF_NUM_INTRAOP_THREADS'


def resolve(devices: Devices = 'auto') -> list[str]:
  """Returns the names of the chosen devices.

  Args:
    devices: 'auto' (the GPUs, or the CPU if there are none), 'cpu', 'gpu' (all
      GPUs), or a sequence of TensorFlow's device names, such as 'GPU:1'.

  Returns:
    Names of logical devices, such as '/device:GPU:0'.
  """
  kinds = {'cpu': ['CPU'], 'gpu': ['GPU'], 'auto': ['GPU', 'CPU']}
  if isinstance(devices, str):
    errors.expect(
      devices in kinds,
      'devices',
      f'one of {", ".join(kinds)}, or a list of device names',
      devices,
    )
    for kind in kinds[devices]:
      names = _names(kind)
      if names:
        return names
    raise ValueError(
      errors.message(
        'devices', "'auto' or 'cpu' (TensorFlow finds no GPU)", devices
      )
    )
  known = _names()
  errors.expect(devices, 'devices', 'at least one device', devices)
  resolved = [_short_name(str(name)) for name in devices]
  for name, device in zip(resolved, devices):
    errors.expect(
      name in known,
      'devices',
      f'among {", ".join(known)} (or auto, cpu, gpu)',
      device,
    )
  return resolved


def is_gpu(device: Optional[str]) -> bool:
  """Returns True if a name from `resolve` is a GPU."""
  return device is not None and ':GPU:' in device


_traced_for = contextvars.ContextVar('traced_for', default=None)
_for_compiled = contextvars.ContextVar('for_compiled', default=None)


@contextlib.contextmanager
def _set(variable, value):
  token = variable.set(value)
  try:
    yield
  finally:
    variable.reset(token)


def tracing_for(
  device: Optional[str],
) -> contextlib.AbstractContextManager[None]:
  """Sets the device of functions that are traced in this context."""
  return _set(_traced_for, device)


def traced_for_gpu() -> bool:
  """Returns True if the current graph is traced for a GPU."""
  return is_gpu(_traced_for.get())


def are_open(devices: Devices) -> bool:
  """Returns True for 'auto' if there are GPUs, which leaves a choice."""
  return devices == 'auto' and bool(tf.config.list_physical_devices('GPU'))


def for_work(num_weights: int, num_examples: int) -> tuple[str, str]:
  """Chooses between GPUs and the CPU by the size of a round.

  Args:
    num_weights: Number of the model's weights.
    num_examples: Number of a cohort's training examples.

  Returns:
    'gpu' or 'cpu', and a line that explains the choice.
  """
  is_large = num_weights * num_examples >= _LEAST_WORK_OF_GPUS
  kind = 'gpu' if is_large else 'cpu'
  return kind, (
    f'Clients compute on the {kind.upper()} (--devices), which is faster for '
    f'{num_weights:,} weights and {num_examples:,} examples a round.'
  )


def thread_devices(
  devices: Sequence[str], num_threads: Optional[int] = None
) -> tuple[str, ...]:
  """Returns the device of each thread that runs clients.

  A GPU has one thread, which keeps it busy. The CPU has one per core, divided
  among the logical CPU devices.

  Args:
    devices: Names from `resolve`.
    num_threads: Number of threads, at least 1, assigned to the devices in turn.
      None uses the numbers above.
  """
  if num_threads is None:
    cpus = [device for device in devices if not is_gpu(device)]
    gpus = [device for device in devices if is_gpu(device)]
    num_cpu_threads = max(len(cpus), cores.num_usable_cores())
    return (*gpus, *_in_turn(cpus, num_cpu_threads if cpus else 0))
  return _in_turn(devices, num_threads)


_adding = threading.Lock()
# Names of the devices that this module has added.
_added: list[str] = []


def for_compiled(thread_devices: Sequence[str]) -> list[Optional[str]]:
  """Returns the device of each thread for programs that XLA compiles.

  XLA continues a program on a thread of its device once more than eight of its
  kernels are ready. A CPU device has as many threads as one client may use.
  Several clients on one device would therefore take turns, so the first call
  with several threads adds CPU devices with threads of their own.

  Args:
    thread_devices: The result of `thread_devices`.

  Returns:
    A device, or None if a thread's compiled programs stay on its device. This
    holds on a GPU, with devices that the user has made, and if TensorFlow ran
    before `cores.divide`.
  """
  if list(thread_devices).count(FIRST_CPU) < 2:
    return [None] * len(thread_devices)
  with _adding:
    if not _added:
      _add_cpus()
    cpus = itertools.cycle([FIRST_CPU, *_added] if _added else [None])
  return [next(cpus) if name == FIRST_CPU else None for name in thread_devices]


def _add_cpus():
  """Adds a CPU device for each core but one, if TensorFlow can do it.

  TensorFlow adds devices only once, so a later runtime may need more of them
  than the first one.
  """
  num_threads = tf.config.threading.get_intra_op_parallelism_threads() or int(
    os.environ.get(_NUM_THREADS) or 0
  )
  if not num_threads or _names('CPU') != [FIRST_CPU]:
    return
  # TensorFlow reads the variable when it first makes such a device.
  variables = {_NUM_THREADS: str(num_threads)}
  with environment.changed(variables), tf_library.own_threads() as are_own:
    if are_own:
      number = cores.num_usable_cores()
      _added.extend(f'/device:CPU:{i}' for i in range(1, number))
      eager_context.context().set_logical_cpu_devices(number)


def compiled_on(
  device: Optional[str],
) -> contextlib.AbstractContextManager[None]:
  """Sets the device of compiled programs that are called in this context."""
  return _set(_for_compiled, device)


def of_compiled() -> Optional[str]:
  """Returns the device that `compiled_on` has set."""
  return _for_compiled.get()


def _names(kind: Optional[str] = None) -> list[str]:
  """Returns the names of logical devices that this module has not added."""
  names = [_short_name(d.name) for d in tf.config.list_logical_devices(kind)]
  return [name for name in names if name not in _added]


def _short_name(name: str) -> str:
  """Converts 'gpu:0' or a full name to '/device:GPU:0'."""
  parts = name.rsplit(':', 2)
  kind, index = parts[-2:] if len(parts) > 1 else (name, '0')
  return f'/device:{kind.split("/")[-1].upper()}:{index}'


def _in_turn(devices: Sequence[str], number: int) -> tuple[str, ...]:
  return tuple(devices[i % len(devices)] for i in range(number))
