"""The metrics of a study's trials: the columns of its numbers and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

import numpy as np
import pandas as pd

from tff_pfl.models import split_model

# How the names of metrics begin that only data with domains have.
DOMAIN_PREFIXES = ('domain_', 'client_auc')
_AUC = split_model.PrimaryMetric('AUC', True)


class Metric(NamedTuple):
  """A column of the table.

  Attributes:
    name: Column of the numbers.
    title: The column's title; lines are to be broken at spaces.
    description: Explanation of the column.
    unit: 'fraction' (in [0, 1]), 'bytes', 'seconds', 'clients', 'loss' or, of
      any other metric, 'score'.
    higher_is_better: True or False; None where neither is better.
    on_screen: True if it is in the table for the screen.
  """

  name: str
  title: str
  description: str
  unit: str = 'fraction'
  higher_is_better: Optional[bool] = True
  on_screen: bool = True


def by_name(
  primary: split_model.PrimaryMetric = split_model.ACCURACY,
  recent: str = 'last 10 rounds',
  reported: Sequence[split_model.PrimaryMetric] = (),
) -> dict[str, Metric]:
  """All metrics, by name, in the order of the table's columns.

  Args:
    primary: Metric that methods are compared by.
    recent: Title of the mean over the evaluations of the last 10 rounds.
    reported: Further metrics of the models.
  """
  found = {}
  for metric in _all(primary, recent, reported):
    # The loss may be the primary one, which stands before it.
    found.setdefault(metric.name, metric)
  return found


def _scored(name, title, description, metric, on_screen=True):
  unit = 'fraction' if metric.is_fraction else 'score'
  return Metric(
    name, title, description, unit, metric.higher_is_better, on_screen
  )


def _all(primary, recent, reported) -> Iterator[Metric]:
  name, title = primary.name, primary.title
  rounds = (
    ('_last_10', recent, 'mean over the evaluations of the last 10 rounds'),
    ('', 'last round', 'after the last round'),
  )
  for which in ('personal', 'global'):
    for suffix, words, when in rounds:
      yield _scored(
        f'{which}_{name}{suffix}',
        f'{which} {title}, {words}',
        f'Mean {title} over clients of the {which} model, {when}.',
        primary,
        not suffix or which == 'personal',
      )
  for suffix, words in (('', 'last round'), ('_best_10', 'best 10 rounds')):
    yield _scored(
      f'weighted_{name}{suffix}',
      f'{title} over test examples, {words}',
      f'Mean {title} of personal models over all test examples, {words}'
      + ' (chosen with the test data).' * bool(suffix),
      primary,
      False,
    )
  yield _scored(
    'worst_10_percent',
    'worst 10% of clients',
    f'Mean personal {title} over the worst tenth of the clients.',
    primary,
  )
  yield Metric(
    'fraction_hurt',
    'fraction hurt',
    'Clients whose personal model is worse than the global one.',
    higher_is_better=False,
  )
  yield Metric(
    'fraction_diverged',
    'fraction diverged',
    'Clients whose personal model has a loss that is not finite.',
    higher_is_better=False,
  )
  for metric in reported:
    for which in ('personal', 'global'):
      yield _scored(
        f'{which}_{metric.name}',
        f'{which} {metric.title}',
        f'Mean {which} {metric.title} over clients that have one.',
        metric,
        which == 'personal',
      )
    yield Metric(
      f'clients_{metric.name}',
      f'clients with {metric.title}',
      f'Clients whose test examples have {metric.title}, where some have not.',
      'clients',
      None,
    )
  for key, words in (('', 'new clients'), ('ensemble_', 'new, by ensemble')):
    yield _scored(
      f'new_client_{key}{name}',
      words,
      f'Mean {title} over clients that took no part in training, '
      + (
        "by the mean prediction of the last cohort's models."
        if key
        else 'of models that are fitted to their training examples.'
      ),
      primary,
    )
  yield Metric(
    'majority_accuracy',
    'most frequent class',
    "Accuracy of always naming a client's most frequent class, where a method "
    'is no better.',
    higher_is_better=None,
  )
  for key, words in (
    ('auc', 'AUC'),
    ('balanced_accuracy', 'balanced accuracy'),
    ('f1', 'F1'),
  ):
    yield Metric(
      key,
      f'{words}, all test examples',
      f"{words} of personal models over all clients' test examples.",
    )
  yield Metric(
    'personal_loss',
    'personal loss',
    "Mean of the personal models' loss over clients.",
    'loss',
    False,
    on_screen=False,
  )
  for share, whom in (('client', 'one client'), ('round', 'the cohort')):
    for way, words in (('down', 'to'), ('up', 'from')):
      yield Metric(
        f'bytes_{way}_per_{share}',
        f'bytes {way}, a {share}',
        f'Bytes {words} {whom} in a round, uncompressed.',
        'bytes',
        False,
        on_screen=share == 'client',
      )
  yield Metric(
    'seconds_per_round',
    'seconds a round',
    'Median over the rounds, without evaluation, beside the other trials.',
    'seconds',
    False,
  )
  for key, metric in ((name, primary), ('auc', _AUC)):
    for suffix, words, when in rounds:
      for which in ('min', 'mean', 'max'):
        yield _scored(
          f'domain_{key}_{which}{suffix}',
          f'{which} {metric.title} over domains, {words}',
          f'{which.capitalize()} over domains of the {metric.title} on all '
          f"clients' test examples of a domain, {when}.",
          metric,
          not suffix,
        )
  for suffix, words, when in rounds:
    yield Metric(
      f'client_auc{suffix}',
      f'AUC, mean over clients, {words}',
      f"Mean of the personal models' AUC over clients with both classes, "
      f'{when}.',
      on_screen=not suffix,
    )


def mean_of(
  values: pd.Series, factor: float, always: bool, decimals: Optional[int] = 1
) -> Optional[str]:
  """The mean over seeds and, after ±, the deviation; None without a value.

  Args:
    values: A value for each seed. Those that are not finite are left out, and
      the text says so.
    factor: Factor of the values.
    always: True to have a deviation of 0.
    decimals: Decimals; None for four digits.
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
  # What is counted, as bytes are, is the same for all seeds.
  if deviation is not None and (deviation > 0 or always):
    text += f' ± {shown(deviation)}'
  if len(finite) < len(values):
    text += f' ({len(finite)} of {len(values)} runs)'
  return text


def mean_text(
  values: pd.Series, metric: split_model.PrimaryMetric
) -> Optional[str]:
  """The mean of a metric over seeds and, after ±, its deviation if any."""
  is_fraction = metric.is_fraction
  return mean_of(
    values, 100 if is_fraction else 1, is_fraction, 1 if is_fraction else None
  )
