"""Division of the CPU's cores among concurrent clients."""

import os
from typing import Optional

import tensorflow as tf
from absl import logging

from tff_pfl.system import program_cache


def num_usable_cores() -> int:
  """Returns the number of CPU cores that this process may run on."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def threads_per_client(num_clients: Optional[int] = None) -> int:
  """Returns the number of threads for one operation of a client.

  Args:
    num_clients: Number of concurrent clients, at least 1. None means one per
      core.
  """
  cores = num_usable_cores()
  return max(1, cores // (num_clients or cores))


def divide(num_clients: Optional[int] = None) -> None:
  """Limits TensorFlow's operations to a client's share of the cores.

  TensorFlow's default splits each operation over all cores. Concurrent clients,
  one per core, then compete for them: rounds take twice as long on two cores,
  and their rounding depends on the number of cores.

  Programs that XLA compiles for this share are kept (see `program_cache`).

  This works only before TensorFlow's first operation. Programs call it when
  they start, `import tff_pfl as pfl` at the first use of one of its names, and
  an in-process runtime when it is created. The environment variable
  `TF_NUM_INTRAOP_THREADS`, or a later call of
  `tf.config.threading.set_intra_op_parallelism_threads`, overrides it.

  Args:
    num_clients: Number of concurrent clients, at least 1. None means one per
      core.
  """
  share = threads_per_client(num_clients)
  if os.environ.get('TF_NUM_INTRAOP_THREADS'):
    program_cache.use(share)
    return
  try:
    # Reading the current value first would initialize GPUs, and then no fork
    # could use them.
    tf.config.threading.set_intra_op_parallelism_threads(share)
  except RuntimeError:
    current = tf.config.threading.get_intra_op_parallelism_threads()
    logging.log_first_n(
      logging.WARNING,
      'Rounds will take longer: TensorFlow has run already and uses %s for '
      'each operation, but the share of a client is %d. '
      'Set TF_NUM_INTRAOP_THREADS=%d before you start Python.',
      1,
      f'{current} thread(s)' if current else 'a thread on each core',
      share,
      share,
    )
    share = current
  program_cache.use(share)
