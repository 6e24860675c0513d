"""Checks of arguments that several modules of this package share."""

import math
from typing import Any

import numpy as np

from tff_pfl import errors


def expect_positive(name: str, value: Any) -> None:
  """Raises `ValueError` unless `value` is a positive finite number."""
  errors.expect(
    _is_number(value) and value > 0, name, 'a positive number', value
  )


def expect_non_negative(name: str, value: Any) -> None:
  """Raises `ValueError` unless `value` is a finite number, at least 0."""
  errors.expect(
    _is_number(value) and value >= 0, name, 'a non-negative number', value
  )


def _is_number(value: Any) -> bool:
  return (
    isinstance(value, (int, float, np.integer, np.floating))
    and not isinstance(value, bool)
    and math.isfinite(value)
  )
