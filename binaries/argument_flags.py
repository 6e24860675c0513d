"""Flags made of functions' keyword arguments and of dataclasses' fields."""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Optional, Union

from absl import flags

from tff_pfl import errors
from tff_pfl.core import hparams


def define_field(
  name: str,
  owner: type,
  field: str,
  text: Optional[str] = None,
  choices: Collection[str] = (),
  lower_bound: Optional[int] = None,
) -> None:
  """Defines a flag of a dataclass's field; unset means the field's default.

  Args:
    name: The flag's name.
    owner: The dataclass.
    field: Name of the field.
    text: Help text; None for that of the dataclass's docstring.
    choices: Values that a string may have; empty for any.
    lower_bound: Least value of an integer.
  """
  text = text or hparams.help_text(owner, field)
  default = getattr(owner, field)
  if field in hparams.none_for_zero(owner):
    text += ' 0 stands for None.'
  if '(default: ' not in text:
    text += f' (default: {default})'
  hint = typing.get_type_hints(owner)[field]
  if choices:
    flags.DEFINE_enum(name, None, list(choices), text)
  elif lower_bound is not None:
    flags.DEFINE_integer(name, None, text, lower_bound)
  else:
    _define(hint)(name, None, text)


def _define(hint):
  """The function that defines a flag of a type."""
  if _is_list(hint):
    return flags.DEFINE_list
  kinds = [hint, *typing.get_args(hint)]
  for kind, define in (
    (float, flags.DEFINE_float),
    (str, flags.DEFINE_string),
    (bool, flags.DEFINE_boolean),
  ):
    if kind in kinds:
      return define
  return flags.DEFINE_integer


class ArgumentFlags:
  """A flag for each keyword argument that functions of one kind have.

  Help texts are those of the functions' docstrings; unset means a function's
  default.
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
      common: Arguments that have flags of their own.
      prefix: Beginning of the flags' names; None for `kind`.
    """
    self._kind = kind
    self._prefix = prefix or kind
    self._hints: dict[str, Any] = {}
    # By argument the default of each function that has it.
    self._defaults: dict[str, dict[str, Any]] = {}
    for name, function in functions.items():
      hints = typing.get_type_hints(function)
      parameters = inspect.signature(function).parameters
      for argument in errors.own_arguments(function, common):
        self._hints.setdefault(argument, hints[argument])
        by_owner = self._defaults.setdefault(argument, {})
        by_owner[name] = parameters[argument].default
    for name, by_owner in self._defaults.items():
      text = hparams.help_text(functions[next(iter(by_owner))], name)
      text += f' (default: {_each(by_owner)})'
      of = f'--{kind}={" or ".join(by_owner)}'
      define = _define(self._hints[name])
      define(f'{self._prefix}_{name}', None, f'With {of}: {text}')

  def names(self, of: Optional[str] = None) -> list[str]:
    """The names of all flags, or of those that one function has."""
    return [
      f'{self._prefix}_{name}'
      for name, by_owner in self._defaults.items()
      if of is None or any(of in owner.split(' or ') for owner in by_owner)
    ]

  def given(self, of: str) -> dict[str, Any]:
    """The arguments whose flags are given.

    Args:
      of: The function that takes them.

    Raises:
      ValueError: If that has no such argument, or one should be integers and is
        not.
    """
    arguments = {}
    own = self.names(of)
    for name, hint in self._hints.items():
      flag = f'{self._prefix}_{name}'
      value = flags.FLAGS[flag].value
      # An empty list takes a flag back that a preset gives.
      if value is not None and value != []:
        if flag not in own:
          taken = ', '.join(f'--{one}' for one in own) or 'none'
          raise ValueError(
            f'Expected no --{flag}: --{self._kind}={of} does not take it, of '
            f'such flags it takes {taken}.'
          )
        if _is_list(hint, int):
          value = _integers(flag, value)
          if len(value) == 1 and hint == Union[int, Sequence[int]]:
            (value,) = value
        arguments[name] = value
    return arguments


def _is_list(hint, *items) -> bool:
  """True for a sequence of integers or strings, or a type that may be one."""
  return any(
    f'Sequence[{item.__name__}]' in str(hint) for item in items or (int, str)
  )


def _each(defaults):
  """One default that all share, or each owner's."""
  if len({str(value) for value in defaults.values()}) == 1:
    return next(iter(defaults.values()))
  return ', '.join(f'{owner} {value}' for owner, value in defaults.items())


def _integers(flag, texts):
  try:
    return [int(text) for text in texts]
  except ValueError:
    raise ValueError(
      errors.message(
        f'--{flag}', 'integers separated by commas', ','.join(texts)
      )
    ) from None
