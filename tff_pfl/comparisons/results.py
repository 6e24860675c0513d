"""Results of a comparison of methods as plain data; their files and tables.

`collection.collect` makes them. The screen, the CSV files and the HTML page are
made of the content of `comparison.json`, a dict:

* `title`: One line: the data, the clients, the rounds.
* `settings`: Settings that all methods share, in the order to be shown: each a
  `name`, as in `RunConfig` or `Comparison`, and a `value`.
* `methods`: An entry for each method and variant, the methods in the order
  asked for, the variant 'method' of each first:
    * `algorithm`, a key of `registry.ALGORITHMS`, and its `summary`;
    * `variant`: how models were personalized: 'method' (as the runs were asked
      to; it is this one that has curves), 'none', 'head' or 'all' (made of the
      last round's models by fine-tuning), or 'trained' (by the work of another
      round);
    * `label`: for tables and legends, such as 'fed_avg' or
      'fed_avg + FT (all)'; where some of the seeds' runs have not ended, with
      how many have; unique;
    * `has_global_model`, and `hparams`, as chosen by the sweep if any;
    * `metrics`: by the names of `metrics.by_name` a `mean_std`; None where the
      method has no such thing;
    * `curves`: of each seed the `rounds` with an evaluation and, at each, the
      mean over clients of the `personal` models' primary metric and that of the
      `global_model` (None without one);
    * `clients` and `new_clients`, which took no part in training: of each seed
      and client its numbers of examples and rounds, and the loss and the
      primary metric (`accuracy_before`) before personalization, of the global
      model or else of the global weights with untrained local ones, and after;
    * `domains`: of each seed and domain the number of test examples and the
      personal models' loss, primary metric and AUC on them.
* `partition`: The training data of the first `seed` by client, `[clients]`:
  `client_ids`, of which the last `num_new_clients` are not trained,
  `num_train_examples`, `class_counts` `[clients, classes]` (None for
  regression) and, by domain, `domain_counts` (None without domains).
* `tunings`: For each `algorithm` that was swept the `seed` and `num_rounds` of
  its runs (0 where the method allows a single point) and the `points`, with
  those that the method refuses: `hparams`, the primary metric that the choice
  was made by, the last `loss`, `chosen`, True for one of them, and the reason
  of a `failure`.
* `failures`: For each trial without a result, those of sweeps included, its
  name (`trial`), `algorithm`, `seed` and `reason`.
* `primary_metric`: Metric that methods are compared by, unless it is the
  accuracy.
* `reported`: Further metrics of the models, if any, each like that.

Scores that are not finite, and that do not exist, are None. With
cross-validation there is a run for each seed and fold: rows with a `seed` also
have the `fold`, and figures are over all runs.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import pandas as pd
from matplotlib.axes import Axes

from tff_pfl import plots
from tff_pfl.comparisons import metrics as metrics_lib
from tff_pfl.models import split_model
from tff_pfl.runs import report
from tff_pfl.runs import summary as summary_lib
from tff_pfl.system import folders

JSON_NAME = 'comparison.json'
CSV_NAME = 'comparison.csv'
CLIENTS_CSV_NAME = 'per_client.csv'
DOMAINS_CSV_NAME = 'per_domain.csv'

# By the unit of a metric: the unit of its column, the factor and the decimals.
_UNITS = {
  'fraction': (' (%)', 100.0, 1),
  'bytes': (' (kB)', 1e-3, 1),
  'seconds': (' (s)', 1.0, 3),
  'clients': ('', 1.0, 1),
  'loss': ('', 1.0, 3),
  'score': ('', 1.0, None),
}
_HEADING_WIDTH = 13
# More in one picture cannot be told apart.
_MAX_CURVES = 7
# An entry of a comparison's `methods`.
Method = Mapping[str, Any]


class Results(dict):
  """Results of a comparison, as data frames and as plain data."""

  @property
  def scores(self) -> pd.DataFrame:
    """The `client_scores`, tidy; see `summary.tidy`."""
    return summary_lib.tidy(self.client_scores)

  @property
  def client_scores(self) -> pd.DataFrame:
    """The scores of all clients after the last round.

    A row for each method and variant (`label`, `method`, `variant`), `seed` and
    `client`, with the columns of `Run.scores`; `is_new` tells those that took
    no part in training.
    """
    return pd.DataFrame(
      {
        'label': method['label'],
        'method': method['algorithm'],
        'variant': method['variant'],
        'is_new': which == 'new_clients',
        **{_as_in_runs(name): value for name, value in row.items()},
      }
      for method in self['methods']
      for which in ('clients', 'new_clients')
      for row in method[which]
    )

  @property
  def domain_scores(self) -> pd.DataFrame:
    """The personal models' scores of each domain, by method and seed."""
    return pd.DataFrame(
      {**{name: method[name] for name in ('label', 'variant')}, **row}
      for method in self['methods']
      for row in method['domains']
    )

  @property
  def figures(self) -> pd.DataFrame:
    """The figures over seeds: a row for each method and variant."""
    return summary_lib.frame(
      {
        **{name: method[name] for name in ('algorithm', 'variant', 'label')},
        **method['metrics'],
        'hparams': summary_lib.json_text(method['hparams']),
      }
      for method in self['methods']
    )

  @property
  def curves(self) -> pd.DataFrame:
    """The primary metric by round.

    Columns are `label`, `seed` (and `fold`), `round`, `model` ('personal' or
    'global') and `value`, a mean over clients.
    """
    has_folds = any('fold' in c for m in self['methods'] for c in m['curves'])
    keys = ['seed', 'fold'] if has_folds else ['seed']
    return pd.DataFrame(
      [
        {
          'label': method['label'],
          **{key: curve[key] for key in keys},
          'round': round_number,
          'model': model,
          'value': value,
        }
        for method in self['methods']
        for curve in method['curves']
        for model, key in (('personal', 'personal'), ('global', 'global_model'))
        for round_number, value in zip(curve['rounds'], curve[key] or ())
      ],
      columns=['label', *keys, 'round', 'model', 'value'],
    )

  @property
  def primary_metric(self) -> split_model.PrimaryMetric:
    """The metric that methods are compared by."""
    named = self.get('primary_metric') or split_model.ACCURACY._asdict()
    return split_model.PrimaryMetric(**named)

  @property
  def metrics(self) -> dict[str, metrics_lib.Metric]:
    """The metrics of methods, by name."""
    recent = report.recent_title(
      sum(r > curve['rounds'][-1] - 10 for r in curve['rounds'])
      for method in self['methods']
      for curve in method['curves']
    )
    return metrics_lib.by_name(
      self.primary_metric,
      recent,
      [split_model.PrimaryMetric(**one) for one in self.get('reported', ())],
    )

  def ranked(self) -> list[Method]:
    """Methods from best to worst; those without a figure are last."""
    primary = self.primary_metric

    def key(method):
      # Every way to personalize has this figure.
      figure = method['metrics'].get(f'personal_{primary.name}')
      return math.inf if figure is None else -primary.merit(figure['mean'])

    return sorted(self['methods'], key=key)

  def table(self) -> str:
    """The tables that the program prints.

    They have means and, after ±, deviations over seeds. Columns that no method
    has are left out. A figure that not all runs of its row have says so. Data
    with domains have a second one, of minimum, mean and maximum over domains.
    """
    shown = [metric for metric in self.metrics.values() if metric.on_screen]
    of_domains = [
      metric
      for metric in shown
      if metric.name.startswith(metrics_lib.DOMAIN_PREFIXES)
    ]
    text = self._table([m for m in shown if m not in of_domains])
    if any(method['domains'] for method in self['methods']):
      over_clients = self.metrics[f'personal_{self.primary_metric.name}']
      # After the primary metric's, before those of the AUC.
      table = self._table([*of_domains[:3], over_clients, *of_domains[3:]])
      text += f'\n\nOver domains, after the last round\n{table}\n'
    return text

  def _table(self, metrics):
    methods = self['methods']
    text, _ = cells(methods, columns_of(methods, metrics))
    text.insert(0, 'method', [method['label'] for method in methods])
    return summary_lib.format_frame(text, _HEADING_WIDTH)

  def plot(self, ax: Optional[Axes] = None) -> Axes:
    """Draws the personal models' primary metric by round, of the best few."""
    frame = self.curves
    frame = frame[frame['model'] == 'personal']
    # Models that are made of the last round's have no rounds before it.
    known = set(frame['label'])
    best = [m['label'] for m in self.ranked() if m['label'] in known]
    return plots.curves(
      frame[frame['label'].isin(best[:_MAX_CURVES])],
      by='label',
      metric=self.primary_metric,
      ax=ax,
    )

  def write(self, directory: Union[str, os.PathLike[str]]) -> None:
    """Writes a JSON file of everything, and CSV files of frames.

    They have the `figures`, the `client_scores` and, for data with domains, the
    `domain_scores`.
    """
    directory = folders.output_path(directory, 'directory')
    summary_lib.write_json(os.path.join(directory, JSON_NAME), self)
    for name, frame in (
      (CSV_NAME, self.figures),
      (CLIENTS_CSV_NAME, self.client_scores),
      (DOMAINS_CSV_NAME, self.domain_scores),
    ):
      if not frame.empty or name != DOMAINS_CSV_NAME:
        summary_lib.write_csv(os.path.join(directory, name), frame)

  def _repr_html_(self) -> str:
    means = self.figures.filter(regex='^label$|/mean$')
    means.columns = [name.removesuffix('/mean') for name in means]
    return means.to_html(index=False)


