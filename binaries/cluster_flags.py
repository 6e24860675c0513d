"""Flags for many runs on a Ray cluster."""

from typing import Optional

from absl import flags

from tff_pfl.comparisons import cluster as cluster_lib

_CLUSTER = flags.DEFINE_string(
  'cluster',
  None,
  'A Ray cluster on which each run is a task, instead of a process of this '
  'machine: local, auto, host:port or ray://host:port, as --ray_address. Its '
  'nodes share --output_dir.',
)
_CPUS_PER_RUN = flags.DEFINE_integer(
  'cluster_cpus_per_run',
  1,
  'CPU cores of each run on the --cluster.',
  lower_bound=1,
)
_GPUS_PER_RUN = flags.DEFINE_float(
  'cluster_gpus_per_run',
  0.0,
  'GPUs of each run on the --cluster, fractions too.',
  lower_bound=0.0,
)


def names() -> list[str]:
  """The names of these flags."""
  return [flag.name for flag in flags.FLAGS.get_flags_for_module(__name__)]


def selected_cluster() -> Optional[cluster_lib.Cluster]:
  """The cluster that the flags give; None without --cluster.

  Raises:
    ValueError: If another of these flags is given without it.
  """
  if _CLUSTER.value is not None:
    return cluster_lib.Cluster(
      _CLUSTER.value, _CPUS_PER_RUN.value, _GPUS_PER_RUN.value
    )
  for flag in (_CPUS_PER_RUN, _GPUS_PER_RUN):
    if flag.present:
      raise ValueError(f'Expected --{flag.name} with --cluster only.')
  return None
