"""Results of a comparison of methods as plain data; their files and tables.

`collect` gathers them from the trials. The screen, the CSV files and the HTML
page are made of the content of `comparison.json`, a dict:

* `title`: One line: the data, the clients, the rounds.
* `settings`: Settings that all methods share, in the order to be shown: each a
  `name`, as in `Settings` or `Comparison`, and a `value`.
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

import functools
import math
import operator
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

import pandas as pd
from matplotlib.axes import Axes

from tff_pfl import datasets, fields, plots
from tff_pfl.comparisons import execution, plan, trial
from tff_pfl.comparisons import metrics as metrics_lib
from tff_pfl.datasets import partitioning
from tff_pfl.methods import registry
from tff_pfl.models import split_model
from tff_pfl.runs import report
from tff_pfl.runs import scores as scores_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.system import folders

# Settings of a run that differ between the runs of a comparison, or tell of
# this machine alone.
_OWN_SETTINGS = ('method', 'seed', 'data_dir')


def collect(
  comparison: plan.Comparison, directory: str, trials: Sequence[trial.Trial]
) -> tuple[
  list[Method],
  split_model.PrimaryMetric,
  list[split_model.PrimaryMetric],
]:
  """Sums up the results of trials.

  Args:
    trials: Trials of the comparison; unfinished ones are left out.

  Returns:
    The `methods` of the results, the metric to compare them by, and further
    ones.

  Raises:
    RunError: If a trial's files cannot be read.
  """
  finished = [
    _Trial(directory, t)
    for t in trials
    if execution.is_finished(directory, t.name)
  ]
  primary, reported = split_model.ACCURACY, []
  if finished:
    evaluation = finished[0].variant()['evaluation']
    primary = report.primary_metric([evaluation])
    reported = [
      split_model.PrimaryMetric(name, told['higher_is_better'])
      for name, told in evaluation.get('reported', {}).items()
    ]
  methods = []
  for algorithm in comparison.algorithms:
    read = [one for one in finished if one.config.algorithm == algorithm]
    if read:
      methods += [
        _method(comparison, read, variant, primary, reported)
        for variant in read[0].scores['variants']
      ]
  return methods, primary, reported


class _Trial(trial.FinishedTrial):
  """The figures of a finished trial."""

  def __init__(self, directory, finished):
    super().__init__(execution.trial_folder(directory, finished.name))
    self.config = finished.config
    # Of its rows.
    self._key = {'seed': finished.config.seed}
    if finished.fold is not None:
      self._key['fold'] = finished.fold[0]

  def metrics(self, variant, name):
    """The figures of one row, by the names of `metrics.by_name`."""
    scores = self.variant(variant)
    evaluation = scores['evaluation']
    fairness = evaluation['fairness'] or {}
    over_rounds = report.primary_figures(self.summary)
    personal_last_10 = over_rounds['personal'] or {}
    global_last_10 = over_rounds['global'] or {}
    shared = evaluation['global'] or {}
    sizes = self.scores['bytes_per_round']
    rounds = self.config.rounds
    cohorts = rounds.cohorts(self.summary['num_clients'], self.config.seed)
    cohort_size = statistics.mean(
      len(cohorts.sample(round_number))
      for round_number in range(1, rounds.num_rounds + 1)
    )
    two_classes = evaluation.get('two_classes', {}).get('personal', {})
    return {
      'personal_loss': evaluation['personal']['loss'],
      f'personal_{name}_last_10': personal_last_10.get('last_10_mean')
      if variant == trial.OWN_VARIANT
      else None,
      f'personal_{name}': evaluation['personal'].get(name),
      f'global_{name}_last_10': global_last_10.get('last_10_mean'),
      f'global_{name}': shared.get(name),
      f'weighted_{name}': fairness.get('weighted_mean'),
      f'weighted_{name}_best_10': self.summary.get('weighted', {}).get(
        'best_10_mean'
      )
      if variant == trial.OWN_VARIANT
      else None,
      **_further(evaluation),
      'worst_10_percent': fairness.get('worst_10_percent'),
      'fraction_hurt': fairness.get('fraction_hurt'),
      'fraction_diverged': evaluation['non_finite_clients']
      / len(scores['clients']),
      f'new_client_{name}': _mean(scores['new_clients'], name),
      f'new_client_ensemble_{name}': _mean(
        scores.get('new_clients_by_ensemble', []), name
      ),
      'majority_accuracy': self.summary.get('majority_accuracy'),
      # Over all clients' examples.
      **{n: v for n, v in two_classes.items() if n != 'client_auc'},
      'bytes_down_per_client': sizes['down'],
      'bytes_up_per_client': sizes['up'],
      'bytes_down_per_round': sizes['down'] * cohort_size,
      'bytes_up_per_round': sizes['up'] * cohort_size,
      'seconds_per_round': self.summary['seconds_per_round'],
      **self._domain_metrics(variant, name),
    }

  def _domain_metrics(self, variant, name):
    """Those of domains; none for data without domains."""
    domains = self.variant(variant)['evaluation'].get('domains')
    if domains is None:
      return {}
    found = _over_domains(domains['personal'], name)
    if variant == trial.OWN_VARIANT:
      by_round = self.summary['domains']['personal']
      mean = operator.itemgetter('last_10_mean')
      found.update(_over_domains(by_round, name, mean, '_last_10'))
    return found

  def domains(self, variant, name):
    """Scores by domain; none for data without domains."""
    domains = self.variant(variant)['evaluation'].get('domains')
    if domains is None:
      return []
    personal = domains['personal']
    return [
      {
        **self._key,
        'domain': domain,
        'num_test_examples': count,
        **{
          score: personal[score]['by_domain'][domain]
          if score in personal
          else None
          for score in ('loss', name, scores_lib.AUC)
        },
      }
      for domain, count in domains['num_test_examples'].items()
    ]

  def curves(self, variant, primary):
    """The primary metric by round; none where the last alone was scored."""
    series = report.series(self.evaluations, primary)
    if variant != trial.OWN_VARIANT or 'personal' not in series:
      return []
    rounds, personal = series['personal']
    _, shared = series.get('global', (rounds, None))
    return [
      {
        **self._key,
        'rounds': rounds,
        'personal': personal,
        'global_model': shared,
      }
    ]

  def clients(self, variant, which, names):
    """Scores of `which`: 'clients' or 'new_clients'."""
    counts = ('client', 'num_train_examples', 'num_test_examples', 'num_rounds')
    return [
      {
        **self._key,
        **{count: row[count] for count in counts},
        **{
          f'{score}_{when}': row[when].get(score)
          for score in (*names, 'loss')
          for when in ('before', 'after')
        },
      }
      for row in self.variant(variant)[which]
    ]


def _further(evaluation):
  """The figures of further metrics."""
  found = {}
  for name, told in evaluation.get('reported', {}).items():
    for which in ('personal', 'global'):
      found[f'{which}_{name}'] = (evaluation[which] or {}).get(name)
    found[f'clients_{name}'] = None
    if told['num_clients'] < told['num_scored']:
      found[f'clients_{name}'] = told['num_clients']
  return found


def _method(comparison, read, variant, primary, reported):
  """The row of a method and variant, over the seeds and folds."""
  algorithm, first, name = read[0].config.algorithm, read[0], primary.name
  names = [name, *(metric.name for metric in reported)]
  rows = [one.metrics(variant, name) for one in read]

  def all_rows(rows_of, *arguments):
    return [row for one in read for row in rows_of(one, *arguments)]

  domains = all_rows(_Trial.domains, variant, name)
  label = _label(algorithm, variant, comparison.base, first.scores)
  num_runs = len(comparison.seeds) * len(comparison.folds)
  if len(read) < num_runs:
    label += f' ({len(read)} of {num_runs} runs)'
  if not any(row['fraction_diverged'] for row in rows):
    # Without a divergence to tell of, the column would say nothing.
    rows = [{**row, 'fraction_diverged': None} for row in rows]
  if not any(_is_no_better_than_majority(row) for row in rows):
    for row in rows:
      del row['majority_accuracy']
  return {
    'algorithm': algorithm,
    'variant': variant,
    'label': label,
    'summary': registry.get_algorithm(algorithm).summary,
    'has_global_model': first.scores['has_global_model'],
    'hparams': fields.to_json(first.config.method),
    'metrics': {
      name: mean_std([row.get(name) for row in rows])
      for name in metrics_lib.by_name(primary, reported=reported)
      if name in rows[0]
      or (domains and name.startswith(metrics_lib.DOMAIN_PREFIXES))
    },
    'curves': all_rows(_Trial.curves, variant, primary),
    'clients': all_rows(_Trial.clients, variant, 'clients', names),
    'new_clients': all_rows(_Trial.clients, variant, 'new_clients', names),
    'domains': domains,
  }


def _label(algorithm, variant, base, scores):
  """The label of a row; fine-tuning by the method itself is not in it."""
  asked = variant
  if variant == trial.OWN_VARIANT:
    asked = base.process.personalization.fine_tune
  if asked == 'method' or asked == scores['adaptation'] == 'none':
    return algorithm
  if asked == 'none':
    return f'{algorithm} without FT'
  if asked == 'trained':
    return f'{algorithm}, trained'
  return f'{algorithm} + FT ({asked})'


def settings(
  comparison: plan.Comparison, data: datasets.FederatedDataset
) -> dict[str, Any]:
  """The settings that all runs share, then those of the comparison.

  Args:
    data: Data of a run, for what the settings leave to them.
  """
  base, options = fields.to_json(comparison.base), comparison.base.data
  has_clients = datasets.DATASETS[options.name].has_clients
  _, rule = partitioning.defaults(None, options.partition, has_clients)
  rounds = comparison.base.rounds
  # Options of fine-tuning say nothing where nothing is fine-tuned.
  scopes = {
    comparison.base.process.personalization.fine_tune,
    *comparison.fine_tune_variants,
  }
  paths = fields.flat_names(type(comparison.base))
  groups = {path[:-1] for path in paths.values()}
  shared = {
    **{
      name: functools.reduce(operator.getitem, path, base)
      for name, path in paths.items()
      if path not in groups
      and name not in _OWN_SETTINGS
      and (scopes & {'head', 'all'} or not name.startswith('fine_tune_'))
    },
    'num_clients': data.num_clients,
    'partition': data.partition or rule.spec,
    'cohort_size': rounds.cohorts(data.num_clients, 0).cohort_size,
    'seeds': list(comparison.seeds),
    'num_new_clients': comparison.num_new_clients,
    'fine_tune_variants': list(comparison.fine_tune_variants),
  }
  if comparison.num_folds is not None:
    shared['num_folds'] = comparison.num_folds
  if comparison.num_search_trials is not None:
    shared['num_search_trials'] = comparison.num_search_trials
  if any(map(comparison.is_tuned, comparison.algorithms)):
    shared['validation_fraction'] = comparison.validation_fraction
    shared['tuning_rounds'] = comparison.tuning_rounds or rounds.num_rounds
  return shared


def _is_no_better_than_majority(row):
  """True if a method is no better than the most frequent class."""
  majority, accuracy = row['majority_accuracy'], row.get('personal_accuracy')
  return None not in (majority, accuracy) and accuracy <= majority


def _over_domains(scores, primary_name, value=lambda figure: figure, suffix=''):
  """Figures of scores over domains and clients, by names of metrics.

  Args:
    scores: Figures by metric.
    primary_name: Name of the primary metric.
    value: Function from a figure to its value.
    suffix: End of the names.
  """
  found = {
    f'domain_{score}_{name}{suffix}': value(scores[score][name])
    for score in (primary_name, scores_lib.AUC)
    if score in scores
    for name in ('min', 'mean', 'max')
  }
  # That of the primary metric is that of any data.
  if scores_lib.AUC in scores:
    figure = scores[scores_lib.AUC]['client_mean']
    found[f'client_auc{suffix}'] = value(figure)
  return found


def _mean(rows, name):
  values = [row['after'].get(name) for row in rows]
  # That of a client whose model diverged is not known, nor is the mean then.
  return None if not values or None in values else sum(values) / len(values)


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
    return summary_lib.format_table(text, width=_HEADING_WIDTH)

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
        return f'{value:.4g}'
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
