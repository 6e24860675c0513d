"""Checks of what users hand over as examples; nothing is silently mended."""

import collections
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import tree

from tff_pfl import errors
from tff_pfl.datasets import partitioning

# A class for every example, beyond this many, means that the labels are not
# classes; taking them for such would ask for a huge model and partition.
_MAX_SINGLETON_CLASSES = 1000


def check_arrays(
  x: Any,
  y: Any,
  x_test: Any = None,
  y_test: Any = None,
  *,
  num_classes: Any = None,
  domain: Any = None,
  domain_test: Any = None,
  domain_names: Any = None,
) -> partitioning.Pool:
  """Returns central examples, copied only where the dtype changes.

  The arguments are those of `FederatedDataset.from_arrays`.

  Raises:
    ValueError: Lengths or kinds differ, an input is not finite, or a label or a
      domain id is out of range; the message says which.
  """
  num_classes = check_num_classes(num_classes)
  x, y = _check_split(x, y, '', num_classes)
  has_test = x_test is not None
  errors.expect(
    has_test == (y_test is not None),
    'x_test and y_test',
    'both given or both absent',
    'one of them',
  )
  if has_test:
    x_test, y_test = _check_split(x_test, y_test, '_test', num_classes)
    for part, name, like in ((x_test, 'x', x), (y_test, 'y', y)):
      found, wanted = (
        tree.map_structure(
          lambda array: f'{(None, *array.shape[1:])} and {array.dtype}', arrays
        )
        for arrays in (part, like)
      )
      errors.expect(
        found == wanted,
        f'{name}_test',
        f'of shape {wanted} like `{name}`',
        found,
      )
  if num_classes is None:
    num_classes = _infer_num_classes(y, y_test if has_test else y)
  return _check_domains(
    partitioning.Pool(
      y, y_test, num_classes, domain, domain_test, domain_names, x, x_test
    )
  )


def _check_split(
  x: Any, y: Any, suffix: str, num_classes: Optional[int]
) -> tuple[Any, np.ndarray]:
  x = check_inputs(x, f'x{suffix}')
  y = check_targets(y, f'y{suffix}', num_classes)
  for array in tree.flatten(x):
    errors.expect(
      len(array) == len(y),
      f'y{suffix}',
      f'as long as `x{suffix}` ({len(array)} examples)',
      len(y),
    )
  return x, y


def _as_array(value: Any, name: str) -> np.ndarray:
  array = _rectangular(value)
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


def _rectangular(value: Any) -> np.ndarray:
  """Returns an array, of no known type where rows are of unequal length."""
  try:
    return np.asarray(value)
  except ValueError:
    return np.empty(0, object)


def _check_finite(array: np.ndarray, name: str) -> None:
  """Raises `ValueError` if values are NaN or infinite, and names the first."""
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


def check_inputs(value: Any, name: str) -> Any:
  """Returns inputs `[examples, ...]`, floats as float32, others as they are.

  Args:
    value: Numbers, or several kinds of inputs by name, a dict; copied only
      where the dtype changes.

  Raises:
    ValueError: It is not a rectangular array of finite numbers.
  """
  if isinstance(value, Mapping):
    errors.expect(value, name, 'at least one kind of inputs', value)
    return collections.OrderedDict(
      (key, check_inputs(value[key], f'{name}[{key!r}]'))
      for key in sorted(value)
    )
  array = _as_array(value, name)
  _check_finite(array, name)
  if array.dtype.kind == 'f' and array.dtype != np.float32:
    with np.errstate(over='ignore'):
      array = array.astype(np.float32)
    _check_finite(array, f'{name} as float32')
  return array


