"""Start and end of every program of this folder: flags, help, errors."""

import functools
import os
import platform
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Optional

from absl import app, flags, logging

import tff_pfl
from tff_pfl import errors
from tff_pfl.system import folders, shutdown

from . import early

_TRACEBACK = flags.DEFINE_bool(
  'traceback', False, 'Show where an expected error was raised.'
)
_VERSION = flags.DEFINE_bool(
  'version', False, 'Print the versions of what runs, and end.'
)

# Names of the flags on the command line; None before it is read.
_on_command_line: Optional[set[str]] = None


# Titles of --help, with the names of the flags below each, in this order. What
# no group has stands first.
GROUPS: dict[str, list[str]] = {}
# By a setting with arguments, such as `hparams`: flags of an argument's name.
FLAGS_WITHIN: dict[str, Callable[[str], Collection[str]]] = {}


def define_overwrite() -> None:
  """Defines --overwrite, without which `new_path` spares what is there."""
  flags.DEFINE_bool(
    'overwrite', False, 'Replace the output if it is there already.'
  )


def new_path(path: str, name: str) -> str:
  """Checks the path of an output, which must be new or may be replaced.

  Args:
    path: Path of a file or folder; a folder without files is new.
    name: Name of its flag.

  Raises:
    RunError: If it is there, and --overwrite is not given.
  """
  path = folders.output_path(path, name)
  is_there = os.path.exists(path)
  if os.path.isdir(path):
    is_there = any(files for _, _, files in os.walk(path))
  if is_there and not flags.FLAGS.overwrite:
    raise errors.RunError(
      f'{path} is there already: give another {name}, or --overwrite.'
    )
  return path


def _as_flag(match: re.Match) -> str:
  """The flag of an argument that the library names: `x` is --x, or --its_x."""
  owner, name = match.groups()
  if owner in FLAGS_WITHIN:
    named = FLAGS_WITHIN[owner](name)
  elif owner:
    named = []
  elif name in flags.FLAGS:
    return f'--{name}'
  else:
    named = [flag for flag in flags.FLAGS if flag.endswith(f'_{name}')]
  given = [flag for flag in named if flags.FLAGS[flag].present]
  if owner:
    given = given or named
  return f'--{given[0]}' if len(given) == 1 else match[0]


def in_flags(text: str) -> str:
  """An error's text in one line, with flags where the library has arguments."""
  return re.sub(r'`(?:--|(\w+)\.)?(\w+)`', _as_flag, ' '.join(text.split()))


def _fail(error: object) -> None:
  """Ends the program with one line and status 1."""
  early.fail(in_flags(str(error)))


def _local(argument):
  """The argument; of a path, as it is on this machine."""
  name, equals, value = argument.partition('=')
  if not equals:
    name, value = '', argument
  # Many flags may be empty, and a cluster has an address.
  if not value or value.startswith('ray://'):
    return argument
  return name + equals + folders.local_path(value, name or 'argument')


def is_on_command_line(flag: str) -> bool:
  """True if a flag is given there and not in a preset, or none were read."""
  return _on_command_line is None or flag in _on_command_line


def _parse_flags(flags_of, argv: Sequence[str]) -> Sequence[str]:
  global _on_command_line
  given = [a.lstrip('-').partition('=')[0] for a in argv]
  _on_command_line = {*given, *(name.removeprefix('no') for name in given)}
  try:
    argv = [
      _local(flag) for argument in argv for flag in early.expanded(argument)
    ]
  except ValueError as error:
    _fail(error)
  if f'--{_VERSION.name}' in argv:
    _print_versions()
  if early.asks_for_help(argv) or (early.PROGRAM and not early.is_known):
    general = flags.FLAGS.get_flags_for_module(__name__)
    groups = {**GROUPS, 'Any program': [flag.name for flag in general]}
    description = early.described(groups, flags_of)
    if early.PROGRAM:
      early.write(description)
    if early.asks_for_help(argv):
      early.show_help(argv, description)
  try:
    return flags.FLAGS(argv)
  except (flags.Error, ValueError) as error:
    early.refuse(error)
  except SystemExit:
    # --helpfull and its like: absl gives status 1 to what is no failure.
    sys.exit(0)


def _print_versions():
  print(
    f'tff_pfl {tff_pfl.__version__}, TensorFlow {version("tensorflow")}, '
    f'TensorFlow Federated {version("tensorflow-federated")}, '
    f'Python {platform.python_version()}'
  )
  sys.exit(0)


def run(
  main: Callable[[], None],
  flags_of: Optional[
    Mapping[str, tuple[Any, Mapping[str, Sequence[str]]]]
  ] = None,
) -> None:
  """Parses the flags and calls `main`.

  Expected errors (wrong flags and values, files, a failed run) end the program
  with one line on stderr and status 1, Ctrl-C with status 130, SIGTERM with
  143.

  Args:
    main: Function that does the program's work.
    flags_of: Flags that --help shows only where another flag selects them: by
      the name of that flag, its default and by (each of) its values the names
      of the flags to show.
  """

  def guarded(argv: Sequence[str]) -> None:
    if not flags.FLAGS['verbosity'].present:
      # TFF logs at INFO what nobody asked for; --verbosity=0 brings it back.
      logging.set_verbosity(logging.WARNING)
    try:
      if len(argv) > 1:
        raise ValueError(
          errors.message('arguments', 'flags only (--name=value)', argv[1])
        )
      with shutdown.stopping_on_signals():
        main()
    except errors.EXPECTED as e:
      if _TRACEBACK.value:
        raise
      _fail(errors.reason(e))

  # The name that this package has here; --help shows it.
  program = sys.modules['__main__']
  doc = program.__doc__ or ''
  program.__doc__ = doc.replace('binaries.', f'{__package__}.')
  app.run(guarded, flags_parser=functools.partial(_parse_flags, flags_of or {}))
