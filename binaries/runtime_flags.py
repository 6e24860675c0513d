"""Flags that choose what executes, and how."""

from typing import Any, Dict, List

from absl import flags

from tff_pfl import runtime
from tff_pfl.simulation import run_config

_RUNTIME = flags.DEFINE_enum(
  'runtime',
  run_config.RunConfig.runtime,
  list(runtime.RUNTIMES),
  'What executes; remote: the --workers.',
)
_WORKERS = flags.DEFINE_list(
  'workers',
  None,
  'Addresses host:port of the workers of --runtime=remote, with commas between '
  '(see binaries.worker).',
)


def names() -> List[str]:
  """The names of these flags."""
  return [flag.name for flag in flags.FLAGS.get_flags_for_module(__name__)]


def selected_runtime() -> str:
  """The runtime that --runtime names."""
  return _RUNTIME.value


def options() -> Dict[str, Any]:
  """The arguments of `runtime.create_runtime` beside the name.

  Raises:
    ValueError: If a flag is missing, or is another runtime's.
  """
  name = _RUNTIME.value
  if name == 'remote':
    if not _WORKERS.value:
      raise ValueError(
        'Expected --workers=host:port,… with --runtime=remote, found none.'
      )
    return {'workers': _WORKERS.value}
  if _WORKERS.present:
    raise ValueError(
      f'Expected --workers with --runtime=remote only, found --runtime={name}.'
    )
  return {}
