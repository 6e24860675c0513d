"""Checks flags before TensorFlow is imported: --help and errors take a second.

A program's flags are generated from the library's dataclasses, whose import
takes seconds. Therefore a description of the flags is kept in the user's cache
folder, with a checksum of the library's files, and the next call of the program
reads it first. If the file is missing or the library has changed, the flags are
parsed only after they are generated, with the same result.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

from absl import flags

from tff_pfl.system import program_cache

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_HELP = ('--help', '-help', '--helpshort', '-helpshort', '-?')
# A help text begins with at most this many words that the flag may have.
_MANY_WORDS = 6
# Name of the program. Empty if a program is called in Python.
PROGRAM = ''
# True if the cached flags are the program's.
is_known = False
_PARSERS = {
  'BooleanParser': flags.DEFINE_bool,
  'FloatParser': flags.DEFINE_float,
  'IntegerParser': flags.DEFINE_integer,
  'ListParser': flags.DEFINE_list,
}


def fail(reason: object) -> None:
  """Ends the program with one line and status 1."""
  print('error:', ' '.join(str(reason).split()), file=sys.stderr)
  sys.exit(1)


def expanded(argument: str, within: tuple[str, ...] = ()) -> Iterator[str]:
  """Yields the argument, or the lines of the preset that it names.

  Args:
    argument: An argument from the command line or a preset. A preset's path is
      relative to the current folder or to the package.
    within: The presets that contain the argument, outermost first.

  Raises:
    ValueError: If a preset includes itself.
  """
  start, _, path = argument.partition('--flagfile=')
  packaged = os.path.join(_FOLDER, path.removeprefix('binaries/'))
  if not os.path.exists(path) and os.path.isfile(packaged):
    path = packaged
  if start or not os.path.isfile(path):
    yield argument
    return
  if path in within:
    raise ValueError(f'Expected --flagfile={path} not to be within itself.')
  with open(path, encoding='utf-8') as file:
    for line in map(str.strip, file):
      if line and not line.startswith(('#', '//')):
        yield from expanded(line, (*within, path))


def modules(arguments: Sequence[str]) -> list[str]:
  """The names in the last --modules of a command line.

  Args:
    arguments: The arguments, with presets expanded.
  """
  found = ''
  for argument, following in zip(arguments, [*arguments[1:], '']):
    name, equals, value = argument.partition('=')
    if name in ('--modules', '-modules'):
      found = value if equals else following
  return flags.ListParser().parse(found)


def arguments() -> list[str]:
  """The command line with presets expanded, unless one includes itself."""
  try:
    return [flag for argument in sys.argv for flag in expanded(argument)]
  except ValueError:  # The program itself reports it.
    return sys.argv


def described(
  groups: Mapping[str, Sequence[str]],
  selected: Mapping[str, tuple[Any, Mapping[str, Sequence[str]]]],
) -> dict[str, Any]:
  """Describes the flags of the program that runs, as JSON types.

  Args:
    groups: Titles of --help and the names of the flags below each.
    selected: For each selecting flag its default, and the names of the flags
      that each of its values shows.
  """
  main = sys.modules['__main__']
  shown = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  return {
    'doc': (main.__doc__ or '').rstrip(),
    'groups': {title: list(names) for title, names in groups.items()},
    'selected': selected,
    'shown': [flag.name for flag in shown],
    # Leaves out the short names, which are also keys.
    'flags': {
      name: _described(flags.FLAGS[name])
      for name in flags.FLAGS
      if flags.FLAGS[name].name == name
    },
  }


def _described(flag):
  return {
    'short': flag.short_name,
    'help': flag.help,
    'parser': type(flag.parser).__name__,
    'words': getattr(flag.parser, 'enum_values', None),
    'low': getattr(flag.parser, 'lower_bound', None),
    'is_multiple': isinstance(flag, flags.MultiFlag),
    'is_required': any(
      f'--{flag.name} must have a value' in validator.message
      for validator in flag.validators
    ),
  }


def parse(argv: Sequence[str], description: Mapping[str, Any]) -> Any:
  """Parses flags as the program will.

  Args:
    argv: Name of the program and its arguments, with presets expanded.

  Raises:
    flags.Error: If a flag is wrong.
  """
  values = flags.FlagValues()
  for name, flag in description['flags'].items():
    options = {'flag_values': values, 'short_name': flag['short']}
    if flag['is_multiple']:
      flags.DEFINE_multi_string(name, [], flag['help'], **options)
    elif flag['words']:
      flags.DEFINE_enum(name, None, flag['words'], flag['help'], **options)
    else:
      if flag['low'] is not None:
        options['lower_bound'] = flag['low']
      define = _PARSERS.get(flag['parser'], flags.DEFINE_string)
      define(name, None, flag['help'], **options)
    if flag['is_required']:
      flags.mark_flag_as_required(name, flag_values=values)
  values(list(argv))
  return values


def help_text(argv: Sequence[str], description: Mapping[str, Any]) -> str:
  """The docstring and the flags, including flags of what `argv` selects."""
  optional = {
    name: {**flag, 'is_required': False}
    for name, flag in description['flags'].items()
  }
  values = {}
  with contextlib.suppress(flags.Error):
    parsed = parse(argv, {'flags': optional})
    values = {name: parsed[name].value for name in description['selected']}
  shown = set(description['shown'])
  for selector, (default, names) in description['selected'].items():
    value = values.get(selector) or default
    for one in value if isinstance(value, list) else [value]:
      shown.update(names.get(one, ()))
  groups = description['groups']
  grouped = {name for group in groups.values() for name in group}
  own = [name for name in description['flags'] if name not in grouped]
  lines = [description['doc']]
  for title, group in {'This program': own, **groups}.items():
    texts = [
      _help_of(name, description['flags'][name])
      for name in group
      if name in shown
    ]
    if texts:
      lines += [f'\n{title}:', *texts]
  if description['selected']:
    selectors = ' '.join(f'--{name}=…' for name in description['selected'])
    lines.append(f'\n--help {selectors} has the flags of these values.')
  return '\n'.join([*lines, '--helpfull lists all flags.'])


def _help_of(name, flag):
  text = flag['help']
  if len(flag['words'] or ()) > _MANY_WORDS:
    text = text.partition('>: ')[2]
  name = f'[no]{name}' if flag['parser'] == 'BooleanParser' else name
  width = min(100, shutil.get_terminal_size().columns)
  indents = {'initial_indent': '  ', 'subsequent_indent': ' ' * 6}
  return '\n'.join(textwrap.wrap(f'--{name}: {text}', width, **indents))


def begin(program: str) -> None:
  """Shows help and rejects wrong flags if the program's flags are cached."""
  global PROGRAM, is_known
  PROGRAM = program
  description = read()
  if description is None:
    return
  # The program itself reports a wrong file or preset.
  with contextlib.suppress(
    AttributeError, KeyError, OSError, TypeError, ValueError
  ):
    argv = arguments()
    if modules(argv):
      # They have flags of their own.
      return
    if asks_for_help(argv):
      show_help(argv, description)
    # The program itself handles --helpfull and --version.
    if not any(word.startswith(('--help', '--version')) for word in argv):
      try:
        parse(argv, description)
      except flags.Error as error:
        refuse(error)
    is_known = True


