"""What all parts of a page share: the order of methods, and values as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tff_pfl.experiments import results as results_lib

VARIANT_TITLES = {
  'method': 'As the runs were asked to',
  'none': 'Without fine-tuning',
  'head': 'With the head fine-tuned',
  'all': 'With all weights fine-tuned',
}
# The metric that methods are ordered by; every way to personalize has it.
RANKING = 'personal_accuracy'


def ranked(
  methods: Sequence[results_lib.MethodResult],
) -> list[results_lib.MethodResult]:
  """Methods by falling accuracy, those without one last, else as given."""

  def key(method):
    spread = method.metrics.get(RANKING)
    if spread is None or not math.isfinite(spread.mean):
      return math.inf
    return -spread.mean

  return sorted(methods, key=key)


def by_variant(
  methods: Sequence[results_lib.MethodResult],
) -> Iterator[tuple[str, str, list[results_lib.MethodResult]]]:
  """Yields each variant there is, its title, and its methods, ranked."""
  for variant, title in VARIANT_TITLES.items():
    chosen = [m for m in ranked(methods) if m.variant == variant]
    if chosen:
      yield variant, title, chosen


def percent(spread: results_lib.Spread, unit: str = '%') -> str:
  """A fraction over seeds in percent, with its spread if there is one."""
  text = f'{100 * spread.mean:.1f}{unit}'
  if spread.std is not None:
    text += f' ± {100 * spread.std:.1f}'
  return text


def seeds_note(
  method: results_lib.MethodResult, spread: results_lib.Spread
) -> str:
  """That not all seeds of a row have one of its figures; '' if they have."""
  if spread.num_seeds == method.num_seeds:
    return ''
  return f'{spread.num_seeds} of {count(method.num_seeds, "seed")}'


def value_text(value: Any) -> str:
  """A setting, which is a JSON value, as text."""
  if value is None:
    return 'none'
  if isinstance(value, Mapping):
    return assignments(value)
  if isinstance(value, (list, tuple)):
    return ', '.join(map(value_text, value)) or 'none'
  return str(value)


def assignments(values: Mapping[str, Any]) -> str:
  """Settings with their names, in one line."""
  return (
    ', '.join(f'{name} = {value_text(v)}' for name, v in values.items())
    or 'none'
  )


def count(number: int, noun: str) -> str:
  """A number of things, such as "1 run" or "1,000 runs"."""
  return f'{number:,} {noun}{"" if number == 1 else "s"}'
