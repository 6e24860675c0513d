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


def check_domain_ids(
  value: Any, name: str, num_domains: Optional[int] = None
) -> np.ndarray:
  """Returns domain ids as int32.

  Args:
    value: Integers, `[examples]`.
    name: The argument's name for messages.
    num_domains: The ids must be in `[0, num_domains)`; None for no bound.

  Returns:
    int32 array `[examples]`.

  Raises:
    ValueError: It is not a one-dimensional array of integers, or one is out of
      range; the message names the first.
  """
  try:
    array = np.asarray(value)
  except ValueError:
    array = np.empty(0, object)
  if array.shape == (0,) and array.dtype.kind == 'f':
    array = array.astype(np.int32)  # Of an empty list.
  if array.dtype.kind not in 'iu' or array.ndim != 1:
    raise ValueError(
      f'Expected `{name}` to be integers, one domain id per example, found'
      f' {type(value).__name__} of {array.dtype} and shape {array.shape};'
      ' number the domains from 0 and pass what they are called as'
      ' `domain_names`.'
    )
  limit = 2**31 if num_domains is None else num_domains
  bad = np.flatnonzero((array < 0) | (array >= limit))
  if len(bad):
    raise ValueError(
      errors.message(
        f'{name}[{bad[0]}]',
        'a domain id, an integer '
        + (
          'that is not negative'
          if num_domains is None
          else f'in [0, {num_domains})'
        ),
        array[bad[0]].item(),
      )
    )
  return array.astype(np.int32, copy=False)


def check_domain_names(value: Any) -> tuple[str, ...]:
  """Returns the names of domains as a tuple.

  Args:
    value: Distinct strings that are not empty, at least one.

  Raises:
    ValueError: It is something else.
  """
  names = () if isinstance(value, (str, bytes)) else tuple(value)
  errors.expect(
    names and all(isinstance(name, str) and name for name in names),
    'domain_names',
    'a list of names, one per domain',
    value,
  )
  repeated = next((name for name in names if names.count(name) > 1), None)
  errors.expect(repeated is None, 'domain_names', 'distinct', repeated)
  return tuple(map(str, names))


def check_domains(
  domain: Any,
  domain_test: Any,
  domain_names: Any,
  num_train: int,
  num_test: Optional[int],
) -> tuple[
  Optional[np.ndarray], Optional[np.ndarray], Optional[tuple[str, ...]]
]:
  """Returns a data set's domain ids and names, checked, or None three times.

  Args:
    domain: Domain ids of the training examples; None without domains.
    domain_test: Likewise of the test examples; None also without these.
    domain_names: What the domains are called; None for `domain_0`, … up to the
      largest id. A name may be of a domain without any example.
    num_train: Number of training examples.
    num_test: Number of test examples; None without a test set.

  Returns:
    int32 `[num_train]`, int32 `[num_test]` (None without a test set) and names.

  Raises:
    ValueError: One of the arguments is there without another that belongs to
      it, lengths differ, an id is out of range, or a name occurs twice.
  """
  if domain is None:
    for name, value in (
      ('domain_test', domain_test),
      ('domain_names', domain_names),
    ):
      errors.expect(
        value is None, name, 'given together with `domain`', 'no `domain`'
      )
    return None, None, None
  errors.expect(
    (domain_test is None) == (num_test is None),
    'domain_test',
    'given if and only if there are `domain` and test examples',
    type(domain_test).__name__,
  )
  if domain_names is not None:
    domain_names = check_domain_names(domain_names)
  num_domains = None if domain_names is None else len(domain_names)
  checked = []
  for name, value, count in (
    ('domain', domain, num_train),
    ('domain_test', domain_test, num_test),
  ):
    if value is None:
      continue
    ids = check_domain_ids(value, name, num_domains)
    errors.expect(
      len(ids) == count, name, f'{count} domain ids, one per example', len(ids)
    )
    checked.append(ids)
  if domain_names is None:
    domain_names = _numbered_domains(np.concatenate(checked))
  return checked[0], checked[1] if len(checked) > 1 else None, domain_names


def _numbered_domains(ids: np.ndarray) -> tuple[str, ...]:
  """Returns names `domain_0`, … up to the largest of checked ids."""
  num_domains = int(ids.max(initial=0)) + 1
  if num_domains > max(_MAX_SINGLETON_CLASSES, len(ids)):
    raise ValueError(
      'Expected `domain_names` to be given where domain ids exceed the number'
      f' of examples, found domain id {num_domains - 1}.'
    )
  return tuple(f'domain_{i}' for i in range(num_domains))
