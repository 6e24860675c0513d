"""Generates flags from a dataclass's fields or a function's arguments."""

import contextlib
import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Optional, Union

from absl import flags

from tff_pfl import errors, fields

from . import early

# A help text lists at most this many owners of an argument.
_MANY_OWNERS = 4


def _parts(hint: Any) -> list[Any]:
  """The types, or sets of words, that a hint allows."""
  if typing.get_origin(hint) is Annotated:
    words = [one for one in hint.__metadata__ if isinstance(one, fields.OneOf)]
    return words or _parts(typing.get_args(hint)[0])
  if fields.is_union(hint):
    return [one for part in typing.get_args(hint) for one in _parts(part)]
  if typing.get_origin(hint) is Literal:
    words = typing.get_args(hint)
    return [fields.OneOf(words)] if isinstance(words[0], str) else [int]
  return [hint]


def _definition(hint: Any) -> Optional[Callable[..., Any]]:
  """The function of absl that defines a flag for a type, if there is one."""
  parts = _parts(hint)
  if any(typing.get_origin(one) in (tuple, list, Sequence) for one in parts):
    return flags.DEFINE_list
  if str not in parts and any(isinstance(one, fields.OneOf) for one in parts):
    return flags.DEFINE_enum
  for kind, definition in (
    (float, flags.DEFINE_float),
    (str, flags.DEFINE_string),
    (bool, flags.DEFINE_boolean),
    (int, flags.DEFINE_integer),
  ):
    if kind in parts:
      return definition
  return None


def define(name: str, hint: Any, text: str, default: Any) -> None:
  """Defines a flag for values of a type. An unset flag means the default."""
  if '(default' not in text and default not in (None, ()):
    text += f' (default: {default})'
  definition, arguments = _definition(hint), [None]
  if definition is flags.DEFINE_enum:
    parts = _parts(hint)
    words = [w for p in parts if isinstance(p, fields.OneOf) for w in p.words]
    arguments.append(list(dict.fromkeys(words)))
  if definition is not None:
    definition(name, *arguments, text)


def define_field(
  name: str, owner: type, field: str, *, start: str = '', more: str = ''
) -> None:
  """Defines a flag for a dataclass's field.

  Args:
    name: The flag's name.
    owner: The dataclass, whose docstring has the help text.
    field: Name of the field.
    start: Text before the help text.
    more: Text after it.
  """
  text = start
  with contextlib.suppress(ValueError):
    # A user's method may lack a text.
    text += fields.help_text(owner, field)
  if field in fields.none_for_zero(owner):
    text += ' 0 stands for None.'
  text = ' '.join(filter(None, [text, more]))
  default = owner.__dataclass_fields__[field].default
  define(name, fields.hints(owner)[field], text, default)


def given(flag_of: Mapping[str, str]) -> dict[str, Any]:
  """The values of the flags that are set, by field name."""
  values = {field: flags.FLAGS[flag].value for field, flag in flag_of.items()}
  return {field: v for field, v in values.items() if v is not None}


def integers(
  flag: str, texts: Sequence[str], least: int, none: Optional[str] = None
) -> list[Optional[int]]:
  """The whole numbers of a list flag.

  Args:
    flag: The flag, for the message.
    texts: The values of the flag.
    least: The least number.
    none: A word for None.

  Raises:
    ValueError: If there is no value, or if one is no such number.
  """
  errors.expect(
    texts
    and all(
      text == none or (text.isdecimal() and int(text) >= least)
      for text in texts
    ),
    flag,
    f'integers of at least {least}'
    + (f' or {none}' if none else '')
    + ', separated by commas',
    ','.join(texts),
  )
  return [None if text == none else int(text) for text in texts]


