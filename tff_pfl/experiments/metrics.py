"""The figures that a comparison has of each method."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tff_pfl.models import split_model

# How the names of metrics begin that only data with domains have.
OF_DOMAINS = ('domain_', 'client_auc')
# What the mean over the last evaluations is called where there were ten.
LAST_10_ROUNDS = 'last 10 rounds'


class Metric(NamedTuple):
  """A column of the table.

  Attributes:
    name: Key in `MethodResult.metrics`.
    title: The column's title; lines are to be broken at spaces.
    unit: 'accuracy' (in [0, 1]), 'fraction' (in [0, 1]), 'bytes', 'seconds',
      'loss' or, of any other metric, 'score'.
    higher_is_better: None where neither is.
  """

  name: str
  title: str
  description: str
  unit: str = 'accuracy'
  higher_is_better: Optional[bool] = True


def by_name(
  primary: split_model.PrimaryMetric = split_model.ACCURACY,
  recent: str = LAST_10_ROUNDS,
) -> dict[str, Metric]:
  """All metrics, by name, in the order of the table's columns.

  Args:
    primary: What methods are compared by.
    recent: What the mean over the evaluations of the last 10 rounds is called.
  """
  metrics = (
    *_of_models(primary, recent),
    *_COSTS,
    *_of_domains(primary.name, primary, recent),
    *_of_domains('auc', split_model.PrimaryMetric('AUC', True), recent),
    # The mean over clients of the primary metric is that of any data.
    *(
      Metric(
        f'client_auc{suffix}',
        f'AUC, mean over clients, {rounds}',
        f"Mean over clients of their personal models' AUC, {when}; of clients "
        'whose test examples are of both classes.',
      )
      for suffix, rounds, when in _rounds(recent)
    ),
  )
  return {metric.name: metric for metric in metrics}


def unit_of(primary: split_model.PrimaryMetric) -> str:
  """The unit of a metric of models."""
  return 'accuracy' if primary.is_fraction else 'score'


def _of_models(primary, recent):
  """The metrics of personal and global models."""
  name, title = primary.name, primary.title

  def metric(key, heading, description):
    return Metric(
      key, heading, description, unit_of(primary), primary.higher_is_better
    )

  yield metric(
    f'personal_{name}_last_10',
    f'personal {title}, {recent}',
    'Mean over clients and over the evaluations of the last 10 rounds; of '
    'personal models that were made of the last round only, none.',
  )
  yield metric(
    f'personal_{name}',
    f'personal {title}, last round',
    f"Mean over clients of their personal models' {title} after the last "
    'round.',
  )
  yield metric(
    f'global_{name}_last_10',
    f'global {title}, {recent}',
    'Mean over clients and over the evaluations of the last 10 rounds of the '
    f'{title} of the global model; none without one.',
  )
  yield metric(
    f'global_{name}',
    f'global {title}, last round',
    f'Mean over clients of the {title} of the global model after the last '
    'round; none without one.',
  )
  yield metric(
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
    'fraction',
    False,
  )
  yield Metric(
    'fraction_diverged',
    'fraction diverged',
    'Clients whose personal model has a loss that is not finite, after the '
    f'last round: its {title} means nothing; none where there are no such '
    'clients.',
    'fraction',
    False,
  )
  yield metric(
    f'new_client_{name}',
    'new clients',
    f'Mean personal {title} over clients that took no part in training; none '
    'where there are no such clients.',
  )
  yield metric(
    f'new_client_ensemble_{name}',
    'new clients, by ensemble',
    f'Mean {title} over new clients of the mean prediction of all trained '
    "clients' models, with nothing trained on the new clients; none for "
    'methods whose clients have no weights of their own.',
  )
  yield Metric(
    'majority_accuracy',
    'most frequent class',
    'Accuracy of always naming the class that a client has most often in '
    'training, mean over clients; only where a method is no better.',
    higher_is_better=None,
  )
  for key, heading in _TWO_CLASSES.items():
    yield Metric(
      key,
      f'{heading}, all test examples',
      f"{heading} of the personal models over all clients' test examples, "
      'after the last round; of two classes.',
    )
  if primary != split_model.LOSS:
    yield Metric(
      'personal_loss',
      'personal loss',
      "Mean over clients of their personal models' loss after the last round; "
      'seeds at which it is not finite are left out.',
      'loss',
      False,
    )


# By the names of `two_class_scores.summarize`.
_TWO_CLASSES = {
  'auc': 'AUC',
  'balanced_accuracy': 'balanced accuracy',
  'f1': 'F1',
}
_COSTS = (
  Metric(
    'bytes_down_per_client',
    'bytes down, a client',
    'What the server sends to one client in a round, uncompressed.',
    'bytes',
    False,
  ),
  Metric(
    'bytes_up_per_client',
    'bytes up, a client',
    'What one client sends to the server in a round, uncompressed.',
    'bytes',
    False,
  ),
  Metric(
    'bytes_down_per_round',
    'bytes down, a round',
    'What the server sends to the whole cohort in a round.',
    'bytes',
    False,
  ),
  Metric(
    'bytes_up_per_round',
    'bytes up, a round',
    'What the whole cohort sends to the server in a round.',
    'bytes',
    False,
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


def _rounds(recent):
  """Suffix of a name, title and description of what it is a figure of."""
  return (
    ('_last_10', recent, 'mean over the evaluations of the last 10 rounds'),
    ('', 'last round', 'after the last round'),
  )


def _of_domains(name, score, recent):
  """The metrics of a score over domains."""
  for suffix, rounds, when in _rounds(recent):
    for key, which in (('min', 'Lowest'), ('mean', 'Mean'), ('max', 'Highest')):
      yield Metric(
        f'domain_{name}_{key}{suffix}',
        f'{key} {score.title} over domains, {rounds}',
        f"{which} of the domains' {score.title}, {when}; a domain's is that of "
        "the personal models on all clients' test examples of the domain.",
        unit_of(score),
        score.higher_is_better,
      )
