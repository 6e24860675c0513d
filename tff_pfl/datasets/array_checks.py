"""Checks of what users hand over as examples; nothing is silently mended."""

import numbers
from typing import Any, Optional

import numpy as np

from tff_pfl import errors

# A class for every example, beyond this many, means that the labels are not
# classes; taking them for such would ask for a huge model and partition.
_MAX_SINGLETON_CLASSES = 1000


def _as_array(value: Any, name: str) -> np.ndarray:
  try:
    array = np.asarray(value)
  except ValueError:
    array = np.empty(0, object)
  errors.expect(
    array.dtype.kind in 'biuf',
    name,
    'a rectangular array of numbers, [examples, ...]',
    f'{type(value).__name__} of {array.dtype}',
  )
  errors.expect(
    array.ndim >= 1, name, 'an array of shape [examples, ...]', value
  )
  return array


def check_finite(array: np.ndarray, name: str) -> None:
  """Raises unless `array` is free of NaN and infinity.

  Args:
    array: Of any shape and dtype; only floating-point arrays can fail.
    name: The argument's name for the message.

  Raises:
    ValueError: Says how many values are NaN or infinite, and the first index.
  """
  if array.dtype.kind != 'f':
    return
  finite = np.isfinite(array)
  if finite.all():
    return
  first = np.unravel_index(int(np.argmin(finite)), array.shape)
  num_nan = int(np.isnan(array).sum())
  num_infinite = int((~finite).sum()) - num_nan
  raise ValueError(
    f'Expected `{name}` to be finite, found {num_nan} NaN and {num_infinite}'
    f' infinite values, the first at {name}{list(map(int, first))}.'
  )


def check_inputs(value: Any, name: str) -> np.ndarray:
  """Returns inputs as an array, copied only where the dtype changes.

  Args:
    value: Numbers, `[examples, ...]`.
    name: The argument's name for messages.

  Returns:
    Array of the same shape: floats as float32, everything else as it is.

  Raises:
    ValueError: It is not a rectangular array of finite numbers.
  """
  array = _as_array(value, name)
  check_finite(array, name)
  if array.dtype.kind == 'f' and array.dtype != np.float32:
    with np.errstate(over='ignore'):
      array = array.astype(np.float32)
    check_finite(array, f'{name} as float32')
  return array


def check_targets(
  value: Any, name: str, num_classes: Optional[int]
) -> np.ndarray:
  """Returns labels as int32 or regression targets as float32.

  Args:
    value: Numbers, `[examples, ...]`.
    name: The argument's name for messages.
    num_classes: The values must be whole and in `[0, num_classes)`. None for no
      upper bound on integers; floats then are regression targets.

  Returns:
    int32 or float32 array of the same shape.

  Raises:
    ValueError: A value is not a number, not whole or out of range; the message
      names the first.
  """
  try:
    array = _as_array(value, name)
  except ValueError as error:
    raise ValueError(
      f'{error} Number the classes from 0 first if they have names.'
    ) from None
  check_finite(array, name)
  if array.dtype.kind == 'f' and num_classes is None:
    return array.astype(np.float32, copy=False)
  constraint = 'a label, an integer ' + (
    'that is not negative' if num_classes is None else f'in [0, {num_classes})'
  )
  bad = array != np.floor(array) if array.dtype.kind == 'f' else array < 0
  bad = bad | (array < 0)
  bad |= array >= (2**31 if num_classes is None else num_classes)
  if bad.any():
    first = np.unravel_index(int(np.argmax(bad)), array.shape)
    index = ', '.join(str(int(i)) for i in first)
    raise ValueError(
      errors.message(f'{name}[{index}]', constraint, array[first].item())
    )
  return array.astype(np.int32, copy=False)


def check_num_classes(value: Any) -> Optional[int]:
  """Returns `num_classes` as an int or None.

  Raises:
    ValueError: It is neither None nor a positive integer.
  """
  if value is None:
    return None
  errors.expect(
    isinstance(value, numbers.Integral)
    and not isinstance(value, bool)
    and value >= 1,
    'num_classes',
    'a positive integer, or None',
    value,
  )
  return int(value)


def infer_num_classes(y: np.ndarray, y_test: np.ndarray) -> Optional[int]:
  """Returns the largest label plus 1, or None for regression targets.

  Args:
    y: Checked training labels (int32) or targets (float32).
    y_test: Likewise for the test examples.

  Raises:
    ValueError: One of the two is labels and the other targets, or there are
      implausibly many classes.
  """
  errors.expect(
    y.dtype == y_test.dtype,
    'y_test',
    f'{"labels" if y.dtype == np.int32 else "targets"} like `y`',
    y_test.dtype,
  )
  if y.dtype != np.int32:
    return None
  labels = [int(part.max()) for part in (y, y_test) if part.size]
  num_classes = max(labels, default=0) + 1
  if num_classes > max(_MAX_SINGLETON_CLASSES, y.size + y_test.size):
    raise ValueError(
      'Expected `num_classes` to be given where labels exceed the number of'
      f' examples, found label {num_classes - 1}; pass floats as `y` for'
      ' regression.'
    )
  return num_classes


def check_equal_lengths(
  x: np.ndarray, y: np.ndarray, x_name: str, y_name: str
) -> None:
  """Raises `ValueError` unless there is one `y` for each `x`."""
  errors.expect(
    len(x) == len(y),
    y_name,
    f'as long as `{x_name}` ({len(x)} examples)',
    len(y),
  )