class ArgumentFlags:
  """A flag for each keyword argument of functions of one kind.

  The help texts come from the functions' docstrings. An unset flag means the
  function's default.
  """

  def __init__(
    self,
    kind: str,
    functions: Mapping[str, Callable[..., Any]],
    common: Collection[str] = (),
    prefix: Optional[str] = None,
  ):
    """Defines the flags.

    Args:
      kind: Flag that selects one of the functions, such as 'model'.
      functions: Functions by the flag's value.
      common: Arguments to leave out, which have other flags.
      prefix: Prefix of the flags' names. None uses `kind` and an underscore.
    """
    self._kind = kind
    self._prefix = f'{kind}_' if prefix is None else prefix
    self._hints: dict[str, Any] = {}
    # For each argument the defaults of the functions that have it.
    self._defaults: dict[str, dict[str, Any]] = {}
    for name, function in functions.items():
      parameters = inspect.signature(function).parameters
      for argument in errors.own_arguments(function, common):
        hint = fields.hints(function)[argument]
        definition = _definition(hint)
        if definition is None:
          # No text can be its value, so that it has no flag.
          continue
        known = self._hints.get(argument, hint)
        both = {definition, _definition(known)}
        if len(both) > 1 and not both <= {
          flags.DEFINE_enum,
          flags.DEFINE_string,
        }:
          early.fail(
            f'Expected another name for the argument {argument} of {name}, '
            f'because --{self._flag(argument)} has another type.'
          )
        self._hints[argument] = Union[known, hint]
        by_owner = self._defaults.setdefault(argument, {})
        by_owner[name] = parameters[argument].default
    for name, by_owner in self._defaults.items():
      texts, text = {}, ''
      for owner in by_owner:
        # An owner may lack a text, and owners may share one.
        with contextlib.suppress(ValueError):
          text = fields.help_text(functions[owner], name)
          texts.setdefault(text, owner)
      if len(texts) > 1:
        text = ' '.join(
          one if ' or ' in owner else f'{owner}: {one}'
          for one, owner in texts.items()
        )
      default = _each(by_owner)
      if default:
        text += f' (default: {default})'
      owners = ' or '.join(by_owner).split(' or ')
      start = f'With --{kind}={" or ".join(owners)}: '
      if len(owners) > _MANY_OWNERS:
        start = f'With many values of --{kind}: '
      define(self._flag(name), self._hints[name], start + text, None)

  def _flag(self, argument):
    return f'{self._prefix}{argument}'

  def names(self, of: Optional[str] = None) -> list[str]:
    """The names of all flags, or of one function's flags."""
    return [
      self._flag(name)
      for name, by_owner in self._defaults.items()
      if of is None or any(of in owner.split(' or ') for owner in by_owner)
    ]

  def given(self, of: str) -> dict[str, Any]:
    """The arguments whose flags are set.

    Args:
      of: Name of the function that takes them.

    Raises:
      ValueError: If the function does not have such an argument, or if a list
        should have numbers and does not.
    """
    arguments = {}
    own = self.names(of)
    for name, hint in self._hints.items():
      flag = self._flag(name)
      value = flags.FLAGS[flag].value
      # An empty list resets a flag that a preset sets.
      if value is not None and value != []:
        if flag not in own:
          taken = ', '.join(f'--{one}' for one in own) or 'none'
          raise ValueError(
            f'Expected no --{flag}: --{self._kind}={of} does not take it, of '
            f'such flags it takes {taken}.'
          )
        arguments[name] = _of_list(flag, hint, value)
    return arguments


def _of_list(flag, hint, value):
  """The value of a flag, with numbers for a list of numbers."""
  parts = _parts(hint)
  items = [_parts(one) for part in parts for one in typing.get_args(part)]
  kind = next((one for one in (int, float) if [one] in items), None)
  if not isinstance(value, list) or kind is None:
    return value
  try:
    numbers = [kind(text) for text in value]
  except ValueError:
    expected = 'integers' if kind is int else 'numbers'
    expected += ' separated by commas'
    text = errors.message(f'--{flag}', expected, ','.join(value))
    raise ValueError(text) from None
  is_one = len(numbers) == 1 and kind in parts
  return numbers[0] if is_one else numbers


def _each(defaults):
  """The default that all owners share, or each owner's, or an empty text."""
  known = {
    owner: str(value)
    for owner, value in defaults.items()
    if value is not None and value is not inspect.Parameter.empty
  }
  if len(set(known.values())) == 1 and len(known) == len(defaults):
    return next(iter(known.values()))
  return ', '.join(
    f'{owner} {value}' if ' or ' not in owner else value
    for owner, value in known.items()
  )
