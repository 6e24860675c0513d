"""Results of a study: data frames, tables and pictures, made from its folder.

`study.json` describes a study and says which trial's scores belong to which
method, condition and seed. All frames are made from the trials' own files.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import stats

from tff_pfl import errors, plots
from tff_pfl.models import split_model
from tff_pfl.runs import report
from tff_pfl.runs import run as run_lib
from tff_pfl.runs import scores as scores_lib
from tff_pfl.runs import summary as summary_lib
from tff_pfl.studies import claims as claims_lib
from tff_pfl.studies import execution, numbers, plan, trial
from tff_pfl.studies import metrics as metrics_lib
from tff_pfl.studies import page as page_lib
from tff_pfl.system import folders

STUDY_NAME = 'study.json'
NUMBERS_NAME = 'numbers.json'
# From a metric's unit to its column's unit, the factor and the decimals.
_UNITS = {
  'fraction': (' (%)', 100.0, 1),
  'bytes': (' (kB)', 1e-3, 1),
  'seconds': (' (s)', 1.0, 3),
  'clients': ('', 1.0, 1),
  'loss': ('', 1.0, 3),
  'score': ('', 1.0, None),
}
_HEADING_WIDTH = 13
# More curves in one picture cannot be distinguished.
_MAX_CURVES = 7
# With fewer seeds, the interval contains nearly everything.
_MIN_SEEDS_FOR_TIES = 3
_KEYS = ('condition', 'method', 'seed', 'fold')


class Result(NamedTuple):
  """The result of a method in a condition with a seed.

  Attributes:
    condition: The condition's name.
    method: The method's name.
    algorithm: A key of `ALGORITHMS`.
    seed: Seed of the trial.
    fold: Number of the fold, or None without cross-validation.
    run: The trial, which other methods may share.
    variant: `trial.OWN_VARIANT`, or the name of another personalization.
    scored: The models that are scored, one of `study.SCORES`.
    is_of_last: True if only the last models are scored, because the method has
      its own settings of fine-tuning.
  """

  condition: Any
  method: str
  algorithm: str
  seed: int
  fold: Optional[int]
  run: trial.FinishedTrial
  variant: str
  scored: str
  is_of_last: bool = False

  @property
  def scores(self) -> Mapping[str, Any]:
    """The last models' scores, see `trial.FinishedTrial.variant`."""
    return self.run.variant(self.variant)

  def open(self) -> run_lib.Run:
    """The run with its models, for a study without new clients."""
    return self.run.open()

  def columns(self) -> dict[str, Any]:
    """The columns that identify the result in frames."""
    named = {'condition': self.condition, 'method': self.method}
    fold = {} if self.fold is None else {'fold': self.fold}
    return {**named, 'seed': self.seed, **fold}

  @property
  def primary(self) -> split_model.PrimaryMetric:
    """The metric that compares models."""
    return report.primary_metric([self.scores['evaluation']])

  def score(self) -> Optional[float]:
    """The primary metric of the scored models, or None.

    It is a mean over clients. For trained clients it is also a mean over the
    last ten rounds, unless the method has its own settings of fine-tuning.
    """
    name = self.primary.name
    if self.scored.startswith('new_clients'):
      return _mean_over(self.scores.get(self.scored, ()), name)
    if not self.is_of_last and self.variant == trial.OWN_VARIANT:
      of_rounds = report.primary_figures(self.run.summary)[self.scored]
      return (of_rounds or {}).get('last_10_mean')
    return (self.scores['evaluation'][self.scored] or {}).get(name)

  def metrics(self) -> dict[str, Any]:
    """The figures, by the names of `metrics.by_name`, and the `score`."""
    name, scores, summary = self.primary.name, self.scores, self.run.summary
    evaluation = scores['evaluation']
    is_own = self.variant == trial.OWN_VARIANT
    fairness = evaluation['fairness'] or {}
    over_rounds = report.primary_figures(summary)
    sizes = self.run.scores['bytes_per_round']
    two_classes = evaluation.get('two_classes', {}).get('personal', {})
    values = {'score': self.score()}
    for which in ('personal', 'global'):
      values[f'{which}_{name}'] = (evaluation[which] or {}).get(name)
      if is_own or which == 'global':
        recent = (over_rounds[which] or {}).get('last_10_mean')
        values[f'{which}_{name}_last_10'] = recent
    if is_own:
      weighted = summary.get('weighted', {}).get('best_10_mean')
      values[f'weighted_{name}_best_10'] = weighted
    for further, figures in evaluation.get('reported', {}).items():
      for which in ('personal', 'global'):
        values[f'{which}_{further}'] = (evaluation[which] or {}).get(further)
      if figures['num_clients'] < figures['num_scored']:
        values[f'clients_{further}'] = figures['num_clients']
    return {
      **values,
      'personal_loss': evaluation['personal']['loss'],
      f'weighted_{name}': fairness.get('weighted_mean'),
      'worst_10_percent': fairness.get('worst_10_percent'),
      'fraction_hurt': fairness.get('fraction_hurt'),
      'fraction_diverged': evaluation['non_finite_clients']
      / len(scores['clients']),
      f'new_client_{name}': _mean_over(scores['new_clients'], name),
      f'new_client_ensemble_{name}': _mean_over(
        scores.get('new_clients_by_ensemble', ()), name
      ),
      'majority_accuracy': summary.get('majority_accuracy'),
      **{n: v for n, v in two_classes.items() if n != 'client_auc'},
      **{f'bytes_{way}_per_client': sizes[way] for way in ('down', 'up')},
      'seconds_per_round': summary['seconds_per_round'],
      **self._domain_metrics(name),
    }

  def _domain_metrics(self, name):
    """The figures over domains, empty for data without domains."""
    domains = self.scores['evaluation'].get('domains')
    if domains is None:
      return {}
    figures = dict(_over_domains(domains['personal'], name))
    if self.variant == trial.OWN_VARIANT:
      by_round = _over_domains(self.run.summary['domains']['personal'], name)
      figures.update(
        (f'{key}_last_10', value['last_10_mean']) for key, value in by_round
      )
    return figures

  def domains(self) -> list[dict[str, Any]]:
    """Scores by domain, empty for data without domains."""
    domains = self.scores['evaluation'].get('domains')
    if domains is None:
      return []
    personal = domains['personal']
    return [
      {
        **self.columns(),
        'domain': domain,
        'num_test_examples': count,
        **{
          score: personal[score]['by_domain'][domain]
          for score in ('loss', self.primary.name, scores_lib.AUC)
          if score in personal
        },
      }
      for domain, count in domains['num_test_examples'].items()
    ]

  def curves(self) -> Iterator[dict[str, Any]]:
    """The primary metric by round, if more than the last round was scored."""
    if self.variant == trial.OWN_VARIANT:
      series = report.series(self.run.evaluations, self.primary)
      for model, (rounds, values) in series.items():
        for round_number, value in zip(rounds, values):
          yield {
            **self.columns(),
            'round': round_number,
            'model': model,
            'value': value,
          }

  def clients(self) -> Iterator[dict[str, Any]]:
    """The scores of trained and new clients."""
    for which in ('clients', 'new_clients'):
      for row in self.scores[which]:
        yield {
          **self.columns(),
          'algorithm': self.algorithm,
          'is_new': which == 'new_clients',
          **summary_lib.flat(row),
        }


