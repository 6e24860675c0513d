"""Checks of users' examples; nothing is silently mended."""

import collections
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd
import tree

from tff_pfl import errors
from tff_pfl.datasets import partitioning

# Beyond this many classes, labels with a class for every example are taken for
# no classes, as they would need a huge model and partition.
_MAX_SINGLETON_CLASSES = 1000


def checked_fields(pool: partitioning.Pool) -> dict[str, Any]:
  """Checks the fields of central examples and converts them.

  The fields are the arguments of `FederatedDataset.from_arrays`, also in
  messages; arrays are copied only if the dtype changes.
  """
  num_classes = pool.num_classes
  if num_classes is not None:
    errors.expect_int('num_classes', num_classes, 1)
  has_test, has_domain = pool.x_test is not None, pool.domain is not None
  for name, is_wanted, condition in (
    ('y_test', has_test, '`x_test` is'),
    ('domain_test', has_test and has_domain, '`domain` and `x_test` are'),
  ):
    value = getattr(pool, name)
    errors.expect(
      (value is not None) == is_wanted,
      name,
      f'given if and only if {condition}',
      type(value).__name__,
    )
  names, num_domains = pool.domain_names, None
  if names is not None:
    errors.expect(has_domain, 'domain_names', 'given with `domain` only', names)
    names = check_domain_names(names)
    num_domains = len(names)
  checked: dict[str, Any] = {}
  for suffix in ('', '_test') if has_test else ('',):
    x = check_inputs(getattr(pool, f'x{suffix}'), f'x{suffix}')
    each = {
      'y': check_targets(getattr(pool, f'y{suffix}'), f'y{suffix}', num_classes)
    }
    if has_domain:
      each['domain'] = check_domain_ids(
        getattr(pool, f'domain{suffix}'), f'domain{suffix}', num_domains
      )
    if pool.weight is not None:
      weight = getattr(pool, f'weight{suffix}')
      if weight is None:
        weight = np.ones(len(each['y']), np.float32)
      each['weight'] = check_weights(weight, f'weight{suffix}')
    checked[f'x{suffix}'] = x
    for name, values in each.items():
      checked[f'{name}{suffix}'] = values
      for array in tree.flatten(x):
        errors.expect(
          len(array) == len(values),
          f'{name}{suffix}',
          f'as long as `x{suffix}` ({len(array)} examples)',
          len(values),
        )
  for name in ('x', 'y') if has_test else ():
    wanted, found = (
      tree.map_structure(
        lambda array: f'{(None, *array.shape[1:])} and {array.dtype}',
        checked[key],
      )
      for key in (name, f'{name}_test')
    )
    errors.expect(
      found == wanted, f'{name}_test', f'of shape {wanted} like `{name}`', found
    )
  weights = checked.get('weight', np.ones(1))
  errors.expect(
    weights.any() or not weights.size,
    'weight',
    'above 0 for one example at least, as nothing is trained without',
    'zeros only',
  )
  if num_classes is None and checked['y'].dtype == np.int32:
    num_classes = _number_of_ids('num_classes', checked, 'y')
  if has_domain and names is None:
    num_domains = _number_of_ids('domain_names', checked, 'domain')
    names = tuple(f'domain_{i}' for i in range(num_domains))
  return {**checked, 'num_classes': num_classes, 'domain_names': names}


def _number_of_ids(name: str, checked: dict[str, Any], of: str) -> int:
  """Returns the largest checked id plus 1; refuses an implausible one."""
  ids = [checked[key] for key in (of, f'{of}_test') if key in checked]
  largest = max(int(part.max(initial=0)) for part in ids)
  errors.expect(
    largest < max(_MAX_SINGLETON_CLASSES, sum(p.size for p in ids)),
    name,
    f'given where ids in `{of}` exceed the number of examples',
    largest,
  )
  return largest + 1


def _rectangular(value: Any, name: str) -> np.ndarray:
  """Returns an array, of dtype object if rows are of unequal length."""
  errors.expect(
    not isinstance(value, np.ma.MaskedArray),
    name,
    'an array without a mask, as masked values would be trained on',
    'a masked array',
  )
  try:
    return np.asarray(value)
  except ValueError:
    return np.empty(0, object)


