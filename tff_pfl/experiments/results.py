"""What a comparison of methods found: plain data, its JSON, CSV and table.

The numbers are gathered from the runs by `collection.collect`. Whatever shows
them (the screen, `comparison.csv`, the HTML page) reads them from here.
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from tff_pfl.experiments import metrics as metrics_lib
from tff_pfl.simulation import summary as summary_lib

JSON_NAME = 'comparison.json'
CSV_NAME = 'comparison.csv'
CLIENTS_CSV_NAME = 'per_client.csv'
DOMAINS_CSV_NAME = 'per_domain.csv'

_Path = Union[str, 'os.PathLike[str]']


# Columns of the table for the screen, narrower than those of the page.
_TABLE_TITLES = {
  'personal_accuracy_last_10': 'personal\naccuracy,\nlast 10',
  'personal_accuracy': 'personal\naccuracy,\nlast',
  'global_accuracy': 'global\naccuracy,\nlast',
  'worst_10_percent': 'worst\n10%',
  'fraction_hurt': 'fraction\nhurt',
  'fraction_diverged': 'fraction\ndiverged',
  'new_client_accuracy': 'new\nclients',
  'new_client_ensemble_accuracy': 'new,\nensemble',
  'bytes_down_per_client': 'kB down\na client',
  'bytes_up_per_client': 'kB up\na client',
  'seconds_per_round': 'seconds\na round',
}
# The same for the table by domain.
_DOMAIN_TABLE_TITLES = {
  'domain_accuracy_min': 'accuracy\nmin',
  'domain_accuracy_mean': 'accuracy\nmean',
  'domain_accuracy_max': 'accuracy\nmax',
  'personal_accuracy': 'accuracy,\nclient mean',
  'domain_auc_min': 'AUC\nmin',
  'domain_auc_mean': 'AUC\nmean',
  'domain_auc_max': 'AUC\nmax',
  'client_auc': 'AUC,\nclient mean',
}


@dataclasses.dataclass(frozen=True)
class Setting:
  """A setting that all methods of the comparison share.

  Attributes:
    name: As in `RunConfig` ('dataset', 'partition', 'num_clients', 'model',
      'cohort_size', 'num_rounds', …) or `Comparison` ('seeds',
      'num_new_clients', 'validation_fraction', …).
    value: A JSON value.
  """

  name: str
  value: Any


@dataclasses.dataclass(frozen=True)
class Spread:
  """A figure over the seeds.

  Attributes:
    mean: Mean over the seeds.
    std: Standard deviation over the seeds (of the sample: divided by their
      number minus 1); None for a single seed.
    num_seeds: Seeds that have the figure, and a finite one, at least 1.
  """

  mean: float
  std: Optional[float]
  num_seeds: int


@dataclasses.dataclass(frozen=True)
class AccuracyCurve:
  """Accuracies over the rounds of one run.

  Attributes:
    rounds: The rounds after which there was an evaluation, ascending.
    personal: Mean over clients of the personal models' accuracy, in [0, 1], at
      each of them; None where it is not finite.
    global_model: The same of the global model; None without one.
  """

  seed: int
  rounds: tuple[int, ...]
  personal: tuple[Optional[float], ...]
  global_model: Optional[tuple[Optional[float], ...]]


@dataclasses.dataclass(frozen=True)
class ClientScore:
  """The scores of one client after the last round of one run.

  Attributes:
    num_test_examples: Test examples, which it is scored on; at least 1.
    num_rounds: Rounds it took part in; 0 for new clients.
    accuracy_before: Before personalization, in [0, 1]: that of the global model
      or, without one, of the global weights with untrained local ones. None for
      regression.
    accuracy_after: The personal model's accuracy.
    loss_before: The loss before personalization; None where it is not finite.
    loss_after: The personal model's loss.
  """

  seed: int
  client: str
  num_train_examples: int
  num_test_examples: int
  num_rounds: int
  accuracy_before: Optional[float]
  accuracy_after: Optional[float]
  loss_before: Optional[float]
  loss_after: Optional[float]


@dataclasses.dataclass(frozen=True)
class DomainScore:
  """The scores of one domain after the last round of one run.

  Attributes:
    num_test_examples: Test examples of all clients; may be 0.
    loss: The personal models' loss on these; None without any, and where it is
      not finite.
    accuracy: Their accuracy, in [0, 1]; None without any, and for regression.
    auc: The area under their ROC curve; None also where the examples are all of
      one class, and unless there are two classes.
  """

  seed: int
  domain: str
  num_test_examples: int
  loss: Optional[float]
  accuracy: Optional[float]
  auc: Optional[float]


@dataclasses.dataclass(frozen=True)
class MethodResult:
  """What was found of a method with one way to personalize its models.

  Attributes:
    algorithm: A key of `registry.ALGORITHMS`.
    variant: How models were personalized: 'method' (as the runs were asked to;
      it is this row that has curves), 'none', 'head' or 'all' (made of the last
      round's models by fine-tuning).
    label: For tables and legends, such as 'fed_avg' or 'fed_avg + FT (all)';
      where some of the seeds' runs have not ended, with how many have; unique
      in a comparison.
    summary: What the method is, in one line.
    hparams: The hyperparameters of the runs, as chosen by the sweep if any.
    metrics: Each of `metrics.METRICS` by name, for data with domains also of
      `metrics.DOMAIN_METRICS`; None where the method has no such thing.
    curves: One for each seed; none where the last round alone was scored.
    clients: All clients' scores, of all seeds.
    new_clients: Scores of clients that took no part in training.
    domains: All domains' scores, of all seeds; none for data without domains.
  """

  algorithm: str
  variant: str
  label: str
  summary: str
  has_global_model: bool
  hparams: Mapping[str, Any]
  metrics: Mapping[str, Optional[Spread]]
  curves: tuple[AccuracyCurve, ...]
  clients: tuple[ClientScore, ...]
  new_clients: tuple[ClientScore, ...]
  domains: tuple[DomainScore, ...] = ()

  @property
  def num_seeds(self) -> int:
    """Seeds whose runs have ended; a figure may have fewer."""
    return max((f.num_seeds for f in self.metrics.values() if f), default=0)


@dataclasses.dataclass(frozen=True)
class TuningPoint:
  """One point of a method's grid.

  Attributes:
    hparams: The hyperparameters that the grid varies, by name.
    accuracy: Mean personal accuracy on the validation examples over clients and
      the last rounds, what the choice was made by; None if no run of it ended,
      and for regression, where the loss decides.
    loss: The loss on them after the last round; None if no run of it ended or
      it is not finite.
    chosen: Whether it is the one the comparison was made with.
    failure: Why it could not be chosen: the method refuses it, or the run
      failed or diverged; None otherwise.
  """

  hparams: Mapping[str, Any]
  accuracy: Optional[float]
  loss: Optional[float]
  chosen: bool
  failure: Optional[str]


@dataclasses.dataclass(frozen=True)
class Tuning:
  """The sweep of one method, on validation splits of clients' training data.

  Attributes:
    seed: Seed of the runs of the sweep.
    num_rounds: Rounds of each run; 0 where there were none, for the method
      allows a single point.
    points: The grid, in the order it was written; last the points that the
      method refuses.
  """

  algorithm: str
  seed: int
  num_rounds: int
  points: tuple[TuningPoint, ...]


@dataclasses.dataclass(frozen=True)
class Partition:
  """How the training data of one seed lie on the clients.

  Attributes:
    client_ids: Clients that are trained, then the new ones.
    num_new_clients: How many at the end of `client_ids` take no part in
      training.
    class_counts: Training examples `[clients][classes]`; None for regression.
    num_train_examples: Training examples `[clients]`.
  """

  seed: int
  client_ids: tuple[str, ...]
  num_new_clients: int
  class_counts: Optional[tuple[tuple[int, ...], ...]]
  num_train_examples: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Failure:
  """A trial that did not come to its end.

  Attributes:
    trial: Its name, which is that of its folder.
    reason: One line.
  """

  trial: str
  algorithm: str
  seed: int
  reason: str


@dataclasses.dataclass(frozen=True)
class ComparisonResults:
  """All that a comparison found.

  Attributes:
    title: One line: the data, the clients, the rounds.
    settings: What all methods share, in the order to be shown.
    methods: One entry for each method and variant, the methods in the order
      asked for, the variant 'method' of each first.
    partition: How the data of the first seed lie; None where no trial of it
      ended.
    tunings: The sweeps; none where nothing was swept.
    failures: Trials without a result, those of the sweep included.
  """

  title: str
  settings: tuple[Setting, ...]
  methods: tuple[MethodResult, ...]
  partition: Optional[Partition]
  tunings: tuple[Tuning, ...]
  failures: tuple[Failure, ...]

  def setting(self, name: str, default: Any = None) -> Any:
    """The value of a setting, or `default` without one of that name."""
    for setting in self.settings:
      if setting.name == name:
        return setting.value
    return default

  def write(self, directory: _Path) -> None:
    """Writes a JSON file of everything, and CSV files.

    These have a line for each method and variant, for each client of a method
    and seed and, for data with domains, for each domain of these.
    """

    def path(name):
      return os.path.join(directory, name)

    summary_lib.write_json(path(JSON_NAME), dataclasses.asdict(self))
    summary_lib.write_csv(
      path(CSV_NAME),
      [
        {
          'algorithm': method.algorithm,
          'variant': method.variant,
          'label': method.label,
          **{
            name: dataclasses.asdict(figure) if figure else {'mean': None}
            for name, figure in method.metrics.items()
          },
          'hparams': summary_lib.json_text(method.hparams),
        }
        for method in self.methods
      ],
    )
    summary_lib.write_csv(
      path(CLIENTS_CSV_NAME),
      [
        {'label': method.label, 'is_new': is_new, **dataclasses.asdict(score)}
        for method in self.methods
        for is_new, scores in (
          (False, method.clients),
          (True, method.new_clients),
        )
        for score in scores
      ],
    )
    domains = [
      {
        'label': method.label,
        'variant': method.variant,
        **dataclasses.asdict(score),
      }
      for method in self.methods
      for score in method.domains
    ]
    if domains:
      summary_lib.write_csv(path(DOMAINS_CSV_NAME), domains)

  def table(self) -> str:
    """A table for the screen: means and, after ±, spreads over seeds.

    Columns that no method has are left out. A figure that not all seeds of its
    row have says so.
    """
    return self._table(_TABLE_TITLES)

  def domain_table(self) -> str:
    """A table like `table` of minimum, mean and maximum over domains.

    They are those of the last round. Empty for data without domains, and for
    regression.
    """
    names = [metric.name for metric in metrics_lib.DOMAIN_METRICS]
    has_any = any(m.metrics.get(name) for m in self.methods for name in names)
    return self._table(_DOMAIN_TABLE_TITLES) if has_any else ''

  def _table(self, titles):
    columns = [
      metrics_lib.METRICS_BY_NAME[name]
      for name in titles
      if any(method.metrics.get(name) for method in self.methods)
    ]
    return summary_lib.format_table(
      [
        [method.label, *(_cell(method, column) for column in columns)]
        for method in self.methods
      ],
      ['method', *(titles[metric.name] for metric in columns)],
    )


def spread(values: Sequence[Optional[float]]) -> Optional[Spread]:
  """Mean and standard deviation over seeds.

  Args:
    values: One for each seed; None where a seed has none. These are left out,
      and so are values that are not finite.

  Returns:
    The spread, or None without any value.
  """
  known = [float(v) for v in values if v is not None and math.isfinite(v)]
  if not known:
    return None
  return Spread(
    mean=statistics.fmean(known),
    std=statistics.stdev(known) if len(known) > 1 else None,
    num_seeds=len(known),
  )


def _cell(method: MethodResult, column: metrics_lib.Metric) -> Optional[str]:
  """The text of a cell of the table for the screen."""
  figure = method.metrics.get(column.name)
  if figure is None:
    return None
  if column.unit == 'bytes':
    return f'{figure.mean / 1000:.1f}'
  digits = 3 if column.unit in ('accuracy', 'fraction') else 2
  text = f'{figure.mean:.{digits}f}'
  if figure.std is not None:
    text += f' ±{figure.std:.{digits}f}'
  if figure.num_seeds < method.num_seeds:
    text += f' ({figure.num_seeds} of {method.num_seeds})'
  return text
