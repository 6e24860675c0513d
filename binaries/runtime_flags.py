"""Flags of what executes computations: a runtime, or a cluster for each run."""

from typing import Any, Optional

from absl import flags

from tff_pfl import fields, runtime
from tff_pfl.comparisons import cluster as cluster_lib
from tff_pfl.runs import loop
from tff_pfl.runtime import in_process

_RUNTIME = flags.DEFINE_enum(
  'runtime',
  runtime.DEFAULT,
  list(runtime.RUNTIMES),
  fields.help_text(loop.RunOptions, 'runtime'),
)
_DEVICES = flags.DEFINE_list(
  'devices',
  ['auto'],
  'Devices of clients with --runtime=in_process: auto (the GPUs, if there are '
  'any; training only if a round is large enough for them), cpu, gpu, or names '
  'such as GPU:0,GPU:2.',
)
_BATCHED_CLIENTS = flags.DEFINE_bool(
  'batched_clients',
  None,
  'Run clients whose data have one size (rounded up to a power of two) as one '
  'program, with --runtime=in_process or ray (default: on GPUs).',
)
_MAX_CONCURRENT_CLIENTS = flags.DEFINE_integer(
  'max_concurrent_clients',
  None,
  'Clients that compute at the same time, with --runtime=in_process or native '
  '(default: one on each GPU or usable CPU core).',
  lower_bound=1,
)
_DEVICE_CACHE_MB = flags.DEFINE_integer(
  'device_cache_mb',
  in_process.DEVICE_CACHE_MB,
  "Megabytes of clients' examples that stay on each GPU for later rounds, with "
  '--runtime=in_process.',
  lower_bound=0,
)
_TF32 = flags.DEFINE_bool(
  'tf32',
  False,
  'Multiply matrices in TensorFloat-32 on GPUs, with --runtime=in_process: '
  'faster, and four digits less precise.',
)
_CUDA_GRAPHS = flags.DEFINE_bool(
  'cuda_graphs',
  True,
  'Run loops of training as CUDA graphs, which start faster, with '
  '--runtime=in_process on GPUs.',
)
_RAY_ADDRESS = flags.DEFINE_string(
  'ray_address',
  'local',
  'The cluster of --runtime=ray. local: a Ray of this program on this machine; '
  'auto: the one that this machine belongs to; host:port; or ray://host:port '
  'from outside.',
)
_RAY_CPUS_PER_ACTOR = flags.DEFINE_float(
  'ray_cpus_per_actor',
  1.0,
  'CPU cores of each actor of --runtime=ray, a process in which clients '
  'compute. There are as many actors as fit.',
  lower_bound=0.01,
)
_RAY_GPUS_PER_ACTOR = flags.DEFINE_float(
  'ray_gpus_per_actor',
  0.0,
  'GPUs of each actor of --runtime=ray, fractions too; clients then compute on '
  'these.',
  lower_bound=0.0,
)
_RAY_CLIENTS_PER_CHUNK = flags.DEFINE_integer(
  'ray_clients_per_chunk',
  None,
  'Clients that an actor of --runtime=ray computes and adds up at a time '
  '(default: a 64th of the cohort, rounded up). Results are the same for any '
  'number of actors, and differ in their last bits by this.',
  lower_bound=1,
)
_RAY_SECONDS_TO_START = flags.DEFINE_float(
  'ray_seconds_to_start',
  None,
  'Seconds that --runtime=ray waits for an actor while there is none that '
  'computes (default: as long as the cluster has actors pending).',
  lower_bound=1.0,
)
# From an argument of a runtime to its flag.
_FLAGS = {
  'in_process': {
    'devices': _DEVICES,
    'batched_clients': _BATCHED_CLIENTS,
    'max_concurrent_clients': _MAX_CONCURRENT_CLIENTS,
    'device_cache_mb': _DEVICE_CACHE_MB,
    'tf32': _TF32,
    'cuda_graphs': _CUDA_GRAPHS,
  },
  'native': {'max_concurrent_clients': _MAX_CONCURRENT_CLIENTS},
  'ray': {
    'address': _RAY_ADDRESS,
    'cpus_per_actor': _RAY_CPUS_PER_ACTOR,
    'gpus_per_actor': _RAY_GPUS_PER_ACTOR,
    'clients_per_chunk': _RAY_CLIENTS_PER_CHUNK,
    'batched_clients': _BATCHED_CLIENTS,
    'seconds_to_start': _RAY_SECONDS_TO_START,
  },
}


NAMES = [flag.name for flag in flags.FLAGS.get_flags_for_module(__name__)]


def define_cluster() -> None:
  """Defines the flags of a program with many runs."""
  flags.DEFINE_string(
    'cluster',
    None,
    'A Ray cluster on which each run is a task, instead of a process of this '
    'machine: local, auto, host:port or ray://host:port, as --ray_address. Its '
    'nodes share --output_dir.',
  )
  flags.DEFINE_integer(
    'cluster_cpus_per_run',
    1,
    'CPU cores of each run on the --cluster.',
    lower_bound=1,
  )
  flags.DEFINE_float(
    'cluster_gpus_per_run',
    0.0,
    'GPUs of each run on the --cluster, fractions too.',
    lower_bound=0.0,
  )


def selected_cluster() -> Optional[cluster_lib.Cluster]:
  """The cluster that the flags give; None without --cluster."""
  values = flags.FLAGS
  if values.cluster is None:
    return None
  return cluster_lib.Cluster(
    values.cluster, values.cluster_cpus_per_run, values.cluster_gpus_per_run
  )


def selected_runtime() -> str:
  """The runtime that --runtime names."""
  return _RUNTIME.value


def options() -> dict[str, Any]:
  """The arguments of `runtime.create_runtime` beside the name.

  Raises:
    ValueError: If a flag of another runtime is given.
  """
  name = _RUNTIME.value
  chosen = _FLAGS[name]
  for owner, its_flags in _FLAGS.items():
    for argument, flag in its_flags.items():
      if flag.present and argument not in chosen:
        raise ValueError(
          f'Expected --{flag.name} with --runtime={owner} only, found '
          f'--runtime={name}.'
        )
  arguments = {argument: flag.value for argument, flag in chosen.items()}
  if arguments.get('devices') in (['auto'], ['cpu'], ['gpu']):
    arguments['devices'] = arguments['devices'][0]
  return arguments