def asks_for_help(argv: Sequence[str]) -> bool:
  """True if a command line has --help or a synonym."""
  return any(argument in _HELP for argument in argv)


def show_help(argv: Sequence[str], description: Mapping[str, Any]) -> None:
  """Prints the help and ends the program.

  Args:
    argv: Name of the program and its arguments, with presets expanded.
  """
  others = [argument for argument in argv if argument not in _HELP]
  print(help_text(others, description))
  sys.exit(0)


def refuse(error: Exception) -> None:
  """Ends the program with absl's error about a flag."""
  text = re.sub(
    r'flag --(\w+)=None: Flag --\1 must have a value other than None\.',
    r'Expected --\1 to be given.',
    str(error),
  )
  yours = ''
  if text.startswith(('flag --algorithm=', 'flag --dataset=', 'flag --model=')):
    yours = ', and --modules registers your own'
  fail(f'{text} (--help lists the flags{yours})')


def read() -> Optional[dict[str, Any]]:
  """The description that `write` stored, or None without a current one."""
  path = _path()
  if path is None:
    return None
  with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
    content = json.loads(path.read_text('utf-8'))
    if content['key'] == _key():
      return content['description']
  return None


def write(description: Mapping[str, Any]) -> None:
  """Stores the description of a program's flags for its next call."""
  path = _path()
  if path is None:
    return
  temporary = path.with_suffix(f'.{os.getpid()}')
  with contextlib.suppress(OSError):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {'key': _key(), 'description': description}
    temporary.write_text(json.dumps(content), 'utf-8')
    temporary.replace(path)


def _path():
  folder = program_cache.user_folder()
  return folder and pathlib.Path(folder, f'flags-{PROGRAM}.json')


def _key():
  """A checksum of the names, sizes and times of the library's files."""
  # In the wheel the library is the folder above.
  above = os.path.dirname(_FOLDER)
  library = os.path.join(above, 'tff_pfl')
  if not os.path.isdir(library):
    library = above
  files = []
  for folder in (_FOLDER, library):
    for path in sorted(pathlib.Path(folder).rglob('*.py')):
      status = path.stat()
      files.append((str(path), status.st_size, status.st_mtime_ns))
  return hashlib.sha256(repr((sys.version, files)).encode()).hexdigest()
