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
from tff_pfl.models import split_model
from tff_pfl.simulation import report
from tff_pfl.simulation import summary as summary_lib

JSON_NAME = 'comparison.json'
CSV_NAME = 'comparison.csv'
CLIENTS_CSV_NAME = 'per_client.csv'
DOMAINS_CSV_NAME = 'per_domain.csv'

_Path = Union[str, 'os.PathLike[str]']


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
class Curve:
  """The primary metric over the rounds of one run.

  Attributes:
    rounds: The rounds after which there was an evaluation, ascending.
    personal: Mean over clients of the personal models' metric at each of them;
      None where it is not finite.
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
    before: The primary metric before personalization: that of the global model
      or, without one, of the global weights with untrained local ones. None
      where it is not finite. In files its name begins with the metric's
      ("accuracy_before").
    after: The personal model's.
    loss_before: The loss before personalization; None where it is not finite.
    loss_after: The personal model's loss.
  """

  seed: int
  client: str
  num_train_examples: int
  num_test_examples: int
  num_rounds: int
  before: Optional[float]
  after: Optional[float]
  loss_before: Optional[float]
  loss_after: Optional[float]


@dataclasses.dataclass(frozen=True)
class DomainScore:
  """The scores of one domain after the last round of one run.

  Attributes:
    num_test_examples: Test examples of all clients; may be 0.
    loss: The personal models' loss on these; None without any, and where it is
      not finite.
    score: Their primary metric, in files under its name ("accuracy"); None
      without any, and where it is not finite.
    auc: The area under their ROC curve; None also where the examples are all of
      one class, and unless there are two classes.
  """

  seed: int
  domain: str
  num_test_examples: int
  loss: Optional[float]
  score: Optional[float]
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
    metrics: By the names of `metrics.by_name`, those of domains for data with
      domains only; None where the method has no such thing.
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
  curves: tuple[Curve, ...]
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
    score: The primary metric of personal models on the validation examples,
      mean over clients and the last rounds, what the choice was made by; None
      if no run of it ended or it is not finite. In files under the metric's
      name ("accuracy").
    loss: The loss on them after the last round; None if no run of it ended or
      it is not finite.
    chosen: Whether it is the one the comparison was made with.
    failure: Why it could not be chosen: the method refuses it, or the run
      failed or diverged; None otherwise.
  """

  hparams: Mapping[str, Any]
  score: Optional[float]
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
    domain_counts: Name of each domain to its training examples `[clients]`;
      None for data without domains.
  """

  seed: int
  client_ids: tuple[str, ...]
  num_new_clients: int
  class_counts: Optional[tuple[tuple[int, ...], ...]]
  num_train_examples: tuple[int, ...]
  domain_counts: Optional[Mapping[str, tuple[int, ...]]] = None


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
    primary_metric: What methods are compared by.
  """

  title: str
  settings: tuple[Setting, ...]
  methods: tuple[MethodResult, ...]
  partition: Optional[Partition]
  tunings: tuple[Tuning, ...]
  failures: tuple[Failure, ...]
  primary_metric: split_model.PrimaryMetric = split_model.ACCURACY

  def setting(self, name: str, default: Any = None) -> Any:
    """The value of a setting, or `default` without one of that name."""
    for setting in self.settings:
      if setting.name == name:
        return setting.value
    return default

  @property
  def recent(self) -> str:
    """What the mean over the last evaluations is called, in two lines."""
    return report.recent_title(
      sum(r > curve.rounds[-1] - 10 for r in curve.rounds)
      for method in self.methods
      for curve in method.curves
    )

  @property
  def metrics(self) -> dict[str, metrics_lib.Metric]:
    """The metrics of methods, by name."""
    return metrics_lib.by_name(
      self.primary_metric, self.recent.replace('\n', ' ')
    )

  def write(self, directory: _Path) -> None:
    """Writes a JSON file of everything, and CSV files.

    These have a line for each method and variant, for each client of a method
    and seed and, for data with domains, for each domain of these.
    """

    def path(name):
      return os.path.join(directory, name)

    everything = dataclasses.asdict(self)
    primary = everything.pop('primary_metric')
    for method in everything['methods']:
      for name in ('clients', 'new_clients', 'domains'):
        method[name] = [_named(primary, row) for row in method[name]]
    for tuning in everything['tunings']:
      tuning['points'] = [_named(primary, row) for row in tuning['points']]
    if primary != split_model.ACCURACY:
      everything['primary_metric'] = primary._asdict()
    summary_lib.write_json(path(JSON_NAME), everything)
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
        {
          'label': method.label,
          'is_new': is_new,
          **_named(primary, dataclasses.asdict(score)),
        }
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
        **_named(primary, dataclasses.asdict(score)),
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
    name, title = self.primary_metric.name, self.primary_metric.title
    return self._table(
      {
        f'personal_{name}_last_10': f'personal\n{title},\n{self.recent}',
        f'personal_{name}': f'personal\n{title},\nlast',
        f'global_{name}': f'global\n{title},\nlast',
        'worst_10_percent': 'worst\n10%',
        'fraction_hurt': 'fraction\nhurt',
        'fraction_diverged': 'fraction\ndiverged',
        f'new_client_{name}': 'new\nclients',
        f'new_client_ensemble_{name}': 'new,\nensemble',
        'majority_accuracy': 'most\nfrequent\nclass',
        'auc': 'AUC,\npooled',
        'balanced_accuracy': 'balanced\naccuracy,\npooled',
        'f1': 'F1,\npooled',
        'bytes_down_per_client': 'kB down\na client',
        'bytes_up_per_client': 'kB up\na client',
        'seconds_per_round': 'seconds\na round',
      }
    )

  def domain_table(self) -> str:
    """A table like `table` of minimum, mean and maximum over domains.

    They are those of the last round. Empty for data without domains.
    """
    if not any(method.domains for method in self.methods):
      return ''
    name, title = self.primary_metric.name, self.primary_metric.title
    overall = ('min', 'mean', 'max')
    return self._table(
      {
        **{f'domain_{name}_{key}': f'{title}\n{key}' for key in overall},
        f'personal_{name}': f'{title},\nclient mean',
        **{f'domain_auc_{key}': f'AUC\n{key}' for key in overall},
        'client_auc': 'AUC,\nclient mean',
      }
    )

  def _table(self, titles):
    columns = [
      self.metrics[name]
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


def _named(primary: split_model.PrimaryMetric, row: dict) -> dict:
  """A row whose primary metric stands under its name."""
  names = {
    'score': primary.name,
    'before': f'{primary.name}_before',
    'after': f'{primary.name}_after',
  }
  # The loss stands there already.
  return {
    name if (name := names.get(key, key)) not in row else key: value
    for key, value in row.items()
  }


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

  def shown(value):
    if column.unit == 'score':
      return summary_lib.format_cell(value)
    return f'{value:.{3 if column.unit in ("accuracy", "fraction") else 2}f}'

  text = shown(figure.mean)
  if figure.std is not None:
    text += f' ±{shown(figure.std)}'
  if figure.num_seeds < method.num_seeds:
    text += f' ({figure.num_seeds} of {method.num_seeds})'
  return text
