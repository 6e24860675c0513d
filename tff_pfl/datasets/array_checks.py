"""Checks of users' examples, which are never silently corrected."""

import collections
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd
import tree

from tff_pfl import errors
from tff_pfl.datasets import partitioning

# Inferred numbers of classes or domains above this and above the number of
# examples are errors, as they would need a huge model and partition.
_MAX_SINGLETON_CLASSES = 1000


def field_checks(
  num_classes: Optional[int], num_domains: Optional[int]
) -> dict[str, Callable[[Any, str], Any]]:
  """Returns functions of a value and its name that check and convert a field.

  Args:
    num_classes: Bound on labels. None means regression or no bound.
    num_domains: Bound on domain ids. None means no bound.
  """
  return {
    'x': check_inputs,
    'y': lambda y, name: check_targets(y, name, num_classes),
    'domain': lambda ids, name: check_domain_ids(ids, name, num_domains),
    'weight': check_weights,
  }


def checked_fields(pool: partitioning.Pool) -> dict[str, Any]:
  """Checks the fields of central examples and converts them.

  Messages name the fields like the arguments of `FederatedDataset.from_arrays`.
  Arrays are copied only if the dtype changes.
  """
  num_classes, names = pool.num_classes, pool.domain_names
  if num_classes is not None:
    errors.expect_int('num_classes', num_classes, 1)
  if names is not None:
    names = check_domain_names(names)
  checks = field_checks(num_classes, names and len(names))
  has_test = any(getattr(pool, f'{field}_test') is not None for field in checks)
  # Training and test examples have the same fields: checks reject None.
  fields = ['x', 'y'] + [
    field
    for field in ('domain', 'weight')
    if getattr(pool, field) is not None
    or getattr(pool, f'{field}_test') is not None
  ]
  checked: dict[str, Any] = {}
  for suffix in ('', '_test') if has_test else ('',):
    for field in fields:
      name = f'{field}{suffix}'
      value = getattr(pool, name)
      if field == 'weight' and value is None:
        value = np.ones(len(checked[f'y{suffix}']))
      checked[name] = checks[field](value, name)
      num_examples = len(tree.flatten(checked[f'x{suffix}'])[0])
      for array in tree.flatten(checked[name]):
        errors.expect(
          len(array) == num_examples,
          name,
          f'as long as `x{suffix}` ({num_examples} examples)',
          len(array),
        )
  for name in ('x', 'y') if has_test else ():
    form, form_test = (
      tree.map_structure(
        lambda array: f'{(None, *array.shape[1:])} and {array.dtype}', part
      )
      for part in (checked[name], checked[f'{name}_test'])
    )
    errors.expect(
      form_test == form,
      f'{name}_test',
      f'of shape {form} like `{name}`',
      form_test,
    )
  if num_classes is None and checked['y'].dtype == np.int32:
    num_classes = _number_of_ids('num_classes', checked, 'y')
  if 'domain' in checked and names is None:
    num_domains = _number_of_ids('domain_names', checked, 'domain')
    names = tuple(f'domain_{i}' for i in range(num_domains))
  return {**checked, 'num_classes': num_classes, 'domain_names': names}


def _number_of_ids(name: str, checked: dict[str, Any], field: str) -> int:
  """Returns the largest checked id plus 1. Raises if it is implausible."""
  ids = [checked[key] for key in (field, f'{field}_test') if key in checked]
  largest = max(int(part.max(initial=0)) for part in ids)
  errors.expect(
    largest < max(_MAX_SINGLETON_CLASSES, sum(part.size for part in ids)),
    name,
    f'given if ids in `{field}` exceed the number of examples',
    largest,
  )
  return largest + 1


def _numbers(value: Any, name: str) -> np.ndarray:
  """Returns an array of finite numbers, floats as float32."""
  errors.expect(
    not isinstance(value, np.ma.MaskedArray),
    name,
    'an array without a mask, as masked values would be trained on',
    'a masked array',
  )
  array = np.empty(0, object)
  with contextlib.suppress(ValueError):  # Rows of unequal length, or words.
    array = np.asarray(value)
    if isinstance(value, pd.DataFrame) and array.dtype == object:
      # Columns of several kinds, such as numbers and nullable numbers.
      array = value.to_numpy(np.float32, na_value=np.nan)
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


def _one_each(value: Any, name: str) -> np.ndarray:
  """Returns an array with one number per example."""
  array = _numbers(value, name)
  errors.expect(array.ndim == 1, name, 'one number per example', array.shape)
  return array


def _expect_each(
  are_good: np.ndarray, array: np.ndarray, name: str, constraint: str
) -> None:
  """Raises a `ValueError` that names the first bad value."""
  if not are_good.all():
    first = np.unravel_index(np.argmin(are_good), array.shape)
    place = f'{name}{[*map(int, first)]}'
    errors.expect(False, place, constraint, array[first].item())


def check_inputs(value: Any, name: str) -> Any:
  """Checks inputs and converts floats to float32.

  Args:
    value: Numbers `[examples, ...]`, or a dict of several inputs. Copied only
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
  """Converts labels to int32, or regression targets to float32, with checks.

  Args:
    value: Numbers, `[examples, ...]`.
    name: Name of the value in messages.
    num_classes: Bound on labels, which must be whole and in
      `[0, num_classes)`. None means no bound on integers, and that floats are
      regression targets.
  """
  array = _numbers(value, name)
  if array.dtype.kind == 'f' and num_classes is None:
    return array
  return _as_ids(array, name, 'a label', num_classes)


def _as_ids(
  array: np.ndarray, name: str, kind: str, num_ids: Optional[int]
) -> np.ndarray:
  """Converts whole numbers in `[0, num_ids)` to int32; rejects others."""
  limit = 2**31 if num_ids is None else num_ids
  are_ids = (array >= 0) & (array < limit) & (array == np.floor(array))
  _expect_each(are_ids, array, name, f'{kind}, an integer in [0, {limit})')
  return array.astype(np.int32, copy=False)


def check_domain_ids(
  value: Any, name: str, num_domains: Optional[int] = None
) -> np.ndarray:
  """Checks domain ids and converts them to int32.

  Args:
    value: Whole numbers, `[examples]`.
    name: Name of the value in messages.
    num_domains: Bound on the ids, which are in `[0, num_domains)`. None means
      no bound.
  """
  return _as_ids(_one_each(value, name), name, 'a domain id', num_domains)


def check_weights(value: Any, name: str) -> np.ndarray:
  """Checks weights of examples, `[examples]`, and converts them to float32."""
  array = _one_each(value, name)
  _expect_each(array >= 0, array, name, 'not negative')
  return array.astype(np.float32, copy=False)


def check_domain_names(value: Any) -> tuple[str, ...]:
  """Checks names of domains: at least one, distinct, none empty."""
  names = () if isinstance(value, (str, bytes)) else tuple(value)
  errors.expect(
    0 < len(names) == len({*names})
    and all(isinstance(name, str) and name for name in names),
    'domain_names',
    'a list of distinct names, one per domain',
    value,
  )
  return tuple(map(str, names))
