"""Flags for the runtime that executes computations, and for a cluster."""

import functools
from collections.abc import Callable
from typing import Any, Optional

from absl import flags

from tff_pfl import errors, fields, runtime
from tff_pfl.runs import loop
from tff_pfl.runtime import base
from tff_pfl.studies import cluster as cluster_lib

from . import made_flags

_RUNTIME = flags.DEFINE_enum(
  'runtime',
  runtime.DEFAULT,
  list(runtime.RUNTIMES),
  fields.help_text(loop.RunOptions, 'runtime'),
)
_INITS = {name: its.__init__ for name, its in runtime.RUNTIMES.items()}
# Ray's flags begin with its name, except one that other runtimes also have.
_SHARED = 'batched_clients'
_OF_RAY = set(errors.own_arguments(_INITS['ray'])) - {_SHARED}
_LOCAL = made_flags.ArgumentFlags('runtime', _INITS, _OF_RAY, prefix='')
_RAY = made_flags.ArgumentFlags(
  'runtime', {'ray': _INITS['ray']}, [_SHARED], prefix='ray_'
)
# By field of `Cluster` its flag.
_OF_CLUSTER = {
  'cpus_per_run': 'cluster_cpus_per_run',
  'gpus_per_run': 'cluster_gpus_per_run',
}
# The default of --runtime, and the flags of each of its values.
FLAGS_OF_RUNTIME = (
  runtime.DEFAULT,
  {name: [*_LOCAL.names(name), *_RAY.names(name)] for name in _INITS},
)
NAMES = [_RUNTIME.name, *_LOCAL.names(), *_RAY.names()]


def define_cluster() -> None:
  """Defines the flags of a program with many runs."""
  flags.DEFINE_string(
    'cluster',
    None,
    'Ray cluster with a task for each run, instead of a process on this '
    'machine: local, auto, host:port or ray://host:port, as for --ray_address. '
    'Its nodes must share --output_dir.',
  )
  for field, flag in _OF_CLUSTER.items():
    made_flags.define_field(
      flag, cluster_lib.Cluster, field, start='With --cluster: '
    )


def selected_cluster() -> Optional[cluster_lib.Cluster]:
  """The cluster from the flags, or None without --cluster."""
  if flags.FLAGS.cluster is None:
    return None
  return cluster_lib.Cluster(
    flags.FLAGS.cluster, **made_flags.given(_OF_CLUSTER)
  )


def selected_runtime() -> str:
  """The runtime that --runtime names."""
  return _RUNTIME.value


def options() -> dict[str, Any]:
  """The arguments of `runtime.create_runtime` besides the name.

  Raises:
    ValueError: If a flag of another runtime is set.
  """
  arguments = {**_LOCAL.given(_RUNTIME.value), **_RAY.given(_RUNTIME.value)}
  if arguments.get('devices') in (['auto'], ['cpu'], ['gpu']):
    arguments['devices'] = arguments['devices'][0]
  return arguments


def selected() -> Callable[[], base.Runtime]:
  """A function that creates the runtime that the flags select.

  Raises:
    ValueError: If a flag of another runtime is set.
  """
  return functools.partial(
    runtime.create_runtime, selected_runtime(), **options()
  )