def _as_in_runs(name):
  """'before/accuracy' for 'accuracy_before'."""
  metric, _, when = name.rpartition('_')
  return f'{when}/{metric}' if when in ('before', 'after') else name


def open_comparison(
  directory: Union[str, os.PathLike[str]],
) -> Results:
  """Reads the results of a comparison that has ended from its folder.

  Raises:
    RunError: If there is none.
  """
  directory = folders.local_path(directory, 'directory')
  return Results(summary_lib.read_json(os.path.join(directory, JSON_NAME)))


def num_seeds(method: Method) -> int:
  """Runs that have ended, of seeds and folds; a figure may have fewer."""
  figures = filter(None, method['metrics'].values())
  return max((figure['num_seeds'] for figure in figures), default=0)


def mean_std(values: Sequence[Optional[float]]) -> Optional[dict[str, Any]]:
  """Mean and standard deviation of a figure over seeds and folds.

  Args:
    values: A value for each run, None where one has none. These are left out,
      and so are values that are not finite.

  Returns:
    A dict of `mean`, the sample's standard deviation `std` (None for a single
    value) and `num_seeds`, the number of values; None without any.
  """
  known = [float(v) for v in values if v is not None and math.isfinite(v)]
  if not known:
    return None
  return {
    'mean': statistics.fmean(known),
    'std': statistics.stdev(known) if len(known) > 1 else None,
    'num_seeds': len(known),
  }


