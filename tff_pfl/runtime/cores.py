"""Clients that run side by side share the CPU's cores."""

import os
from typing import Optional

import tensorflow as tf
from absl import logging

from tff_pfl import errors


def num_usable_cores() -> int:
  """Returns the number of CPU cores that this process may run on."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def concurrent_clients(max_concurrent_clients: Optional[int]) -> int:
  """Returns how many clients run at the same time.

  Args:
    max_concurrent_clients: Their number, at least 1; None for one on each
      usable core.

  Raises:
    ValueError: If it is out of range.
  """
  if max_concurrent_clients is None:
    return num_usable_cores()
  errors.expect(
    max_concurrent_clients >= 1,
    'max_concurrent_clients',
    'at least 1',
    max_concurrent_clients,
  )
  return max_concurrent_clients


def threads_per_client(num_clients: Optional[int] = None) -> int:
  """Returns how many threads may work on one operation of a client.

  Args:
    num_clients: How many clients run at the same time, at least 1; None for one
      on each core.
  """
  cores = num_usable_cores()
  return max(1, cores // (num_clients or cores))


def divide(num_clients: Optional[int] = None) -> None:
  """Has TensorFlow's operations use a client's share of the cores.

  By default TensorFlow splits each operation over all cores. Clients that run
  side by side, one on each core, then fight for them: rounds take twice as long
  on two cores, and their rounding depends on the number of cores.

  This can be set only before TensorFlow runs its first operation: programs do
  it when they start, `import tff_pfl as pfl` when one of its names is first
  used, and each runtime. `TF_NUM_INTRAOP_THREADS` in the environment, or
  `tf.config.threading.set_intra_op_parallelism_threads`, decides otherwise.

  Args:
    num_clients: How many clients run at the same time, at least 1; None for one
      on each core.
  """
  if os.environ.get('TF_NUM_INTRAOP_THREADS'):
    return
  share = threads_per_client(num_clients)
  current = tf.config.threading.get_intra_op_parallelism_threads()
  if current == share:
    return
  try:
    tf.config.threading.set_intra_op_parallelism_threads(share)
  except RuntimeError:
    logging.log_first_n(
      logging.WARNING,
      'Rounds will take longer: TensorFlow was used before, and has %s for '
      'each operation where the clients that run at the same time leave %d. '
      'Use a name of tff_pfl first, or set '
      'TF_NUM_INTRAOP_THREADS=%d.',
      1,
      f'{current} thread(s)' if current else 'a thread on each core',
      share,
      share,
    )
