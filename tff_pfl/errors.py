"""Errors for caller mistakes and failed runs.

Invalid arguments raise `ValueError` or `TypeError` with one line of the form
``Expected `name` to be <constraint>, found <value!r>.``. `RunError` is for
failures around a run (a locked directory, a full disk, a dead worker). The
binaries print any of these as one line and exit with status 1.
"""

import contextlib
import errno
import inspect
import math
import numbers
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Optional

import grpc
import numpy as np
import tensorflow as tf

_ADVICE = {
  errno.EACCES: 'give a path that you may use',
  errno.EEXIST: 'give the path of a folder',
  errno.ENAMETOOLONG: 'give a shorter path',
  errno.ENOENT: 'check the path',
  errno.ENOSPC: 'free space and try again',
  errno.ENOTDIR: 'a part of the path is a file; give another path',
  errno.EROFS: 'give a path on a disk that can be written to',
}

_LARGEST = float(np.finfo(np.float32).max)


class RunError(RuntimeError):
  """A run cannot start or continue; its committed rounds stay intact."""


# Invalid settings and values, file errors, failed runs, out-of-memory errors,
# and errors of TensorFlow and its workers.
EXPECTED = (
  ValueError,
  TypeError,
  OSError,
  MemoryError,
  RunError,
  grpc.RpcError,
  tf.errors.OpError,
)


def os_reason(error: OSError) -> str:
  """Explains why a file or folder could not be used, with advice."""
  reason = error.strerror or str(error)
  advice = _ADVICE.get(error.errno)
  return f'{reason}; {advice}' if advice else reason


def reason(error: Exception) -> str:
  """Explains an error in one line.

  Args:
    error: An instance of a type in `EXPECTED`.
  """
  text = str(error)
  if isinstance(error, grpc.RpcError):
    text = f'The runtime failed: {error.details()[:500]}'
  elif isinstance(error, tf.errors.OpError):
    text = f'The runtime failed: {error.message[:500]}'
  elif isinstance(error, OSError) and error.filename is not None:
    text = f'Cannot use {error.filename}: {os_reason(error)}.'
  return ' '.join(text.split())


class _Short(reprlib.Repr):
  """Shows a value in one line of bounded length, an array by its shape."""

  def __init__(self):
    super().__init__()
    self.maxlist = self.maxtuple = self.maxset = self.maxdict = 10
    self.maxstring = self.maxother = 500

  def repr_instance(self, x: Any, level: int) -> str:
    """Represents a value that is not a string, number or collection."""
    text = super().repr_instance(x, level)
    if '\n' in text and hasattr(x, 'shape'):
      dtype = f' and {x.dtype}' if hasattr(x, 'dtype') else ''
      return f'{type(x).__name__} of shape {tuple(x.shape)}{dtype}'
    return ' '.join(text.split())


_SHORT = _Short()


def message(name: str, constraint: str, found: Any) -> str:
  """Returns the one-line message that argument checks raise."""
  return f'Expected `{name}` to be {constraint}, found {_SHORT.repr(found)}.'


@contextlib.contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
  """Renames arguments in error messages to the names that the caller knows.

  Args:
    names: From an argument's name to the text that replaces it and its
      backticks.
  """
  try:
    yield
  except (ValueError, TypeError) as error:
    if len(error.args) == 1:
      text = re.sub(r'`([\w.]+)`', lambda m: names.get(m[1], m[0]), str(error))
      error.args = (text,)
    raise


def expect(condition: Any, name: str, constraint: str, found: Any) -> None:
  """Raises `ValueError` unless `condition` holds.

  Args:
    condition: Anything with a truth value.
    name: The argument's name, as the caller wrote it.
    constraint: The requirement, which follows "to be" in the message.
    found: The offending value, or a description of it.

  Raises:
    ValueError: ``Expected `name` to be <constraint>, found <found!r>.``
  """
  if not condition:
    raise ValueError(message(name, constraint, found))


def expect_one_of(name: str, value: Any, known: Collection[Any]) -> None:
  """Raises `ValueError` unless `value` is in `known`."""
  is_known = False
  # Lists have no hash, and comparisons of arrays have no truth value.
  with contextlib.suppress(TypeError, ValueError):
    is_known = bool(value in known)
  expect(is_known, name, f'one of {", ".join(map(str, known))}', value)


def expect_plain(name: str, kind: str, value: str) -> None:
  """Raises `ValueError` if graphs or files cannot have a value as a name."""
  expect(
    re.fullmatch(r'[\w.-]+', value, re.ASCII),
    name,
    f'{kind} of ASCII letters, digits, _, - and . alone',
    value,
  )


def expect_type(value: Any, types: Any, name: str, constraint: str) -> None:
  """Raises `TypeError` unless `value` is an instance of `types`."""
  if not isinstance(value, types):
    raise TypeError(message(name, constraint, value))


def expect_int(
  name: str, value: Any, low: int, high: Optional[int] = None
) -> None:
  """Raises `ValueError` unless `value` is an integer in `[low, high]`."""
  limits = f'at least {low}' if high is None else f'in [{low}, {high}]'
  most = math.inf if high is None else high
  is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  # NumPy integers are converted, because their types have their own limits.
  is_right = is_int and low <= int(value) <= most
  expect(is_right, name, f'an integer {limits}', value)


def is_number(value: Any) -> bool:
  """True for a number that float32 can hold, up to rounding."""
  return (
    isinstance(value, numbers.Real)
    and not isinstance(value, bool)
    and abs(value) <= _LARGEST
  )


def own_arguments(
  function: Callable[..., Any], common: Collection[str] = ()
) -> list[str]:
  """Returns the names of a function's keyword-only arguments.

  Args:
    function: Any function.
    common: Names to leave out.
  """
  return [
    parameter.name
    for parameter in inspect.signature(function).parameters.values()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    and parameter.name not in common
  ]
