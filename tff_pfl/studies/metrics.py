"""The metrics of a study's trials: the columns of its numbers and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np
import pandas as pd

from tff_pfl.models import split_model

# Prefixes of metrics that only data with domains have.
DOMAIN_PREFIXES = ('domain_', 'client_auc')
_AUC = split_model.PrimaryMetric('AUC', True)


class Metric(NamedTuple):
  """A column of the table.

  Attributes:
    name: Column of the numbers.
    title: The column's title, which may wrap at spaces.
    unit: 'fraction' (in [0, 1]), 'bytes', 'seconds', 'clients', 'loss' or, for
      any other metric, 'score'.
    higher_is_better: True or False, or None if neither is better.
    on_screen: True if it is in the table for the screen.
  """

  name: str
  title: str
  unit: str = 'fraction'
  higher_is_better: Optional[bool] = True
  on_screen: bool = True


# Metrics in addition to the models' metrics.
_OTHERS = (
  Metric('fraction_hurt', 'worse than global', higher_is_better=False),
  Metric('fraction_diverged', 'diverged', higher_is_better=False),
  Metric('majority_accuracy', 'most frequent class', higher_is_better=None),
  Metric('auc', 'AUC, all test examples'),
  Metric('balanced_accuracy', 'balanced accuracy, all test examples'),
  Metric('f1', 'F1, all test examples'),
  Metric('personal_loss', 'personal loss', 'loss', False, False),
  Metric('bytes_down_per_client', 'bytes down, a client', 'bytes', False),
  Metric('bytes_up_per_client', 'bytes up, a client', 'bytes', False),
  # The median, without evaluation, while other trials run.
  Metric('seconds_per_round', 'seconds a round', 'seconds', False),
)


def by_name(
  primary: split_model.PrimaryMetric = split_model.ACCURACY,
  recent: str = 'last 10 rounds',
  reported: Sequence[split_model.PrimaryMetric] = (),
) -> dict[str, Metric]:
  """All metrics, by name, in the order of the table's columns.

  Args:
    primary: Metric that compares methods.
    recent: Title of the mean over the evaluations of the last 10 rounds.
    reported: Further metrics of the models.
  """
  metrics = {}
  for metric in _all(primary, recent, reported):
    # The loss may be the primary metric, which comes first.
    metrics.setdefault(metric.name, metric)
  return metrics


def _all(primary, recent, reported) -> Iterator[Metric]:
  name, title = primary.name, primary.title
  rounds = (('_last_10', recent), ('', 'last round'))

  def scored(key, words, metric=primary, on_screen=True):
    unit = 'fraction' if metric.is_fraction else 'score'
    return Metric(key, words, unit, metric.higher_is_better, on_screen)

  for which in ('personal', 'global'):
    for suffix, when in rounds:
      shown = not suffix or which == 'personal'
      key, words = f'{which}_{name}{suffix}', f'{which} {title}, {when}'
      yield scored(key, words, on_screen=shown)
  # Means over all test examples of all clients.
  for suffix, when in (('', 'last round'), ('_best_10', 'best 10 rounds')):
    words = f'{title} over test examples, {when}'
    yield scored(f'weighted_{name}{suffix}', words, on_screen=False)
  yield scored('worst_10_percent', 'worst 10% of clients')
  for metric in reported:
    for which in ('personal', 'global'):
      words, shown = f'{which} {metric.title}', which == 'personal'
      yield scored(f'{which}_{metric.name}', words, metric, shown)
    words = f'clients with {metric.title}'
    yield Metric(f'clients_{metric.name}', words, 'clients', None)
  yield scored(f'new_client_{name}', 'new clients')
  yield scored(f'new_client_ensemble_{name}', 'new clients, by ensemble')
  yield from _OTHERS
  for key, metric in ((name, primary), ('auc', _AUC)):
    for suffix, when in rounds:
      for which in ('min', 'mean', 'max'):
        words = f'{which} {metric.title} over domains, {when}'
        key_of = f'domain_{key}_{which}{suffix}'
        yield scored(key_of, words, metric, not suffix)
  for suffix, when in rounds:
    words = f'AUC, mean over clients, {when}'
    yield Metric(f'client_auc{suffix}', words, on_screen=not suffix)


def mean_of(
  values: pd.Series, factor: float, always: bool, decimals: Optional[int] = 1
) -> Optional[str]:
  """The mean over seeds, ± the standard deviation, or None without a value.

  Args:
    values: A value for each seed. Values that are not finite are left out, and
      the text says so.
    factor: Factor for the values.
    always: True to show a deviation of 0.
    decimals: Number of decimals. None shows four significant digits.
  """
  finite = values[np.isfinite(values.astype(float))]
  if not len(finite):
    return None

  def shown(value):
    if decimals is None:
      return f'{value:.4g}'
    return f'{factor * value:.{decimals}f}'

  text = shown(statistics.fmean(finite))
  deviation = statistics.stdev(finite) if len(finite) > 1 else None
  # Counts, such as bytes, are the same for all seeds.
  if deviation is not None and (deviation > 0 or always):
    text += f' ± {shown(deviation)}'
  if len(finite) < len(values):
    text += f' ({len(finite)} of {len(values)} runs)'
  return text


def mean_text(values: pd.Series, is_fraction: bool) -> Optional[str]:
  """The `mean_of` a metric, for a fraction in percent without the sign."""
  if is_fraction:
    return mean_of(values, 100, True)
  return mean_of(values, 1, False, None)