def _over_domains(scores, primary_name):
  """Yields figures over domains and clients, with the names of metrics."""
  for score in dict.fromkeys((primary_name, scores_lib.AUC)):
    if score in scores:
      for name in ('min', 'mean', 'max'):
        yield f'domain_{score}_{name}', scores[score][name]
  if scores_lib.AUC in scores:
    yield 'client_auc', scores[scores_lib.AUC]['client_mean']


def _mean_over(rows, name):
  values = [row['after'].get(name) for row in rows]
  # A client whose model diverged has no score, so the mean has none either.
  return None if not values or None in values else sum(values) / len(values)


class Results:
  """Results of a study.

  Iteration gives a `Result` for each method, condition and seed whose trial has
  finished, in the order of the methods.

  Attributes:
    directory: The study's folder.
    description: The content of `study.json`.
  """

  def __init__(self, directory: str, description: Mapping[str, Any]):
    self.directory = directory
    self.description = description

  @functools.cached_property
  def _results(self):
    methods = self.description['methods']
    data_dir = self.description['data_dir']
    opened, finished = {}, []
    for entry in self.description['entries']:
      name = entry['trial']
      if name not in opened:
        folder = execution.trial_folder(self.directory, name)
        is_there = os.path.exists(os.path.join(folder, trial.SCORES_NAME))
        opened[name] = (
          trial.FinishedTrial(folder, data_dir) if is_there else None
        )
      run = opened[name]
      # Some methods have no models as training leaves them.
      if run is None or run.scores['variants'].get(entry['variant']) is None:
        continue
      method = methods[entry['method']]
      finished.append(
        Result(
          entry['condition'],
          entry['method'],
          method['algorithm'],
          entry['seed'],
          entry['fold'],
          run,
          entry['variant'],
          method['score'],
          plan.is_of_last(method['settings']),
        )
      )
    return finished

  def __iter__(self) -> Iterator[Result]:
    return iter(self._results)

  def __len__(self) -> int:
    return len(self._results)

  # Frames.

  @functools.cached_property
  def numbers(self) -> pd.DataFrame:
    """The study's numbers: rows of its measure, or a row for each result."""
    path = os.path.join(self.directory, NUMBERS_NAME)
    if self.description['is_measured'] and os.path.exists(path):
      return pd.DataFrame(summary_lib.read_json(path)['columns'])
    return self.figures_by_seed

  @functools.cached_property
  def figures_by_seed(self) -> pd.DataFrame:
    """The figures of each result, in the columns of `metrics`."""
    rows = [{**one.columns(), **one.metrics()} for one in self]
    # Before the first result, those that tables and pictures name.
    columns = None if rows else [*_KEYS[:3], self.description['metric']]
    return pd.DataFrame(rows, columns=columns).astype(
      {name: float for row in rows[:1] for name in row if name not in _KEYS}
    )

  @property
  def figures(self) -> pd.DataFrame:
    """The figures over seeds and folds, a row for a method in a condition.

    Columns are, for example, `personal_accuracy/mean`, `/std` (of the sample)
    and `/count` (of finite values).
    """
    frame = self.figures_by_seed.replace([np.inf, -np.inf], np.nan)
    columns = [name for name in frame if name not in _KEYS]
    grouped = frame.groupby(['condition', 'method'], sort=False)[columns]
    table = grouped.agg(['mean', 'std', 'count'])
    table.columns = ['/'.join(names) for names in table.columns]
    return table.dropna(axis='columns', how='all').reset_index()

  @functools.cached_property
  def client_scores(self) -> pd.DataFrame:
    """The scores of all clients after the last round.

    There is a row for each `condition`, `method`, `seed` and `client`, with the
    columns of `Run.scores`. `is_new` marks clients that did not train.
    """
    return pd.DataFrame(row for one in self for row in one.clients())

  @property
  def scores(self) -> pd.DataFrame:
    """The `client_scores`, one number per row, see `summary.tidy`."""
    return summary_lib.tidy(self.client_scores)

  @functools.cached_property
  def domain_scores(self) -> pd.DataFrame:
    """The personal models' scores of each domain, by method and seed."""
    return pd.DataFrame(row for one in self for row in one.domains())

  @functools.cached_property
  def curves(self) -> pd.DataFrame:
    """The primary metric by `round` and `model` ('personal' or 'global')."""
    rows = [row for one in self for row in one.curves()]
    columns = [*_KEYS[:3], 'round', 'model', 'value']
    return pd.DataFrame(rows, columns=None if rows else columns)

  # Contents.

  @property
  def conditions(self) -> list[Any]:
    """The names of the conditions that have results."""
    return list(dict.fromkeys(one.condition for one in self))

  @property
  def failures(self) -> list[Mapping[str, Any]]:
    """The trials without a result, each with the `reason`."""
    return self.description['failures']

  @property
  def claims(self) -> pd.DataFrame:
    """The study's claims, a row for each `claims.Claim`."""
    rows = self.description.get('claims', [])
    return pd.DataFrame(rows, columns=claims_lib.Claim._fields)

  @property
  def primary_metric(self) -> split_model.PrimaryMetric:
    """The metric that compares methods."""
    return next((one.primary for one in self), split_model.ACCURACY)

  @property
  def metrics(self) -> dict[str, metrics_lib.Metric]:
    """The metrics of results, by name."""
    summaries = [report.primary_figures(one.run.summary) for one in self]
    recent = report.recent_title(
      one['personal']['num_last_10'] for one in summaries if one['personal']
    )
    evaluation = next((one.scores['evaluation'] for one in self), {})
    return metrics_lib.by_name(
      self.primary_metric,
      recent,
      [
        split_model.PrimaryMetric(name, figures['higher_is_better'])
        for name, figures in evaluation.get('reported', {}).items()
      ],
    )

  def ranked(self, condition: Any) -> list[str]:
    """Methods from best to worst, with methods without a figure at the end."""
    frame = self.figures_by_seed
    frame = frame[frame['condition'] == condition]
    # Results of every personalization have this figure.
    name = f'personal_{self.primary_metric.name}'
    merit = self.primary_metric.merit(
      frame.groupby('method', sort=False)[name].mean()
    )
    order = np.argsort(-merit, kind='stable')
    return [frame['method'].unique()[place] for place in order]

  def label(self, condition: Any, method: str) -> str:
    """The method's name, with the number of its runs if some are missing."""
    return method + self._of_all_runs(condition, method)

  def _of_all_runs(self, condition, method):
    ended = sum(
      (one.condition, one.method) == (condition, method) for one in self
    )
    total = sum(
      (entry['condition'], entry['method']) == (condition, method)
      for entry in self.description['entries']
    )
    return '' if ended == total else f' ({ended} of {total} runs)'

  # Tables and pictures.

  def table(self) -> str:
    """The tables for the screen.

    If there are several conditions or published figures, the table has the
    study's metric by method and condition. Otherwise it has all metrics.
    Figures are means and, after ±, standard deviations over seeds. They say so
    if some runs of their row lack a value. Data with domains add a second table
    with the minimum, mean and maximum over domains.
    """
    if len(self.conditions) != 1 or self.description['published']:
      return summary_lib.format_table(self.overview(), width=_HEADING_WIDTH)
    shown = [metric for metric in self.metrics.values() if metric.on_screen]
    of_domains = [
      metric
      for metric in shown
      if metric.name.startswith(metrics_lib.DOMAIN_PREFIXES)
    ]
    text = self._table([m for m in shown if m not in of_domains])
    if any(one.domains() for one in self):
      over_clients = self.metrics[f'personal_{self.primary_metric.name}']
      # After the columns of the primary metric, before the columns of the AUC.
      table = self._table([*of_domains[:3], over_clients, *of_domains[3:]])
      text += f'\n\nOver domains, after the last round\n{table}\n'
    return text

  def _table(self, metrics):
    (condition,) = self.conditions
    methods = list(dict.fromkeys(one.method for one in self))
    text, _ = self.cells(condition, methods, metrics)
    text.insert(0, 'method', [self.label(condition, m) for m in methods])
    return summary_lib.format_table(text, width=_HEADING_WIDTH)

  def overview(self) -> pd.DataFrame:
    """The study's metric by method and condition, as text."""
    return self.marked_overview()[0]

  def marked_overview(self) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The `overview`, and marks of the best figures as in `cells`."""
    metric, frame = self.description['metric'], self.numbers
    if frame.empty or not {'condition', 'method', metric} <= {*frame}:
      return pd.DataFrame(), pd.DataFrame()
    published = {
      (row['method'], row['condition']): row['value']
      for row in self.description['published']
    }
    known, primary = self.metrics.get(metric), self.primary_metric
    is_fraction, higher = False, None
    if known is not None:
      is_fraction = known.unit == 'fraction'
      higher = known.higher_is_better
    elif metric == 'score':
      is_fraction, higher = primary.is_fraction, primary.higher_is_better
    table = pd.DataFrame({'method': frame['method'].unique()})
    marks = table.map(lambda _: '')
    for condition, part in frame.groupby('condition', sort=False):
      title = (str(condition) or metric) + ' (%)' * is_fraction
      rows = [part[part['method'] == name] for name in table['method']]
      columns = [row.groupby(_run_keys(row))[metric].mean() for row in rows]
      texts = [metrics_lib.mean_text(column, is_fraction) for column in columns]
      table[title] = [
        text + self._of_all_runs(condition, name) if text else ''
        for name, text in zip(table['method'], texts)
      ]
      marks[title] = _marks(columns, higher, table[title])
      theirs = [published.get((one, condition)) for one in table['method']]
      if any(value is not None for value in theirs):
        title = f'{condition}, published'.lstrip(', ')
        table[title] = [
          '' if value is None else f'{value:g}' for value in theirs
        ]
        marks[title] = ''
    return table, marks

  def cells(
    self,
    condition: Any,
    methods: Sequence[str],
    metrics: Iterable[metrics_lib.Metric],
  ) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The text of figures, and marks of the best ones.

    Args:
      condition: A condition.
      methods: Methods, each with a row.
      metrics: Metrics. If no method has a metric, it is left out.

    Returns:
      Two frames, with the metrics' titles and units as columns. One has texts.
      The other has 'best', 'tie' (the 95% interval of the paired difference
      from the best contains 0) or ''.
    """
    frame = self.figures_by_seed
    frame = frame[frame['condition'] == condition]
    rows = [frame[frame['method'] == name] for name in methods]
    text, marks = {}, {}
    for metric in metrics:
      if metric.name not in frame or _says_nothing(metric.name, frame):
        continue
      unit, factor, decimals = _UNITS[metric.unit]
      title = metric.title + unit
      columns = [row.set_index(_run_keys(row))[metric.name] for row in rows]
      text[title] = [
        metrics_lib.mean_of(column, factor, '%' in unit, decimals)
        for column in columns
      ]
      marks[title] = _marks(columns, metric.higher_is_better, text[title])
    return pd.DataFrame(text, dtype=object), pd.DataFrame(marks, dtype=object)

  def plot(
    self, ax: Optional[Axes] = None, *, condition: Optional[Any] = None
  ) -> Axes:
    """Draws the results.

    Several conditions are drawn as bars of the study's metric for each method.
    One condition is drawn as curves by round of the personal models' primary
    metric, for the best few methods.

    Args:
      condition: A condition to draw as curves.
    """
    if condition is None and len(self.conditions) == 1:
      (condition,) = self.conditions
    if condition is not None:
      errors.expect_one_of('condition', condition, self.conditions)
    frame = self.curves
    if condition is None or frame.empty:
      metric = self.description['metric']
      return plots.bars(
        self.numbers.astype({'condition': str}),
        x='method',
        y=metric,
        by='condition',
        metric=self.primary_metric if metric == 'score' else None,
        ax=ax,
      )
    frame = frame[
      (frame['model'] == 'personal') & (frame['condition'] == condition)
    ]
    # Models that are made after the last round have no earlier rounds.
    known = {*frame['method']}
    best = [name for name in self.ranked(condition) if name in known]
    return plots.curves(
      frame[frame['method'].isin(best[:_MAX_CURVES])],
      by='method',
      # Dashes show a curve beneath another one.
      style='method',
      metric=self.primary_metric,
      ax=ax,
    )

  def page(self, path: Optional[Union[str, os.PathLike[str]]] = None) -> str:
    """Writes the HTML page of the results, and returns its path.

    Args:
      path: Path of the file. None means `study.html` in the study's folder.
    """
    path = path or os.path.join(self.directory, page_lib.PAGE_NAME)
    page_lib.write(self, path)
    return os.fspath(path)

  def _repr_html_(self) -> str:
    return self.overview().to_html(index=False)


