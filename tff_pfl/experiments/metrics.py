"""The figures that a comparison has of each method."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Metric(NamedTuple):
  """A column of the table.

  Attributes:
    name: Key in `MethodResult.metrics`.
    title: The column's title; lines are to be broken at spaces.
    unit: 'accuracy' (in [0, 1]), 'fraction' (in [0, 1]), 'bytes', 'seconds' or
      'loss'.
    higher_is_better: None where neither is.
  """

  name: str
  title: str
  description: str
  unit: str = 'accuracy'
  higher_is_better: Optional[bool] = True


METRICS = (
  Metric(
    'personal_accuracy_last_10',
    'personal accuracy, last 10 rounds',
    'Mean over clients and over the evaluations of the last 10 rounds; of '
    'personal models that were made of the last round only, none.',
  ),
  Metric(
    'personal_accuracy',
    'personal accuracy, last round',
    "Mean over clients of their personal models' accuracy after the last "
    'round.',
  ),
  Metric(
    'global_accuracy_last_10',
    'global accuracy, last 10 rounds',
    'Mean over clients and over the evaluations of the last 10 rounds of the '
    'accuracy of the global model; none without one.',
  ),
  Metric(
    'global_accuracy',
    'global accuracy, last round',
    'Mean over clients of the accuracy of the global model after the last '
    'round; none without one.',
  ),
  Metric(
    'worst_10_percent',
    'worst 10% of clients',
    'Mean personal accuracy over the worst tenth of the clients, after the '
    'last round.',
  ),
  Metric(
    'fraction_hurt',
    'fraction hurt',
    'Clients whose personal model is below the global one, after the last '
    'round; none without a global model.',
    'fraction',
    False,
  ),
  Metric(
    'fraction_diverged',
    'fraction diverged',
    'Clients whose personal model has a loss that is not finite, after the '
    'last round: its accuracy means nothing; none where there are no such '
    'clients.',
    'fraction',
    False,
  ),
  Metric(
    'new_client_accuracy',
    'new clients',
    'Mean personal accuracy over clients that took no part in training; none '
    'where there are no such clients.',
  ),
  Metric(
    'new_client_ensemble_accuracy',
    'new clients, by ensemble',
    'Mean accuracy over new clients of the mean prediction of all trained '
    "clients' models, with nothing trained on the new clients; none for "
    'methods whose clients have no weights of their own.',
  ),
  Metric(
    'personal_loss',
    'personal loss',
    "Mean over clients of their personal models' loss after the last round; "
    'seeds at which it is not finite are left out.',
    'loss',
    False,
  ),
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

# Suffix of a metric's name, title and description of what it is a figure of.
_ROUNDS = (
  (
    '_last_10',
    'last 10 rounds',
    'mean over the evaluations of the last 10 rounds',
  ),
  ('', 'last round', 'after the last round'),
)


def _domain_metrics(score, title):
  """The metrics of a score over domains."""
  return [
    Metric(
      f'domain_{score}_{name}{suffix}',
      f'{name} {title} over domains, {rounds}',
      f"{which} of the domains' {title}, {when}; a domain's is that of the "
      "personal models on all clients' test examples of the domain.",
    )
    for suffix, rounds, when in _ROUNDS
    for name, which in (('min', 'Lowest'), ('mean', 'Mean'), ('max', 'Highest'))
  ]


# Those of methods that were run on data with domains.
DOMAIN_METRICS = (
  *_domain_metrics('accuracy', 'accuracy'),
  *_domain_metrics('auc', 'AUC'),
  # The mean over clients of the accuracy is that of any data.
  *(
    Metric(
      f'client_auc{suffix}',
      f'AUC, mean over clients, {rounds}',
      f"Mean over clients of their personal models' AUC, {when}; of clients "
      'whose test examples are of both classes.',
    )
    for suffix, rounds, when in _ROUNDS
  ),
)
METRICS_BY_NAME = {metric.name: metric for metric in METRICS + DOMAIN_METRICS}