def columns_of(
  methods: Sequence[Method],
  wanted: Iterable[metrics_lib.Metric],
  more: Sequence[Any] = (),
) -> list[tuple[metrics_lib.Metric, list[Optional[Mapping[str, Any]]]]]:
  """Metrics that some method has, each with the methods' `mean_std`.

  Args:
    more: Further columns, which stand before these.
  """
  columns = [
    (m, [one['metrics'].get(m.name) for one in methods]) for m in wanted
  ]
  return [*more, *(column for column in columns if any(column[1]))]


def cells(
  methods: Sequence[Method],
  columns: Sequence[
    tuple[metrics_lib.Metric, Sequence[Optional[Mapping[str, Any]]]]
  ],
) -> tuple[pd.DataFrame, pd.DataFrame]:
  """The text of figures, with the best of each column told.

  Args:
    columns: Metrics, each with a `mean_std` or None for each method.

  Returns:
    Two frames, a row for each method, with the metrics' titles and units as
    columns: one of texts, and one of booleans, True for the best.
  """
  text, best = {}, {}
  for metric, spreads in columns:
    unit, factor, decimals = _UNITS[metric.unit]

    def shown(value, factor=factor, decimals=decimals):
      if decimals is None:
        return summary_lib.format_cell(value)
      return f'{factor * value:.{decimals}f}'

    means = [spread and shown(spread['mean']) for spread in spreads]
    title = metric.title + unit
    text[title] = [
      spread and mean + _note(method, spread, shown, always='%' in unit)
      for method, mean, spread in zip(methods, means, spreads)
    ]
    known = {mean for mean in means if mean is not None}
    most = None
    if len(known) > 1 and metric.higher_is_better is not None:
      most = (max if metric.higher_is_better else min)(known, key=float)
    best[title] = [mean is not None and mean == most for mean in means]
  return pd.DataFrame(text, dtype=object), pd.DataFrame(best, dtype=bool)


def _note(method, spread, shown, always):
  """The text after a mean: the deviation, and the number of its seeds."""
  note = ''
  # What is counted, as bytes are, is the same for all seeds.
  if spread['std'] is not None and (spread['std'] > 0 or always):
    note += f' ± {shown(spread["std"])}'
  if spread['num_seeds'] < num_seeds(method):
    note += f' ({spread["num_seeds"]} of {num_seeds(method)} runs)'
  return note
