"""What the library raises for mistakes of its caller and for failed runs.

Wrong arguments raise `ValueError` or `TypeError` with one line of the form
``Expected `name` to be <constraint>, found <value!r>.``. `RunError` stands for
what goes wrong around a run (a locked directory, a full disk, a dead worker).
The binaries print any of these as one line and exit with status 1.
"""

import errno
import math
import numbers
from typing import Any, Optional

_ADVICE = {
  errno.EACCES: 'give a path that may be used',
  errno.EEXIST: 'give the path of a folder',
  errno.ENAMETOOLONG: 'give a shorter path',
  errno.ENOENT: 'check the path',
  errno.ENOSPC: 'free space and try again',
  errno.ENOTDIR: 'a part of the path is a file; give another path',
  errno.EROFS: 'give a path on a disk that can be written to',
}


class RunError(RuntimeError):
  """A run cannot start or go on; what was committed before stays intact."""


def os_reason(error: OSError) -> str:
  """Returns why a file or folder could not be used, and what to do."""
  reason = error.strerror or str(error)
  advice = _ADVICE.get(error.errno)
  return f'{reason}; {advice}' if advice else reason


def message(name: str, constraint: str, found: Any) -> str:
  """Returns the one line that every check of an argument raises."""
  return f'Expected `{name}` to be {constraint}, found {found!r}.'


def expect(condition: Any, name: str, constraint: str, found: Any) -> None:
  """Raises `ValueError` unless `condition` holds.

  Args:
    condition: What must be true.
    name: The argument's name, as the caller wrote it.
    constraint: What the argument must be, read after "to be".
    found: The offending value, or a description of it.

  Raises:
    ValueError: ``Expected `name` to be <constraint>, found <found!r>.``
  """
  if not condition:
    raise ValueError(message(name, constraint, found))


def expect_type(value: Any, types: Any, name: str, constraint: str) -> None:
  """Raises `TypeError` unless `value` is an instance of `types`."""
  if not isinstance(value, types):
    raise TypeError(message(name, constraint, value))


def expect_int(
  name: str, value: Any, low: int, high: Optional[int] = None
) -> None:
  """Raises `ValueError` unless `value` is an integer in `[low, high]`."""
  limits = f'at least {low}' if high is None else f'in [{low}, {high}]'
  expect(
    isinstance(value, numbers.Integral)
    and not isinstance(value, bool)
    and value >= low
    and (high is None or value <= high),
    name,
    f'an integer {limits}',
    value,
  )


def expect_positive(name: str, value: Any) -> None:
  """Raises `ValueError` unless `value` is a positive finite number."""
  expect(_is_number(value) and value > 0, name, 'a positive number', value)


def expect_non_negative(name: str, value: Any) -> None:
  """Raises `ValueError` unless `value` is a finite number, at least 0."""
  expect(_is_number(value) and value >= 0, name, 'a non-negative number', value)


def _is_number(value: Any) -> bool:
  return (
    isinstance(value, numbers.Real)
    and not isinstance(value, bool)
    and math.isfinite(value)
  )
