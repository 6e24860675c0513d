"""The report of a run: a table, JSON, CSV and pictures, all from its store."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tff_pfl import datasets, plots
from tff_pfl.core import personalized_process
from tff_pfl.models import split_model
from tff_pfl.runs import client_population, run_store
from tff_pfl.runs import scores as scores_lib
from tff_pfl.runs import summary as summary_lib

SUMMARY_NAME = 'summary.json'
HISTORY_NAME = 'metrics.csv'
PER_CLIENT_NAME = 'per_client.csv'
# After the name of the primary metric.
BY_ROUND_PLOT_SUFFIX = '_by_round.png'
CLIENTS_PLOT_NAME = 'clients.png'
PER_DOMAIN_NAME = 'per_domain.csv'
DOMAINS_PLOT_NAME = 'domains.png'
PARTITION_PLOT_NAME = 'partition.png'
COMPARISON_PLOT_NAME = 'comparison.png'


def write_report(
  store: run_store.RunStore,
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  *,
  pictures: bool = True,
) -> dict:
  """Writes the report of a run into its folder.

  `summary.json`, `per_client.csv` (the newest evaluation), `metrics.csv` (a
  row for each round), `accuracy_by_round.png` (or of another primary metric),
  `clients.png` (distribution over clients before and after personalization)
  and `partition.png` (clients by classes); for data with domains also
  `per_domain.csv` and `domains.png`.

  The newest round in the store must have been evaluated. Without `pictures`
  there are tables alone.

  Returns:
    The summary: the settings of the run, and `accuracy` of the personal models
    and `global_accuracy` (of the global model alone; None where there is none)
    as `last_10_mean`, `num_last_10`, `best`, `best_round`, `best_10_mean`,
    `last`, each a mean over clients, or None for models without an accuracy;
    `weighted`, the same of the personal models' primary metric as a mean over
    all clients' test examples; `loss` and `global_loss` of the newest
    evaluation; `fairness` of the newest evaluation;
    `non_finite_clients` in it (personal models that diverged);
    `num_scored_clients`, those with test examples, over whom means are taken;
    `seconds_per_round` (median, without evaluation) and `peak_rss_mb` (of this
    process and its workers, after any round). Where there are such things, also

    * `primary_metric`, unless that is the accuracy: `name`, `higher_is_better`,
      and `personal` and `global` as `accuracy` and `global_accuracy` are;
    * `reported`, by name of the further metrics: `higher_is_better`, `personal`
      and `global` as `accuracy` and `global_accuracy` are, but over the clients
      that have such a figure, and how many of those that are scored have it in
      the newest evaluation, `num_clients` of `num_scored`;
    * `majority_accuracy`, for classes of one label: the accuracy of always
      predicting a client's most frequent class in training, mean over clients;
    * `two_classes`, of the newest evaluation, see `scores.summarize`;
    * `domains`, see `domains_over_rounds`;
    * `privacy`, of runs with noise: `epsilon` after the last round, `delta`,
      `noise_multiplier` and the `unit` that is protected, see `privacy`.
  """
  scores = summary_lib.frame(store.per_client())
  summary = _summarize(store, process, data)
  tables = {
    PER_CLIENT_NAME: scores,
    HISTORY_NAME: summary_lib.frame(store.history()),
  }
  if 'domains' in summary:
    rows = domain_rows(summary['domains'])
    tables[PER_DOMAIN_NAME] = summary_lib.frame(rows)
  for name, table in tables.items():
    summary_lib.write_csv(os.path.join(store.directory, name), table)
  if pictures:
    _write_pictures(store, process, data, summary, scores)
  # Last, so that a summary means that the report is complete.
  summary_lib.write_json(os.path.join(store.directory, SUMMARY_NAME), summary)
  return summary


def _write_pictures(store, process, data, summary, scores):
  evaluations = store.evaluations()
  metric = primary_metric(evaluations)
  title = (
    f'{summary["algorithm"]} on {data.name}, {summary["num_clients"]} clients'
  )
  left, right = plots.new_axes(11, 4.6, 1, 2)
  before = 'global weights, untrained local ones'
  if process.has_global_model:
    before = 'global model'
  labels = (before, 'personal model')
  plots.clients(scores, metric, labels=labels, title=title, ax=left)
  plots.changes(scores, metric, ax=right)
  pictures = {
    metric.name + BY_ROUND_PLOT_SUFFIX: plot_curves(
      {'': curves(evaluations)}, metric, title=title
    ),
    CLIENTS_PLOT_NAME: left,
    PARTITION_PLOT_NAME: plots.partition(data),
  }
  if 'domains' in summary:
    bars = domain_bars(summary['domains'], metric)
    height = 1.6 + 0.5 * data.num_domains
    axes = plots.new_axes(6.4 * len(bars), height, 1, len(bars), squeeze=False)
    for ax, (name, frame) in zip(axes[0], bars.items()):
      plots.bars(frame, x='value', y='domain', by='model', metric=name, ax=ax)
    axes[0, 0].figure.suptitle(title)
    pictures[DOMAINS_PLOT_NAME] = axes[0, 0]
  for name, picture in pictures.items():
    plots.save(picture, os.path.join(store.directory, name))


def write_summary(
  store: run_store.RunStore,
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
) -> None:
  """Writes `summary.json` alone; see `write_report`."""
  summary_lib.write_json(
    os.path.join(store.directory, SUMMARY_NAME),
    _summarize(store, process, data),
  )


def _summarize(store, process, data):
  """The summary that `write_report` returns."""
  rounds, evaluations = store.history(), store.evaluations()
  newest = evaluations[-1]
  metric = primary_metric(evaluations)

  def over_rounds(which, one_metric):
    values = series(evaluations, one_metric).get(which)
    return values and summary_lib.over_rounds(
      *values, store.last_round, one_metric
    )

  def newest_loss(which):
    return newest[which]['loss'] if newest[which] is not None else None

  summary = {
    **store.config,
    'num_rounds': store.last_round,
    'accuracy': over_rounds('personal', split_model.ACCURACY),
    'global_accuracy': over_rounds('global', split_model.ACCURACY),
    'weighted': summary_lib.over_rounds(
      [evaluation['round'] for evaluation in evaluations],
      [
        evaluation['fairness'].get('weighted_mean')
        for evaluation in evaluations
      ],
      store.last_round,
      metric,
    ),
    'loss': newest_loss('personal'),
    'global_loss': newest_loss('global'),
    'fairness': newest['fairness'],
    'non_finite_clients': newest['non_finite_clients'],
    'num_scored_clients': len(store.per_client()),
    'seconds_per_round': statistics.median(row['seconds'] for row in rounds),
    'peak_rss_mb': max(row['rss_mb'] for row in rounds),
  }
  if metric != split_model.ACCURACY:
    summary['primary_metric'] = {
      **metric._asdict(),
      'personal': over_rounds('personal', metric),
      'global': over_rounds('global', metric),
    }
  if 'reported' in newest:
    summary['reported'] = {
      name: {
        **told,
        **{
          which: over_rounds(
            which, split_model.PrimaryMetric(name, told['higher_is_better'])
          )
          for which in ('personal', 'global')
        },
      }
      for name, told in newest['reported'].items()
    }
  if 'privacy' in summary:
    summary['privacy'] = {
      'epsilon': rounds[-1]['epsilon'],
      **summary['privacy'],
    }
  # Classes of several labels are counted together.
  classifier = process.model.classifier
  if classifier and data.num_classes and not classifier.is_multilabel:
    excluded = client_population.unscored_clients(
      process, data, store.last_round
    )
    summary['majority_accuracy'] = _majority_accuracy(data, excluded)
  if 'two_classes' in newest:
    summary['two_classes'] = newest['two_classes']
  if 'domains' in newest:
    summary['domains'] = domains_over_rounds(evaluations, store.last_round)
  return summary


def _majority_accuracy(data, excluded):
  """The mean over clients where each has its own most frequent class."""
  train, test = (
    np.delete(data.class_counts(split), list(excluded), axis=0)
    for split in ('train', 'test')
  )
  right = test[np.arange(len(test)), train.argmax(axis=1)]
  totals = test.sum(axis=1)
  return float(np.mean(right[totals > 0] / totals[totals > 0]))


def plot_curves(
  frames: Mapping[str, pd.DataFrame],
  metric: split_model.PrimaryMetric,
  **options: Any,
) -> Axes:
  """Draws a metric by round.

  Args:
    frames: Results of `curves` by name of the method, '' for a single one.
    metric: Metric to draw.
    **options: Options of `plots.curves`.
  """
  parts = []
  for name, frame in frames.items():
    for model, part in frame[frame['metric'] == metric.name].groupby(
      'model', sort=False
    ):
      label = f'{name}, {model} model' if name else f'{model} model'
      last = metric.text(part['value'].iloc[-1])
      parts.append(part.assign(curve=f'{label} ({last})'))
  ax = plots.curves(
    pd.concat(parts),
    by='curve',
    metric=metric,
    y_label=metric.label(', mean over clients'),
    **{'ax': plots.new_axes(10, 4.4), **options},
  )
  plots.legend_beside(ax)
  return ax


def primary_metric(
  evaluations: Sequence[Mapping[str, Any]],
) -> split_model.PrimaryMetric:
  """The metric that the models of a run are compared by.

  Args:
    evaluations: Evaluations from `RunStore.evaluations`, at least one.
  """
  told = evaluations[-1].get('primary_metric')
  return split_model.PrimaryMetric(**told) if told else split_model.ACCURACY


def series(
  evaluations: Sequence[Mapping[str, Any]], metric: split_model.PrimaryMetric
) -> dict:
  """`personal` and `global` by round: `{name: (rounds, values)}`.

  A model without the metric is left out, as is a global one that does not
  exist.
  """
  found = {}
  for which in ('personal', 'global'):
    scores = [evaluation[which] for evaluation in evaluations]
    if scores and scores[0] is not None and metric.name in scores[0]:
      found[which] = (
        [evaluation['round'] for evaluation in evaluations],
        [score[metric.name] for score in scores],
      )
  return found


def curves(evaluations: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """The scores by round: `round`, `model`, `metric` and `value`.

  Of models that are the same, as where nothing is personalized, there is the
  global one.
  """
  rows = [
    {'round': one['round'], 'model': model, 'metric': metric, 'value': value}
    for one in evaluations
    for model in ('personal', 'global')
    for metric, value in (one[model] or {}).items()
  ]
  frame = pd.DataFrame(rows, columns=['round', 'model', 'metric', 'value'])
  personal, shared = (
    frame[frame['model'] == model].drop(columns='model').to_numpy().tolist()
    for model in ('personal', 'global')
  )
  return frame[frame['model'] == 'global'] if personal == shared else frame


def primary_figures(summary: Mapping[str, Any]) -> Mapping[str, Any]:
  """The `primary_metric` of a summary, that of the accuracy included."""
  return summary.get('primary_metric') or {
    **split_model.ACCURACY._asdict(),
    'personal': summary['accuracy'],
    'global': summary['global_accuracy'],
  }


def recent_title(numbers: Iterable[int]) -> str:
  """The title of a column of `last_10_mean`.

  Args:
    numbers: The `num_last_10` of its rows.
  """
  numbers = set(numbers) or {10}
  fewest, most = min(numbers), max(numbers)
  if fewest == 10:
    return 'last 10\nrounds'
  number = f'{fewest}' if fewest == most else f'{fewest}–{most}'
  return f'last {number}\nevaluation{"" if most == 1 else "s"}'


def summary_frame(summaries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """The main figures of summaries of `write_report`, a row for each."""
  primary = [primary_figures(summary) for summary in summaries]
  name = split_model.PrimaryMetric(primary[0]['name'], True).title
  recent = recent_title(f['personal']['num_last_10'] for f in primary)
  recent = recent.replace('\n', ' ')
  return pd.DataFrame(
    [
      {
        'method': summary['algorithm'],
        f'personal {name}': _number(figures['personal']['last']),
        recent: _number(figures['personal']['last_10_mean']),
        f'global {name}': figures['global']
        and _number(figures['global']['last']),
        **{
          f'personal {split_model.PrimaryMetric(key, True).title}': _number(
            told['personal']['last']
          )
          for key, told in summary.get('reported', {}).items()
        },
        'std over clients': _number(summary['fairness'].get('std')),
        'worst 10%': _number(summary['fairness'].get('worst_10_percent')),
        'fraction hurt': summary['fairness'].get('fraction_hurt'),
        'personal loss': _number(summary['loss']),
        'seconds a round': summary['seconds_per_round'],
      }
      for summary, figures in zip(summaries, primary)
    ],
    # With None, which there is not, and NaN, which is a figure.
    dtype=object,
  )


def _number(value):
  """A figure that there is; JSON has none that is not finite."""
  return math.nan if value is None else value


def summary_table(summaries: Sequence[Mapping[str, Any]]) -> str:
  """A table for the screen, a row for each summary of `write_report`.

  Lines below it tell clients that are not scored, ε, the scores of two classes,
  metrics that some clients do not have, and methods that are no better than the
  most frequent class.
  """
  table = summary_lib.format_frame(summary_frame(summaries))
  return '\n'.join([table, *itertools.chain(*map(_notes, summaries))])


def _notes(summary):
  """Lines about a summary."""
  name = summary['algorithm']
  num_scored = summary['num_scored_clients']
  if num_scored < summary['num_clients']:
    yield (
      f'{name}: mean over {num_scored} of {summary["num_clients"]} clients, the'
      ' others are not scored or have no test examples.'
    )
  told = summary.get('privacy')
  if told:
    epsilon, delta = told['epsilon'], told['delta']
    yield f'{name}: ε = {epsilon:.4g} at δ = {delta:.2g} for each client.'
  two_classes = summary.get('two_classes')
  if two_classes and two_classes['personal'][scores_lib.AUC] is not None:
    figures = two_classes['personal']
    yield (
      f"{name}: over all clients' test examples the personal models have AUC "
      f'{figures[scores_lib.AUC]:.3f}, balanced accuracy '
      f'{figures["balanced_accuracy"]:.3f}, F1 {figures["f1"]:.3f}.'
    )
  for metric, told in summary.get('reported', {}).items():
    if told['num_clients'] < told['num_scored']:
      yield (
        f'{name}: {metric} is a mean over {told["num_clients"]} of '
        f'{told["num_scored"]} clients; it is not defined on the test examples '
        'of the others.'
      )
  majority = summary.get('majority_accuracy')
  if majority is not None and summary['accuracy']:
    accuracy = summary['accuracy']['last']
    if accuracy <= majority:
      yield (
        f'{name}: its accuracy of {accuracy:.3f} is no more than the '
        f"{majority:.3f} of always naming a client's most frequent class."
      )


def domain_tables(summaries: Sequence[Mapping[str, Any]]) -> str:
  """Tables by domain for the screen, one for each summary of `write_report`.

  Returns:
    The tables under their methods' names, separated by empty lines; empty for
    data without domains.
  """
  return '\n\n'.join(
    f'{summary["algorithm"]}, by domain\n'
    + domain_table(
      summary['domains'],
      recent_title([primary_figures(summary)['personal']['num_last_10']]),
    )
    for summary in summaries
    if 'domains' in summary
  )


# Of each metric, what there is besides the domains' values: name and title.
_OVERALL = {
  'min': 'min over domains',
  'mean': 'mean over domains',
  'max': 'max over domains',
  'client_mean': 'mean over clients',
}
# What tables and pictures show where there is any, best known first.
_SHOWN = {
  'accuracy': split_model.ACCURACY,
  scores_lib.AUC: split_model.PrimaryMetric('AUC', True),
}
_LAST, _LAST_10 = 'last', 'last_10_mean'


def domains_over_rounds(
  evaluations: Sequence[Mapping[str, Any]], final_round: int
) -> dict[str, Any]:
  """Sums up the scores of domains over the rounds of training.

  Args:
    evaluations: At least one of a run: `round`, and `domains` as
      `scores.summarize` gives it.
    final_round: The last round of training.

  Returns:
    As `domains` there, with the newest numbers of test examples, and in place
    of each figure a dict: `last`, its value in the newest evaluation
    that has it, and `last_10_mean`, its mean over the evaluations of the last
    10 rounds, see `summary.over_rounds`; None where no evaluation has it.
    That of the minimum is the mean of the rounds' minima.
  """
  rounds = [evaluation['round'] for evaluation in evaluations]
  domains = [evaluation['domains'] for evaluation in evaluations]

  def summed_up(values):
    if isinstance(values[-1], Mapping):
      return {
        name: summed_up([value[name] for value in values])
        for name in values[-1]
      }
    figures = summary_lib.over_rounds(rounds, values, final_round)
    return {name: figures[name] for name in (_LAST, _LAST_10)}

  return {
    **domains[-1],
    'personal': summed_up([one['personal'] for one in domains]),
    'global': None
    if domains[-1]['global'] is None
    else summed_up([one['global'] for one in domains]),
  }


def domain_rows(domains: Mapping[str, Any]) -> list[dict]:
  """Rows for a CSV file, one for each domain of `over_rounds`.

  Returns:
    Dicts of `domain`, `num_test_examples` and, of each model and metric, the
    figures `last` and `last_10_mean`.
  """
  return [
    {
      'domain': name,
      'num_test_examples': count,
      **{
        model: {
          metric: figure['by_domain'][name]
          for metric, figure in domains[model].items()
        }
        for model in ('personal', 'global')
        if domains[model] is not None
      },
    }
    for name, count in domains['num_test_examples'].items()
  ]


def domain_table(domains: Mapping[str, Any], recent: str) -> str:
  """A table for the screen, a row for each domain of `over_rounds`.

  The last rows are minimum, mean and maximum over domains and the mean over
  clients. Columns are those of accuracy and AUC; where there is neither, as for
  regression, those of all metrics.

  Args:
    recent: Title of the columns of `last_10_mean`.
  """
  headers, columns = [], []
  for metric in _known(domains) or domains['personal']:
    title = _SHOWN[metric].title if metric in _SHOWN else metric
    for model, which, header in (
      ('personal', _LAST, f'personal\n{title}'),
      ('personal', _LAST_10, recent),
      ('global', _LAST, f'global\n{title}'),
    ):
      if domains[model] is not None:
        headers.append(header)
        columns.append((domains[model][metric], which))
  return summary_lib.format_table(
    [
      [name, count, *(f['by_domain'][name][which] for f, which in columns)]
      for name, count in domains['num_test_examples'].items()
    ]
    + [
      [title, None, *(figure[name][which] for figure, which in columns)]
      for name, title in _OVERALL.items()
    ],
    ['domain', 'test\nexamples', *headers],
  )


def domain_bars(
  domains: Mapping[str, Any], primary: split_model.PrimaryMetric
) -> dict[split_model.PrimaryMetric, pd.DataFrame]:
  """The newest scores of domains that have test examples.

  Args:
    primary: The metric where there is neither accuracy nor AUC.

  Returns:
    From a metric that has any to a frame of `model`, `domain` and `value`.
    There is no personal model where it is the global one.
  """
  frames = {}
  for key in _known(domains) or [primary.name]:
    values = {
      f'{model} model': domains[model][key]['by_domain']
      for model in ('global', 'personal')
      if domains[model] is not None
    }
    if values['personal model'] == values.get('global model'):
      del values['personal model']
    frame = pd.DataFrame(
      {'model': model, 'domain': name, 'value': by_domain[name][_LAST]}
      for model, by_domain in values.items()
      for name, count in domains['num_test_examples'].items()
      if count
    ).astype({'value': float})
    if frame['value'].notna().any():
      frames[_SHOWN.get(key, primary)] = frame
  return frames


def _known(domains):
  """The metrics that are shown, of those of any data."""
  return [name for name in _SHOWN if name in domains['personal']]
