"""Flags that choose what executes, and how."""

from typing import Any

from absl import flags

from tff_pfl import runtime

_RUNTIME = flags.DEFINE_enum(
  'runtime',
  runtime.DEFAULT,
  list(runtime.RUNTIMES),
  'What executes a round. in_process: this process, on its CPU cores or GPUs; '
  "native: TFF's own C++ worker; remote: the --workers.",
)
_DEVICES = flags.DEFINE_list(
  'devices',
  ['auto'],
  'Where clients compute with --runtime=in_process: auto (the GPUs, or the CPU '
  'where there is none), cpu, gpu, or names such as GPU:0,GPU:2.',
)
_BATCHED_CLIENTS = flags.DEFINE_bool(
  'batched_clients',
  None,
  'Whether clients whose data have one size (rounded up to a power of two) run '
  'as one program, with --runtime=in_process (default: on GPUs).',
)
_MAX_CONCURRENT_CLIENTS = flags.DEFINE_integer(
  'max_concurrent_clients',
  None,
  'How many clients compute at the same time; with --runtime=remote, in each '
  'worker (default: one on each GPU or usable CPU core).',
  lower_bound=1,
)
_WORKERS = flags.DEFINE_list(
  'workers',
  None,
  'Addresses host:port of the workers of --runtime=remote, with commas between '
  '(see binaries.worker).',
)


def names() -> list[str]:
  """The names of these flags."""
  return [flag.name for flag in flags.FLAGS.get_flags_for_module(__name__)]


def selected_runtime() -> str:
  """The runtime that --runtime names."""
  return _RUNTIME.value


def options() -> dict[str, Any]:
  """The arguments of `runtime.create_runtime` beside the name.

  Raises:
    ValueError: If a flag is missing, or is another runtime's.
  """
  name = _RUNTIME.value
  for flag, its_runtime in (
    (_WORKERS, 'remote'),
    (_DEVICES, 'in_process'),
    (_BATCHED_CLIENTS, 'in_process'),
  ):
    if flag.present and name != its_runtime:
      raise ValueError(
        f'Expected --{flag.name} with --runtime={its_runtime} only, found '
        f'--runtime={name}.'
      )
  chosen = {'max_concurrent_clients': _MAX_CONCURRENT_CLIENTS.value}
  if name == 'remote':
    if not _WORKERS.value:
      raise ValueError(
        'Expected --workers=host:port,… with --runtime=remote, found none.'
      )
    chosen['workers'] = _WORKERS.value
  if name == 'in_process':
    devices = _DEVICES.value
    is_word = devices in (['auto'], ['cpu'], ['gpu'])
    chosen['devices'] = devices[0] if is_word else devices
    chosen['batched_clients'] = _BATCHED_CLIENTS.value
  return chosen