def _numbers(value: Any, name: str) -> np.ndarray:
  """Returns an array of finite numbers, floats as float32."""
  array = _rectangular(value, name)
  if isinstance(value, pd.DataFrame) and array.dtype == object:
    # Columns of several kinds, such as numbers and nullable numbers.
    columns = (value.iloc[:, i] for i in range(value.shape[1]))
    array = np.column_stack(
      [_numbers(column, f'{name}[{column.name!r}]') for column in columns]
    )
  errors.expect(
    array.dtype.kind in 'biuf' and array.ndim,
    name,
    'a rectangular array of numbers, [examples, ...]',
    f'{type(value).__name__} of {array.dtype} and shape {array.shape}',
  )
  if array.dtype.kind != 'f':
    return array
  with np.errstate(over='ignore'):
    floats = array.astype(np.float32, copy=False)
  _expect_each(np.isfinite(floats), array, name, 'finite, as float32')
  return floats


def _expect_each(
  are_good: np.ndarray, array: np.ndarray, name: str, constraint: str
) -> None:
  """Raises `ValueError` that names the first value that is not good."""
  if not are_good.all():
    first = np.unravel_index(np.argmin(are_good), array.shape)
    place = f'{name}{[*map(int, first)]}'
    errors.expect(False, place, constraint, array[first].item())


def check_inputs(value: Any, name: str) -> Any:
  """Checks inputs and converts floats to float32.

  Args:
    value: Numbers `[examples, ...]`, or a dict of several inputs; copied only
      if the dtype changes.
    name: Name of the value in messages.
  """
  if isinstance(value, Mapping):
    errors.expect(value, name, 'at least one kind of inputs', value)
    return collections.OrderedDict(
      (key, check_inputs(value[key], f'{name}[{key!r}]'))
      for key in sorted(value)
    )
  return _numbers(value, name)


def check_targets(
  value: Any, name: str, num_classes: Optional[int]
) -> np.ndarray:
  """Checks labels, as int32, or regression targets, as float32.

  Args:
    value: Numbers, `[examples, ...]`.
    name: Name of the value in messages.
    num_classes: Bound on labels, which must be whole and in
      `[0, num_classes)`. None for no bound on integers; floats then are
      regression targets.
  """
  array = _numbers(value, name)
  if array.dtype.kind == 'f' and num_classes is None:
    return array
  return _as_ids(array, name, 'a label', num_classes)


def _as_ids(
  array: np.ndarray, name: str, what: str, num_ids: Optional[int]
) -> np.ndarray:
  """Converts numbers to int32; all must be whole and in `[0, num_ids)`."""
  limit = 2**31 if num_ids is None else num_ids
  are_ids = (array >= 0) & (array < limit)
  if array.dtype.kind == 'f':
    are_ids &= array == np.floor(array)
  _expect_each(are_ids, array, name, f'{what}, an integer in [0, {limit})')
  return array.astype(np.int32, copy=False)


def check_domain_ids(
  value: Any, name: str, num_domains: Optional[int] = None
) -> np.ndarray:
  """Checks domain ids and converts them to int32.

  Args:
    value: Integers, `[examples]`.
    name: Name of the value in messages.
    num_domains: Bound on the ids, which are in `[0, num_domains)`; None for no
      bound.
  """
  array = _rectangular(value, name)
  if not array.size and array.dtype.kind == 'f':
    array = array.astype(np.int32)  # An empty list is one of floats.
  errors.expect(
    array.dtype.kind in 'iu' and array.ndim == 1,
    name,
    'integers, one domain id per example',
    f'{type(value).__name__} of {array.dtype} and shape {array.shape}',
  )
  return _as_ids(array, name, 'a domain id', num_domains)


def check_weights(value: Any, name: str) -> np.ndarray:
  """Checks weights of examples, `[examples]`; converts them to float32."""
  array = _numbers(value, name)
  errors.expect(array.ndim == 1, name, 'one number per example', array.shape)
  _expect_each(array >= 0, array, name, 'not negative')
  return array.astype(np.float32, copy=False)


def check_domain_names(value: Any) -> tuple[str, ...]:
  """Checks names of domains: at least one, distinct, none of them empty."""
  names = () if isinstance(value, (str, bytes)) else tuple(value)
  errors.expect(
    0 < len(names) == len({*names})
    and all(isinstance(name, str) and name for name in names),
    'domain_names',
    'a list of distinct names, one per domain',
    value,
  )
  return tuple(map(str, names))