def check_targets(
  value: Any, name: str, num_classes: Optional[int]
) -> np.ndarray:
  """Returns labels as int32 or regression targets as float32.

  Args:
    value: Numbers, `[examples, ...]`.
    num_classes: The values must be whole and in `[0, num_classes)`. None for no
      upper bound on integers; floats then are regression targets.

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
  _check_finite(array, name)
  if array.dtype.kind == 'f' and num_classes is None:
    return array.astype(np.float32, copy=False)
  return _as_ids(array, name, 'a label', num_classes)


def _as_ids(
  array: np.ndarray, name: str, what: str, num_ids: Optional[int]
) -> np.ndarray:
  """Returns numbers as int32, all whole and in `[0, num_ids)`."""
  bad = (array < 0) | (array >= (2**31 if num_ids is None else num_ids))
  if array.dtype.kind == 'f':
    bad |= array != np.floor(array)
  if bad.any():
    first = np.unravel_index(int(np.argmax(bad)), array.shape)
    index = ', '.join(str(int(i)) for i in first)
    limit = 'that is not negative' if num_ids is None else f'in [0, {num_ids})'
    raise ValueError(
      errors.message(
        f'{name}[{index}]', f'{what}, an integer {limit}', array[first].item()
      )
    )
  return array.astype(np.int32, copy=False)


def check_num_classes(value: Any) -> Optional[int]:
  """Returns `num_classes`, None or else a positive integer, as an int."""
  if value is None:
    return None
  errors.expect_int('num_classes', value, 1)
  return int(value)


def _infer_num_classes(y: np.ndarray, y_test: np.ndarray) -> Optional[int]:
  """Returns the largest checked label plus 1, or None for targets."""
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


def check_domain_ids(
  value: Any, name: str, num_domains: Optional[int] = None
) -> np.ndarray:
  """Returns domain ids as int32.

  Args:
    value: Integers, `[examples]`.
    num_domains: The ids must be in `[0, num_domains)`; None for no bound.

  Raises:
    ValueError: They are not; the message names the first.
  """
  array = _rectangular(value)
  if array.shape == (0,) and array.dtype.kind == 'f':
    array = array.astype(np.int32)  # Of an empty list.
  if array.dtype.kind not in 'iu' or array.ndim != 1:
    raise ValueError(
      f'Expected `{name}` to be integers, one domain id per example, found'
      f' {type(value).__name__} of {array.dtype} and shape {array.shape};'
      ' number the domains from 0 and pass what they are called as'
      ' `domain_names`.'
    )
  return _as_ids(array, name, 'a domain id', num_domains)


def check_domain_names(value: Any) -> tuple[str, ...]:
  """Returns names of domains: distinct, none of them empty, at least one."""
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


def _check_domains(pool: partitioning.Pool) -> partitioning.Pool:
  """Returns the examples with their domains, if they have any, checked."""
  if pool.domain is None:
    for name in ('domain_test', 'domain_names'):
      errors.expect(
        getattr(pool, name) is None,
        name,
        'given together with `domain`',
        'no `domain`',
      )
    return pool
  errors.expect(
    (pool.domain_test is None) == (pool.y_test is None),
    'domain_test',
    'given if and only if there are `domain` and test examples',
    type(pool.domain_test).__name__,
  )
  names, num_domains = pool.domain_names, None
  if names is not None:
    names = check_domain_names(names)
    num_domains = len(names)
  ids = {}
  for name, y in (('domain', pool.y), ('domain_test', pool.y_test)):
    if y is not None:
      ids[name] = check_domain_ids(getattr(pool, name), name, num_domains)
      errors.expect(
        len(ids[name]) == len(y),
        name,
        f'{len(y)} domain ids, one per example',
        len(ids[name]),
      )
  if names is None:
    names = _numbered_domains(np.concatenate(list(ids.values())))
  return pool._replace(**ids, domain_names=names)


def _numbered_domains(ids: np.ndarray) -> tuple[str, ...]:
  """Returns names `domain_0`, … up to the largest of checked ids."""
  num_domains = int(ids.max(initial=0)) + 1
  if num_domains > max(_MAX_SINGLETON_CLASSES, len(ids)):
    raise ValueError(
      'Expected `domain_names` to be given where domain ids exceed the number'
      f' of examples, found domain id {num_domains - 1}.'
    )
  return tuple(f'domain_{i}' for i in range(num_domains))
