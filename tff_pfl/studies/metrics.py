"""The metrics of methods in a comparison, in the order of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional

from tff_pfl.models import split_model

# How the names of metrics begin that only data with domains have.
DOMAIN_PREFIXES = ('domain_', 'client_auc')
_AUC = split_model.PrimaryMetric('AUC', True)


class Metric(NamedTuple):
  """A column of the table.

  Attributes:
    name: Key of a method's `metrics`.
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
  recent: str = 'last 10\nrounds',
  reported: Sequence[split_model.PrimaryMetric] = (),
) -> dict[str, Metric]:
  """All metrics, by name, in the order of the table's columns.

  Args:
    primary: Metric that methods are compared by.
    recent: Title of the mean over the evaluations of the last 10 rounds.
    reported: Further metrics of the models.
  """
  metrics = (
    *_model_metrics(primary, recent),
    *(metric for further in reported for metric in _further_metrics(further)),
    *_new_client_metrics(primary),
    *_OTHER_SCORES,
    *_COSTS,
    *_domain_metrics(primary.name, primary, recent),
    *_domain_metrics('auc', _AUC, recent),
    # The mean over clients of the primary metric is that of any data.
    *(
      Metric(
        f'client_auc{suffix}',
        f'AUC, mean over clients, {rounds}',
        f"Mean over clients of their personal models' AUC, {when}; of clients "
        'whose test examples are of both classes.',
        on_screen=not suffix,
      )
      for suffix, rounds, when in _rounds(recent)
    ),
  )
  found = {}
  for metric in metrics:
    # The loss may be the primary one, which stands before it.
    found.setdefault(metric.name, metric)
  return found


def _primary_metric(primary, key, title, description, on_screen=True):
  """A metric that is the primary one of some models."""
  unit = 'fraction' if primary.is_fraction else 'score'
  return Metric(
    key, title, description, unit, primary.higher_is_better, on_screen
  )


def _model_metrics(primary, recent):
  """The metrics of personal and global models."""
  name, title = primary.name, primary.title

  for which, whose, missing in (
    (
      'personal',
      "their personal models'",
      'none of models that were made of the last round only',
    ),
    ('global', "the global model's", 'none without one'),
  ):
    for suffix, rounds, when in _rounds(recent):
      yield _primary_metric(
        primary,
        f'{which}_{name}{suffix}',
        f'{which} {title}, {rounds}',
        f'Mean over clients of {whose} {title}, {when}'
        + (f'; {missing}.' if suffix or which == 'global' else '.'),
        on_screen=not suffix or which == 'personal',
      )
  for suffix, rounds, when in (
    ('', 'last round', 'after the last round'),
    (
      '_best_10',
      'best 10 rounds',
      'best mean over ten consecutive rounds, all of them evaluated, which is '
      'chosen with the test data',
    ),
  ):
    yield _primary_metric(
      primary,
      f'weighted_{name}{suffix}',
      f'{title} over test examples, {rounds}',
      f"Mean over all clients' test examples of their personal models' {title},"
      f' {when}.',
      on_screen=False,
    )
  yield _primary_metric(
    primary,
    'worst_10_percent',
    'worst 10% of clients',
    f'Mean personal {title} over the worst tenth of the clients, after the '
    'last round.',
  )
  yield Metric(
    'fraction_hurt',
    'fraction hurt',
    'Clients whose personal model is worse than the global one, after the last '
    'round; none without a global model.',
    higher_is_better=False,
  )
  yield Metric(
    'fraction_diverged',
    'fraction diverged',
    'Clients whose personal model has a loss that is not finite, after the '
    f'last round: its {title} means nothing; none where there are no such '
    'clients.',
    higher_is_better=False,
  )


def _further_metrics(metric):
  """The metrics of a further metric of personal and global models."""
  for which in ('personal', 'global'):
    yield _primary_metric(
      metric,
      f'{which}_{metric.name}',
      f'{which} {metric.title}',
      f'Mean of the {which} {metric.title} over the clients whose test '
      'examples have one, after the last round.',
      on_screen=which == 'personal',
    )
  yield Metric(
    f'clients_{metric.name}',
    f'clients with {metric.title}',
    f'Clients whose test examples have {metric.title}; only where some have '
    'not.',
    'clients',
    higher_is_better=None,
  )


def _new_client_metrics(primary):
  """The metrics of clients that took no part in training."""
  name, title = primary.name, primary.title
  yield _primary_metric(
    primary,
    f'new_client_{name}',
    'new clients',
    f'Mean personal {title} over clients that took no part in training; none '
    'where there are no such clients.',
  )
  yield _primary_metric(
    primary,
    f'new_client_ensemble_{name}',
    'new clients, by ensemble',
    f'Mean {title} over new clients of the mean prediction of the models of '
    "the last round's clients, with nothing trained on the new clients; none "
    'for methods whose clients have no weights of their own.',
  )


# Those that any primary metric stands beside.
_OTHER_SCORES = (
  Metric(
    'majority_accuracy',
    'most frequent class',
    'Accuracy of always naming the class that a client has most often in '
    'training, mean over clients; only where a method is no better.',
    higher_is_better=None,
  ),
  # By the names of `two_classes` in `scores.summarize`.
  *(
    Metric(
      key,
      f'{score}, all test examples',
      f"{score} of the personal models over all clients' test examples, "
      'after the last round; of two classes.',
    )
    for key, score in (
      ('auc', 'AUC'),
      ('balanced_accuracy', 'balanced accuracy'),
      ('f1', 'F1'),
    )
  ),
  Metric(
    'personal_loss',
    'personal loss',
    "Mean over clients of their personal models' loss after the last round; "
    'seeds at which it is not finite are left out.',
    'loss',
    False,
    on_screen=False,
  ),
)

_COSTS = (
  *(
    Metric(
      f'bytes_{way}_per_{share}',
      f'bytes {way}, a {share}',
      f'Bytes that {sends} in a round, uncompressed.',
      'bytes',
      False,
      on_screen=share == 'client',
    )
    for share, whom in (('client', 'one client'), ('round', 'the whole cohort'))
    for way, sends in (
      ('down', f'the server sends to {whom}'),
      ('up', f'{whom} sends to the server'),
    )
  ),
  Metric(
    'seconds_per_round',
    'seconds a round',
    'Median over the rounds, without evaluation, on the machine of the '
    'comparison, with num_processes runs at the same time.',
    'seconds',
    False,
  ),
)


def _domain_metrics(name, score, recent):
  """The metrics of a score over domains."""
  for suffix, rounds, when in _rounds(recent):
    for key, which in (('min', 'Lowest'), ('mean', 'Mean'), ('max', 'Highest')):
      yield Metric(
        f'domain_{name}_{key}{suffix}',
        f'{key} {score.title} over domains, {rounds}',
        f"{which} of the domains' {score.title}, {when}; a domain's is that of "
        "the personal models on all clients' test examples of the domain.",
        'fraction' if score.is_fraction else 'score',
        score.higher_is_better,
        on_screen=not suffix,
      )


def _rounds(recent):
  """Suffix of a name, title and description of the rounds of a figure."""
  return (
    (
      '_last_10',
      recent.replace('\n', ' '),
      'mean over the evaluations of the last 10 rounds',
    ),
    ('', 'last round', 'after the last round'),
  )
