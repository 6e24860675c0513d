"""Starts and ends every program of this folder: flags, help and errors."""

import contextlib
import functools
import gc
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
from tff_pfl.system import folders, program_cache, shutdown, user_modules

from . import early

_TRACEBACK = flags.DEFINE_bool(
  'traceback', False, 'Show the traceback of an expected error.'
)
_PROGRAM_CACHE = flags.DEFINE_bool(
  'program_cache',
  True,
  "Keep compiled programs in the user's cache folder, so that later programs "
  'start faster.',
)
MODULES = flags.DEFINE_list(
  'modules',
  [],
  'Modules, or .py files, that register your own methods, models and datasets. '
  'All programs and flags then know these.',
)
_VERSION = flags.DEFINE_bool(
  'version', False, 'Print the versions of the library and Python, and exit.'
)

# Before flags are generated from what the modules register.
try:
  user_modules.load(early.modules(early.arguments()))
except (ImportError, *errors.EXPECTED) as _error:
  if f'--{_TRACEBACK.name}' in sys.argv:
    raise
  early.fail(errors.reason(_error))
# Names of the flags on the command line. None before it is parsed.
_on_command_line: Optional[set[str]] = None


# Titles in --help, in this order, with the names of the flags below each. Flags
# without a group come first.
GROUPS: dict[str, list[str]] = {}
# For a setting with arguments, such as `hparams`, a function from an argument's
# name to its flags.
FLAGS_WITHIN: dict[str, Callable[[str], Collection[str]]] = {}


def define_overwrite() -> None:
  """Defines --overwrite, which lets `new_path` accept an existing output."""
  flags.DEFINE_bool('overwrite', False, 'Replace the output if it exists.')


def new_path(path: str, name: str) -> str:
  """Returns the path of an output that is new or that may be replaced.

  Args:
    path: Path of a file or folder. A folder without files is new.
    name: Name of its flag.

  Raises:
    RunError: If the output exists and --overwrite is not given.
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
  """The flag for an argument `x` that the library names: --x, or --its_x."""
  owner, name = match.groups()
  if owner in FLAGS_WITHIN:
    named = FLAGS_WITHIN[owner](name)
  elif owner:
    named = []
  elif name in flags.FLAGS:
    return f'--{name}'
  else:
    named = [flag for flag in flags.FLAGS if flag.endswith(f'_{name}')]
  present = [flag for flag in named if flags.FLAGS[flag].present]
  if owner:
    present = present or named
  return f'--{present[0]}' if len(present) == 1 else match[0]


def in_flags(text: str) -> str:
  """An error's text in one line, with flags for the library's arguments."""
  return re.sub(r'`(?:--|(\w+)\.)?(\w+)`', _as_flag, ' '.join(text.split()))


def _fail(error: object) -> None:
  early.fail(in_flags(str(error)))


def _local(argument):
  """The argument, with a path in the form of this machine."""
  name, equals, value = argument.partition('=')
  if not equals:
    name, value = '', argument
  # A flag may be empty, and ray:// begins an address, not a path.
  if not value or value.startswith('ray://'):
    return argument
  return name + equals + folders.local_path(value, name or 'argument')


def is_on_command_line(flag: str) -> bool:
  """True if the command line itself has a flag, or if none was parsed yet."""
  return _on_command_line is None or flag in _on_command_line


def _parse_flags(flags_of, argv: Sequence[str]) -> Sequence[str]:
  global _on_command_line
  names = [a.lstrip('-').partition('=')[0] for a in argv]
  _on_command_line = {*names, *(name.removeprefix('no') for name in names)}
  try:
    argv = [
      _local(flag) for argument in argv for flag in early.expanded(argument)
    ]
  except ValueError as error:
    _fail(error)
  if f'--{_VERSION.name}' in argv:
    _print_versions()
  has_modules = bool(early.modules(argv))
  if early.asks_for_help(argv) or (early.PROGRAM and not early.is_known):
    general = flags.FLAGS.get_flags_for_module(__name__)
    groups = {**GROUPS, 'Any program': [flag.name for flag in general]}
    description = early.described(groups, flags_of)
    if early.PROGRAM and not has_modules:
      early.write(description)
    if early.asks_for_help(argv):
      early.show_help(argv, description)
  try:
    return flags.FLAGS(argv)
  except (flags.Error, ValueError) as error:
    early.refuse(error)
  except SystemExit:
    # absl exits with status 1 after --helpfull, which is not a failure.
    sys.exit(0)


def _runs_code_of_user():
  """True if a user's code may have open files or threads."""
  study = flags.FLAGS.flag_values_dict().get('study')
  return bool(MODULES.value) or str(study).endswith('.py')


def _end():
  """Ends the program, unless its output cannot be written."""
  # Python's own exit says so then.
  with contextlib.suppress(OSError):
    sys.stdout.flush()
    sys.stderr.flush()
    # Freeing TensorFlow's objects one by one takes a second.
    shutdown.exit_without_waiting(0)


def _print_versions():
  print(
    f'tff_pfl {tff_pfl.__version__}, TensorFlow {version("tensorflow")}, '
    f'TensorFlow Federated {version("tensorflow-federated")}, '
    f'Python {platform.python_version()}'
  )
  sys.exit(0)


def run_program(
  main: Callable[[], None],
  flags_of: Optional[
    Mapping[str, tuple[Any, Mapping[str, Sequence[str]]]]
  ] = None,
) -> None:
  """Parses the flags and calls `main`.

  Expected errors (wrong flags or values, files, a failed run) end the program
  with one line on stderr and status 1. Ctrl-C ends it with status 130, SIGTERM
  with status 143.

  Args:
    main: Function that does the program's work.
    flags_of: Flags that --help shows only if another flag selects them. Maps
      the name of the selecting flag to its default and to the flags that each
      of its values shows. A list shows the flags of all its values.
  """

  def guarded(argv: Sequence[str]) -> None:
    if not flags.FLAGS['verbosity'].present:
      # Hides TFF's logs at INFO. --verbosity=0 shows them.
      logging.set_verbosity(logging.WARNING)
    try:
      if len(argv) > 1:
        raise ValueError(
          errors.message('arguments', 'flags only (--name=value)', argv[1])
        )
      if not _PROGRAM_CACHE.value:
        program_cache.leave()
      with shutdown.stopping_on_signals():
        main()
    except errors.EXPECTED as e:
      if _TRACEBACK.value:
        raise
      _fail(errors.reason(e))
    if early.PROGRAM and not _runs_code_of_user():
      _end()

  if early.PROGRAM:
    # What the imports have created stays, so no collection has to look at it.
    gc.freeze()
    gc.enable()
  # --help shows the name that this package has here, which is another one in
  # the wheel.
  program = sys.modules['__main__']
  doc = program.__doc__ or ''
  program.__doc__ = doc.replace('binaries.', f'{__package__}.')
  app.run(guarded, flags_parser=functools.partial(_parse_flags, flags_of or {}))
