"""The keyword arguments that models' makers and data sets' loaders have."""

import inspect
from typing import Any, Callable, Collection, List

from tff_pfl import errors


def own_arguments(
  function: Callable[..., Any], common: Collection[str] = ()
) -> List[str]:
  """The names of a function's keyword-only arguments, but for `common` ones."""
  return [
    parameter.name
    for parameter in inspect.signature(function).parameters.values()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    and parameter.name not in common
  ]


def expect_own_arguments(
  function: Callable[..., Any],
  given: Collection[str],
  name: str,
  owner: str,
  common: Collection[str] = (),
) -> None:
  """Raises `ValueError` if a function does not take what it is given.

  Args:
    function: It will be called with them.
    given: Names of keyword arguments.
    name: What the caller calls these arguments.
    owner: What the function stands for, in the message.
    common: Keyword arguments that do not count as its own.
  """
  known = own_arguments(function, common)
  for argument in given:
    errors.expect(
      argument in known,
      name,
      f'arguments of {owner} ({", ".join(known) or "none"})',
      argument,
    )