def _run_keys(frame):
  return [name for name in ('seed', 'fold') if name in frame]


def _says_nothing(name, frame):
  """True for a column without values, or with nothing to report."""
  if frame[name].isna().all():
    return True
  if name == 'majority_accuracy' and 'personal_accuracy' in frame:
    return not (frame['personal_accuracy'] <= frame[name]).any()
  return name == 'fraction_diverged' and not frame[name].any()


def _marks(columns, higher_is_better, texts):
  """Marks the best of several methods' figures, and ties with the best."""
  means = [
    column.mean() if text else math.nan for column, text in zip(columns, texts)
  ]
  shown = {text.split(' ')[0] for text in texts if text}
  if higher_is_better is None or len(shown) < 2:
    return [''] * len(columns)
  best = (np.nanargmax if higher_is_better else np.nanargmin)(means)
  best_text = texts[best].split(' ')[0]
  return [
    'best'
    if text and text.split(' ')[0] == best_text
    else 'tie'
    if text and _is_tie(columns[best], column)
    else ''
    for text, column in zip(texts, columns)
  ]


def _is_tie(first, second):
  """True if the 95% interval of the mean paired difference contains 0."""
  differences = numbers.by_seed(first - second).dropna()
  if len(differences) < _MIN_SEEDS_FOR_TIES:
    return False
  half = stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences)
  return abs(differences.mean()) <= half


def open_study(directory: Union[str, os.PathLike[str]]) -> Results:
  """The results of a study, which may be in progress, from its folder.

  Raises:
    RunError: If the folder has no study.
  """
  directory = folders.local_path(directory, 'directory')
  path = os.path.join(directory, STUDY_NAME)
  if not os.path.exists(path):
    raise errors.RunError(
      f'{directory} holds no study: there is no {path}. (A study that is still'
      ' tuning has none yet.)'
    )
  return Results(directory, summary_lib.read_json(path))


def numbers_of(results: Results) -> numbers.Numbers:
  """The numbers of results, in the form for claims."""
  primary = results.primary_metric
  higher = {'score': primary.higher_is_better}
  for name, metric in results.metrics.items() if len(results) else ():
    higher[name] = metric.higher_is_better is not False
  return numbers.Numbers(results.numbers, higher)
