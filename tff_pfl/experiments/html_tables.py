"""What those sections of a comparison's page show that consist of tables.

Numbers become texts here; where they stand, and what is said about them, is in
the template of the section.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

from tff_pfl.experiments import metrics as metrics_lib
from tff_pfl.experiments import presentation, published
from tff_pfl.experiments import results as results_lib

_BYTE_UNITS = ('bytes', 'kB', 'MB', 'GB', 'TB')
_NO_VALUE = '–'
# How the names of the metrics begin that are means over clients, by score.
_CLIENT_MEANS = {'accuracy': 'personal_accuracy', 'auc': 'client_auc'}


class ResultColumn(NamedTuple):
  """A column of figures.

  Attributes:
    unit: Unit of the texts of the column; empty for none.
    first_order: 'ascending' or 'descending': what the first sorting by this
      column does.
    order: The order of the rows if they are in that of this column, else None.
  """

  title: str
  description: str
  unit: str
  first_order: str
  order: Optional[str]

  @property
  def heading(self) -> str:
    """The title with the unit."""
    return f'{self.title} ({self.unit})' if self.unit else self.title

  @property
  def definition(self) -> tuple[str, str]:
    """The title and what it stands for."""
    return self.title, self.description


class ResultCell(NamedTuple):
  """A figure of a method.

  Attributes:
    text: Its mean over the seeds, in the unit of the column.
    std: Its standard deviation over them; None where it is not shown.
    seeds_note: That not all seeds of the row have it; '' if they have.
    sort_key: What to sort by, a number; None for a figure that is not finite.
    is_best: Whether no other method's text is better.
  """

  text: str
  std: Optional[str]
  seeds_note: str
  sort_key: Optional[str]
  is_best: bool


class ResultRow(NamedTuple):
  """The figures of a method.

  Attributes:
    variant: As in `results.MethodResult`.
    cells: One for each column; None where the method has no such figure.
  """

  label: str
  summary: str
  variant: str
  cells: tuple[Optional[ResultCell], ...]


class ResultsView(NamedTuple):
  """The table of all methods and figures.

  Attributes:
    variants: Key and title of the variants that there are, to choose rows by.
    columns: The columns after that of the methods' labels.
    rows: Rows by falling accuracy.
  """

  variants: tuple[tuple[str, str], ...]
  columns: tuple[ResultColumn, ...]
  rows: tuple[ResultRow, ...]


def results_view(
  results: results_lib.ComparisonResults,
) -> Optional[ResultsView]:
  """The table of all methods and figures; None where there is no figure."""
  return _figures_view(results.methods, metrics_lib.METRICS)


class DomainTable(NamedTuple):
  """A score of each method and domain.

  Attributes:
    figures: By method; the columns are the domains, then minimum, mean and
      maximum over these and the mean over clients.
  """

  title: str
  figures: ResultsView


class DomainsView(NamedTuple):
  """The scores by domain.

  Attributes:
    without_test_examples: Domains that no seed has test examples of.
  """

  without_test_examples: tuple[str, ...]
  tables: tuple[DomainTable, ...]


def domains_view(
  results: results_lib.ComparisonResults,
) -> Optional[DomainsView]:
  """Scores by domain; None without domains, and for regression."""
  scores = [s for method in results.methods for s in method.domains]
  names = tuple(dict.fromkeys(score.domain for score in scores))
  tables = [
    DomainTable(title, _domain_figures(results.methods, names, score, title))
    for score, title in (('accuracy', 'Accuracy'), ('auc', 'AUC'))
    if any(getattr(one, score) is not None for one in scores)
  ]
  if not tables:
    return None
  tested = {score.domain for score in scores if score.num_test_examples}
  return DomainsView(
    without_test_examples=tuple(name for name in names if name not in tested),
    tables=tuple(tables),
  )


def _domain_figures(methods, names, score, title):
  """A table of a score: a column for each domain, then those over domains."""
  of_domains = [
    metrics_lib.Metric(
      f'domain {name}',
      name,
      f"{title} of the personal models on all clients' test examples of the "
      'domain, after the last round.',
    )
    for name in names
  ]
  over_all = [
    metric
    for metric in metrics_lib.DOMAIN_METRICS + metrics_lib.METRICS
    if metric.name.startswith((f'domain_{score}_', _CLIENT_MEANS[score]))
  ]

  def with_domains(method):
    figures = {
      metric.name: results_lib.spread(
        [getattr(s, score) for s in method.domains if s.domain == name]
      )
      for name, metric in zip(names, of_domains)
    }
    return dataclasses.replace(method, metrics={**method.metrics, **figures})

  return _figures_view(
    [with_domains(method) for method in methods], of_domains + over_all
  )


def _figures_view(methods, metrics):
  """The figures of some metrics; None where there is no figure."""
  scales = _scales(methods, metrics)
  if not scales:
    return None
  methods = presentation.ranked(methods)
  best = [_best(scale, methods) for scale in scales]
  return ResultsView(
    variants=tuple(
      (variant, title) for variant, title, _ in presentation.by_variant(methods)
    ),
    columns=tuple(map(_result_column, scales)),
    rows=tuple(
      ResultRow(
        method.label,
        method.summary,
        method.variant,
        tuple(_result_cell(s, method, b) for s, b in zip(scales, best)),
      )
      for method in methods
    ),
  )


class _Scale(NamedTuple):
  """How the figures of a column are shown.

  Attributes:
    unit: The unit of those shown; empty for none.
    factor: From the metric's value to the one shown.
    decimals: Digits after the point.
  """

  metric: metrics_lib.Metric
  unit: str
  factor: float
  decimals: int

  def text(self, value: float) -> str:
    """The value as shown."""
    return f'{self.factor * value:.{self.decimals}f}'


def _scales(
  methods: Sequence[results_lib.MethodResult],
  metrics: Sequence[metrics_lib.Metric],
) -> list[_Scale]:
  """Of the metrics for which any method has a value, in fitting units."""
  scales = []
  for metric in metrics:
    values = [
      method.metrics[metric.name].mean
      for method in methods
      if method.metrics.get(metric.name) is not None
    ]
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0)
    if values:
      scales.append(_Scale(metric, *_unit(metric.unit, largest)))
  return scales


def _unit(unit, largest):
  """Unit, factor and decimals for values up to `largest`."""
  if unit in ('accuracy', 'fraction'):
    return '%', 100.0, 1
  if unit == 'bytes':
    thousands = int(math.log10(max(largest, 1)) // 3)
    thousands = min(thousands, len(_BYTE_UNITS) - 1)
    return _BYTE_UNITS[thousands], 1e3**-thousands, 1 if thousands else 0
  return ('s' if unit == 'seconds' else ''), 1.0, 2 if largest >= 10 else 3


def _best(scale, methods):
  """The best value of a column as shown; None where none is better."""
  spreads = [method.metrics.get(scale.metric.name) for method in methods]
  shown = {
    scale.text(spread.mean)
    for spread in spreads
    if spread is not None and math.isfinite(spread.mean)
  }
  if len(shown) < 2 or scale.metric.higher_is_better is None:
    return None
  return (max if scale.metric.higher_is_better else min)(shown, key=float)


def _result_column(scale):
  metric = scale.metric
  return ResultColumn(
    title=metric.title,
    description=metric.description,
    unit=scale.unit,
    first_order='descending' if metric.higher_is_better else 'ascending',
    order='descending' if metric.name == presentation.RANKING else None,
  )


def _result_cell(scale, method, best):
  spread = method.metrics.get(scale.metric.name)
  if spread is None:
    return None
  text = scale.text(spread.mean)
  std = None
  # What is counted, as bytes are, is the same for all seeds.
  if spread.std is not None and (spread.std > 0 or scale.unit == '%'):
    std = scale.text(spread.std)
  return ResultCell(
    text=text,
    std=std,
    seeds_note=presentation.seeds_note(method, spread),
    sort_key=repr(spread.mean) if math.isfinite(spread.mean) else None,
    is_best=text == best,
  )


class PublishedRow(NamedTuple):
  """A published figure beside that of the comparison; '' for what is not known.

  Attributes:
    method: What the paper calls the method.
    label: What the comparison calls the method.
    ours: The comparison's figure in percent.
    published: The paper's figure in percent.
    difference: Ours less the paper's, in percentage points.
  """

  method: str
  label: str
  ours: str
  published: str
  difference: str
  metric: str


class PublishedTable(NamedTuple):
  """Figures that were published together.

  Attributes:
    protocol: How the paper obtained them.
    note: In what the paper's data may differ from those here, or ''.
  """

  title: str
  protocol: str
  note: str
  rows: tuple[PublishedRow, ...]


class PublishedView(NamedTuple):
  """What papers report for the setting of the comparison.

  Attributes:
    num_new_clients: Clients that had data and took no part in training.
  """

  num_new_clients: int
  tables: tuple[PublishedTable, ...]


def published_view(
  results: results_lib.ComparisonResults,
) -> Optional[PublishedView]:
  """What papers report for the very setting; None where they do not."""
  figures = published.matching_figures(
    results.setting('dataset'),
    results.setting('num_clients'),
    results.setting('partition'),
  )
  if not figures:
    return None
  return PublishedView(
    num_new_clients=results.setting('num_new_clients', 0),
    tables=tuple(
      PublishedTable(
        title=f'{source.paper}, {source.table}',
        protocol=source.protocol,
        note=cells[0].setting.note,
        rows=tuple(_published_row(results, cell) for cell in cells),
      )
      for source, cells in figures.items()
    ),
  )


def _published_row(results, cell):
  titles = {metric.name: metric.title for metric in metrics_lib.METRICS}
  method = _counterpart(results, cell)
  spread = method.metrics.get(cell.metric) if method is not None else None
  difference = ''
  if spread is not None and cell.value is not None:
    difference = f'{100 * (spread.mean - cell.value):+.1f}'
  return PublishedRow(
    method=cell.method,
    label=method.label if method is not None else '',
    ours=presentation.percent(spread, unit='') if spread is not None else '',
    published='' if cell.value is None else f'{100 * cell.value:.2f}',
    difference=difference,
    metric=titles.get(cell.metric, cell.metric.replace('_', ' ')),
  )


def _counterpart(results, cell):
  """The row of a comparison that is what a paper reports; None without one."""
  asked = (results.setting('personalization') or {}).get('fine_tune', 'method')
  for variant in cell.variants:
    for method in results.methods:
      found = asked if method.variant == 'method' else method.variant
      if (method.algorithm, found) == (cell.algorithm, variant):
        return method
  return None


class TuningRow(NamedTuple):
  """A point of a grid.

  Attributes:
    accuracy: Accuracy on the validation data, in percent.
    outcome: That it was chosen, or why it failed, or ''.
  """

  hparams: tuple[str, ...]
  accuracy: str
  loss: str
  outcome: str
  is_chosen: bool


class TuningTable(NamedTuple):
  """The grid of a method.

  Attributes:
    verdict: The hyperparameters that were chosen.
    num_rounds: Rounds of each point; 0 where none was run.
    names: Names of the hyperparameters that the points differ in.
  """

  algorithm: str
  verdict: str
  num_rounds: int
  seed: int
  names: tuple[str, ...]
  rows: tuple[TuningRow, ...]


def tuning_view(
  results: results_lib.ComparisonResults,
) -> Optional[tuple[TuningTable, ...]]:
  """The grids of the sweep and what it chose; None without a sweep."""
  return tuple(map(_tuning_table, results.tunings)) or None


def _tuning_table(tuning):
  chosen = [point for point in tuning.points if point.chosen]
  verdict = 'nothing was chosen'
  if chosen:
    verdict = presentation.assignments(chosen[0].hparams)
  names = tuple(dict.fromkeys(n for p in tuning.points for n in p.hparams))
  return TuningTable(
    algorithm=tuning.algorithm,
    verdict=verdict,
    num_rounds=tuning.num_rounds,
    seed=tuning.seed,
    names=names,
    rows=tuple(_tuning_row(names, point) for point in tuning.points),
  )


def _tuning_row(names, point):
  accuracy, loss = point.accuracy, point.loss
  return TuningRow(
    hparams=tuple(
      presentation.value_text(point.hparams.get(name)) for name in names
    ),
    accuracy=_NO_VALUE if accuracy is None else f'{100 * accuracy:.1f}',
    loss=_NO_VALUE if loss is None else f'{loss:.4g}',
    outcome='chosen' if point.chosen else point.failure or '',
    is_chosen=point.chosen,
  )


class MethodSettings(NamedTuple):
  """What a method is and how it was run.

  Attributes:
    hparams: Its hyperparameters, in a line.
  """

  name: str
  summary: str
  hparams: str


class SettingsView(NamedTuple):
  """What was run.

  Attributes:
    settings: Name and value of what all runs share.
  """

  settings: tuple[tuple[str, str], ...]
  methods: tuple[MethodSettings, ...]


def settings_view(results: results_lib.ComparisonResults) -> SettingsView:
  """What all runs share, and each method's hyperparameters."""
  by_algorithm = {}
  for method in results.methods:
    by_algorithm.setdefault(method.algorithm, method)
  return SettingsView(
    settings=tuple(
      (setting.name, presentation.value_text(setting.value))
      for setting in results.settings
    ),
    methods=tuple(
      MethodSettings(
        name, method.summary, presentation.assignments(method.hparams)
      )
      for name, method in by_algorithm.items()
    ),
  )
