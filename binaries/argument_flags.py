"""Flags made of the keyword arguments of functions, such as models' makers."""

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from absl import flags

from tff_pfl import errors
from tff_pfl.client import hparams


class ArgumentFlags:
  """A flag for each keyword argument that functions of one kind have.

  Its help text is what the functions' docstrings say; unset means their
  default.
  """

  def __init__(
    self,
    kind: str,
    functions: Mapping[str, Callable[..., Any]],
    common: Collection[str] = (),
  ):
    """Defines the flags.

    Args:
      kind: What the functions make, as in --model; begins the flags' names.
      functions: By the name that selects one.
      common: Arguments that have flags of their own.
    """
    self._kind = kind
    self._hints: dict[str, Any] = {}
    defaults: dict[str, dict[str, Any]] = {}
    for name, function in functions.items():
      hints = typing.get_type_hints(function)
      parameters = inspect.signature(function).parameters
      for argument in errors.own_arguments(function, common):
        self._hints.setdefault(argument, hints[argument])
        defaults.setdefault(argument, {})[name] = parameters[argument].default
    for name, by_owner in defaults.items():
      text = hparams.help_text(functions[next(iter(by_owner))], name)
      text += f' (default: {_each(by_owner)})'
      of = f'--{kind}={" or ".join(by_owner)}'
      self._define(name)(f'{kind}_{name}', None, f'With {of}: {text}')

  def _define(self, name):
    hint = self._hints[name]
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

  def names(self) -> list[str]:
    """The flags' names."""
    return [f'{self._kind}_{name}' for name in self._hints]

  def given(self) -> dict[str, Any]:
    """The arguments whose flags are given.

    Raises:
      ValueError: If one should be integers and is not.
    """
    arguments = {}
    for name, hint in self._hints.items():
      flag = f'{self._kind}_{name}'
      value = flags.FLAGS[flag].value
      # An empty list takes a flag back that a preset gives.
      if value is not None and value != []:
        if _is_list(hint, int):
          value = _integers(flag, value)
          if len(value) == 1 and typing.get_origin(hint) is typing.Union:
            (value,) = value
        arguments[name] = value
    return arguments


def _is_list(hint, *items) -> bool:
  """Whether it is a sequence of integers or strings, or may be one."""
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
