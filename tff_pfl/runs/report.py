"""The report of a run, made from its store.

    summarize                     the dict of `summary.json`
    summary_frame, domain_frame   data frames of such dicts
    tables                        these frames as text for the screen

`write_report` writes them, and pictures, to the run's folder.
"""

from __future__ import annotations

import itertools
import operator
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
from tff_pfl.runs import run_store
from tff_pfl.runs import scores as scores_lib
from tff_pfl.runs import summary as summary_lib

SUMMARY_NAME = 'summary.json'
HISTORY_NAME = 'metrics.csv'
PER_CLIENT_NAME = 'per_client.csv'
# Follows the name of the primary metric.
BY_ROUND_PLOT_SUFFIX = '_by_round.png'
CLIENTS_PLOT_NAME = 'clients.png'
PER_DOMAIN_NAME = 'per_domain.csv'
DOMAINS_PLOT_NAME = 'domains.png'
PARTITION_PLOT_NAME = 'partition.png'
COMPARISON_PLOT_NAME = 'comparison.png'

_MODELS = ('personal', 'global')
# Maximum line length of a table's headings.
_HEADING_WIDTH = 8
# A metric's figures in addition to the domains' values: name and title.
_OVERALL = {
  'min': 'min over domains',
  'mean': 'mean over domains',
  'max': 'max over domains',
  'client_mean': 'mean over clients',
}
# The metrics to show for domains, if they have any of them, best known first.
_SHOWN = {
  'accuracy': split_model.ACCURACY,
  scores_lib.AUC: split_model.PrimaryMetric('AUC', True),
}


def write_report(
  store: run_store.RunStore,
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
  *,
  pictures: bool = True,
) -> dict:
  """Writes the report of a run, whose newest round must be evaluated.

  The files are `summary.json`, `per_client.csv` (the newest evaluation),
  `metrics.csv` (a row for each round), `accuracy_by_round.png` (or another
  primary metric), `clients.png` (distribution over clients before and after
  personalization) and `partition.png` (clients by classes). Data with domains
  add `per_domain.csv` and `domains.png`. The `.png` files need `pictures`.

  Returns:
    The summary, see `summarize`.
  """
  scores = summary_lib.frame(store.per_client())
  summary = summarize(store, process, data)
  csv_files = {
    PER_CLIENT_NAME: scores,
    HISTORY_NAME: summary_lib.frame(store.history()),
  }
  if 'domains' in summary:
    # Drops the rows over all domains.
    by_domain = domain_frame(summary['domains']).iloc[: -len(_OVERALL)]
    csv_files[PER_DOMAIN_NAME] = by_domain
  for name, table in csv_files.items():
    summary_lib.write_csv(os.path.join(store.directory, name), table)
  if pictures:
    _write_pictures(store, process, data, summary, scores)
  # Last, so that a summary implies a complete report.
  summary_lib.write_json(os.path.join(store.directory, SUMMARY_NAME), summary)
  return summary


def _write_pictures(store, process, data, summary, scores):
  evaluations, title = store.evaluations(), run_title(summary)
  metric = primary_metric(evaluations)
  left, right = plots.new_axes(11, 4.6, 1, 2)
  before = 'global weights, untrained local ones'
  if process.has_global_model:
    before = 'global model'
  labels = (before, 'personal model')
  plots.clients(scores, metric, labels=labels, title=title, ax=left)
  plots.changes(scores, metric, ax=right)
  by_round = {summary['algorithm']: curves(evaluations)}
  pictures = {
    metric.name + BY_ROUND_PLOT_SUFFIX: plot_curves(
      by_round, metric, title=title
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


def run_title(settings: Mapping[str, Any]) -> str:
  """A run's title from its settings: 'fed_rep on digits, 30 clients'."""
  return '{algorithm} on {dataset}, {num_clients} clients'.format_map(settings)


def summarize(
  store: run_store.RunStore,
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
) -> dict[str, Any]:
  """The content of `summary.json`.

  Returns:
    The settings of the run and

    * `accuracy` of the personal and `global_accuracy` of the global models:
      means over clients with test examples, as `summary.over_rounds` returns
      them (None if undefined).
    * `weighted`: the same for the personal models' primary metric, as a mean
      over all test examples.
    * `loss`, `global_loss`, `fairness`, `non_finite_clients` (personal models
      that diverged) and `num_scored_clients` of the newest evaluation.
    * `seconds_per_round`: the median, without evaluation.
    * `peak_rss_mb`: the most memory of this process after any round, without
      TFF's worker and Ray's actors.

    Some runs also have

    * `primary_metric`, unless it is the accuracy: `name`, `higher_is_better`,
      and `personal` and `global`, in the form of `accuracy`.
    * `reported`: the same by name of further metrics, as means over the clients
      that have them (`num_clients` of `num_scored` in the newest evaluation).
    * `majority_accuracy`, for classes of one label: the accuracy of always
      predicting a client's most frequent training class, mean over clients.
    * `two_classes` of the newest evaluation, see `scores.summarize`.
    * `domains`, see `domains_over_rounds`.
    * `privacy`, for runs with noise: `epsilon` after the last round, `delta`,
      `noise_multiplier` and the protected `unit`, see `privacy`.
  """
  rounds = store.history()
  evaluations = counted(store.evaluations(), store.config['rounds'])
  newest = evaluations[-1]
  last_round, primary = store.last_round, primary_metric(evaluations)

  def over_rounds(metric):
    by_model = series(evaluations, metric)
    return {
      model: summary_lib.over_rounds(*by_model[model], last_round, metric)
      if model in by_model
      else None
      for model in _MODELS
    }

  accuracy = over_rounds(split_model.ACCURACY)
  summary = {
    **store.config,
    'num_rounds': last_round,
    'accuracy': accuracy['personal'],
    'global_accuracy': accuracy['global'],
    'weighted': summary_lib.over_rounds(
      [one['round'] for one in evaluations],
      [one['fairness'].get('weighted_mean') for one in evaluations],
      last_round,
      primary,
    ),
    'loss': newest['personal']['loss'],
    'global_loss': newest['global'] and newest['global']['loss'],
    'fairness': newest['fairness'],
    'non_finite_clients': newest['non_finite_clients'],
    'num_scored_clients': len(store.per_client()),
    'seconds_per_round': statistics.median(row['seconds'] for row in rounds),
    'peak_rss_mb': max(row['rss_mb'] for row in rounds),
  }
  if primary != split_model.ACCURACY:
    summary['primary_metric'] = {**primary._asdict(), **over_rounds(primary)}
  if 'reported' in newest:
    summary['reported'] = {
      name: {
        **figures,
        **over_rounds(
          split_model.PrimaryMetric(name, figures['higher_is_better'])
        ),
      }
      for name, figures in newest['reported'].items()
    }
  if 'privacy' in summary:
    epsilon = {'epsilon': rounds[-1]['epsilon']}
    summary['privacy'] = {**epsilon, **summary['privacy']}
  # Classes of several labels are counted together.
  classifier = process.model.classifier
  if classifier and data.num_classes and not classifier.is_multilabel:
    scored = [row['client'] for row in store.per_client()]
    summary['majority_accuracy'] = _majority_accuracy(
      data if len(scored) == data.num_clients else data.subset(scored)
    )
  if 'two_classes' in newest:
    summary['two_classes'] = newest['two_classes']
  if 'domains' in newest:
    summary['domains'] = domains_over_rounds(evaluations, last_round)
  return summary


def _majority_accuracy(data):
  """The mean accuracy of predicting each client's most frequent class."""
  train, test = map(data.class_counts, ('train', 'test'))
  right = test[np.arange(len(test)), train.argmax(axis=1)]
  return float(np.mean(right / test.sum(axis=1)))


def counted(
  evaluations: list[dict[str, Any]], rounds: Mapping[str, Any]
) -> list[dict[str, Any]]:
  """The evaluations that count in figures over rounds.

  The first round is left out if it was evaluated only for the curve.

  Args:
    rounds: The stored `RunOptions` of the run.
  """
  is_regular = (
    rounds['rounds_per_evaluation'] == 1
    or rounds['num_rounds'] <= rounds['num_final_evaluations']
  )
  return evaluations if is_regular else evaluations[1:] or evaluations


def primary_metric(
  evaluations: Sequence[Mapping[str, Any]],
) -> split_model.PrimaryMetric:
  """The metric that compares models, from at least one stored evaluation."""
  metric = evaluations[-1].get('primary_metric')
  return split_model.PrimaryMetric(**metric) if metric else split_model.ACCURACY


def series(
  evaluations: Sequence[Mapping[str, Any]], metric: split_model.PrimaryMetric
) -> dict[str, tuple[list[int], list[float]]]:
  """A metric by round for `personal` and `global`: `{name: (rounds, values)}`.

  A model that does not exist, or lacks the metric, is left out.
  """
  return {
    model: (
      [evaluation['round'] for evaluation in evaluations],
      [evaluation[model][metric.name] for evaluation in evaluations],
    )
    for model in _MODELS
    if evaluations and metric.name in (evaluations[0][model] or ())
  }


def curves(evaluations: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """The scores by round: `round`, `model`, `metric` and `value`.

  If both models are always the same, as without personalization, only the
  global model is included.
  """
  is_same = all(one['personal'] == one['global'] for one in evaluations)
  return pd.DataFrame(
    [
      {'round': one['round'], 'model': model, 'metric': metric, 'value': value}
      for one in evaluations
      for model in _MODELS[is_same:]
      for metric, value in (one[model] or {}).items()
    ],
    columns=['round', 'model', 'metric', 'value'],
  )


def plot_curves(
  frames: Mapping[str, pd.DataFrame],
  metric: split_model.PrimaryMetric,
  **options: Any,
) -> Axes:
  """Draws a metric by round.

  Args:
    frames: Results of `curves` by name of the method.
    metric: Metric to draw.
    **options: Options of `plots.curves`.
  """
  parts = []
  for name, frame in frames.items():
    for model, part in frame[frame['metric'] == metric.name].groupby(
      'model', sort=False
    ):
      last = metric.text(part['value'].iloc[-1])
      parts.append(part.assign(curve=f'{name}, {model} model ({last})'))
  ax = plots.curves(
    pd.concat(parts),
    by='curve',
    metric=metric,
    y_label=metric.label(', mean over clients'),
    **{'ax': plots.new_axes(10, 4.4), **options},
  )
  plots.legend_beside(ax)
  return ax


def primary_figures(summary: Mapping[str, Any]) -> Mapping[str, Any]:
  """The `primary_metric` of a summary, even if it is the accuracy."""
  return summary.get('primary_metric') or {
    **split_model.ACCURACY._asdict(),
    'personal': summary['accuracy'],
    'global': summary['global_accuracy'],
  }


def recent_title(numbers: Iterable[int]) -> str:
  """The title of a `last_10_mean` column, from its rows' `num_last_10`."""
  numbers = set(numbers) or {10}
  fewest, most = min(numbers), max(numbers)
  if fewest == 10:
    return 'last 10 rounds'
  number = f'{fewest}' if fewest == most else f'{fewest}–{most}'
  return f'last {number} evaluation{"" if most == 1 else "s"}'


def summary_frame(summaries: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
  """The main figures of summaries, a row for each.

  NaN marks figures that a method lacks or that are not finite. Columns of the
  primary metric have its name, or 'score' if the summaries' metrics differ.
  """
  primary = [primary_figures(summary) for summary in summaries]
  names = {
    split_model.PrimaryMetric(one['name'], True).title for one in primary
  }
  name = names.pop() if len(names) == 1 else 'score'
  recent = recent_title(one['personal']['num_last_10'] for one in primary)
  columns = {
    'primary/personal/last': f'personal {name}',
    'primary/personal/last_10_mean': recent,
    'primary/global/last': f'global {name}',
    **{
      f'reported/{metric}/personal/last': f'personal {metric.replace("_", " ")}'
      for summary in summaries
      for metric in summary.get('reported', ())
    },
    'fairness/std': 'std over clients',
    'fairness/worst_10_percent': 'worst 10%',
    'fairness/fraction_hurt': 'fraction hurt',
    # The loss may be the primary metric.
    **({} if name == 'loss' else {'loss': 'personal loss'}),
    'seconds_per_round': 'seconds a round',
  }
  table = pd.json_normalize(
    [{**one, 'primary': own} for one, own in zip(summaries, primary)], sep='/'
  )
  figures = table.reindex(columns=list(columns)).astype(float)
  figures.insert(0, 'method', table['algorithm'])
  return figures.rename(columns=columns)


def tables(summaries: Sequence[Mapping[str, Any]]) -> str:
  """The frames of summaries as tables for the screen.

  The last table is the `summary_frame`. Lines below it report clients that are
  not scored or have diverged, ε, the scores of two classes, metrics that some
  clients lack, and methods that are no better than the most frequent class. For
  data with domains, a table for each method comes first. It has columns for
  accuracy and AUC, or for all metrics if there is neither, as in regression.
  """
  texts = [_domain_table(one) for one in summaries if 'domains' in one]
  frame = summary_frame(summaries)
  table = summary_lib.format_table(frame, width=_HEADING_WIDTH)
  notes = itertools.chain.from_iterable(map(_notes, summaries))
  return '\n\n'.join([*texts, '\n'.join([table, *notes])])


def _notes(summary):
  """Yields notes on a summary."""
  name, num_clients = summary['algorithm'], summary['num_clients']
  num_scored = summary['num_scored_clients']
  if num_scored < num_clients:
    yield (
      f'{name}: mean over {num_scored:,} of {num_clients:,} clients. The '
      'others are not scored or have no test examples.'
    )
  num_diverged = summary['non_finite_clients']
  if num_diverged:
    yield (
      f'{name}: the personal models of {num_diverged:,} of {num_scored:,} '
      'scored clients have diverged. Means over them are not finite and are '
      'shown as –.'
    )
  if 'privacy' in summary:
    epsilon, delta = (summary['privacy'][key] for key in ('epsilon', 'delta'))
    yield f'{name}: ε = {epsilon:.4g} at δ = {delta:.2g} for each client.'
  figures = (summary.get('two_classes') or {}).get('personal', {})
  if figures.get(scores_lib.AUC) is not None:
    yield (
      f"{name}: over all clients' test examples the personal models have AUC "
      f'{figures[scores_lib.AUC]:.3f}, balanced accuracy '
      f'{figures["balanced_accuracy"]:.3f}, F1 {figures["f1"]:.3f}.'
    )
  for metric, figures in summary.get('reported', {}).items():
    if figures['num_clients'] < figures['num_scored']:
      yield (
        f'{name}: {metric} is a mean over {figures["num_clients"]} of '
        f'{figures["num_scored"]} clients. It is not defined on the test '
        'examples of the others.'
      )
  majority = summary.get('majority_accuracy')
  accuracy = (summary['accuracy'] or {}).get('last')
  if None not in (majority, accuracy) and accuracy <= majority:
    yield (
      f'{name}: its accuracy of {accuracy:.3f} is no more than the '
      f"{majority:.3f} of always predicting a client's most frequent class."
    )


def domains_over_rounds(
  evaluations: Sequence[Mapping[str, Any]], final_round: int
) -> dict[str, Any]:
  """Summarizes the scores of domains over the rounds of training.

  Args:
    evaluations: At least one evaluation of a run, with `round` and the
      `domains` of `scores.summarize`.
    final_round: The last round of training.

  Returns:
    The newest `domains`, with each figure replaced by a dict: `last`, its value
    in the newest evaluation that has it, and `last_10_mean`, its mean over the
    evaluations of the last 10 rounds, see `summary.over_rounds`. Both are None
    if no evaluation has the figure. The mean of a minimum is the mean of the
    rounds' minima.
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
    return {name: figures[name] for name in ('last', 'last_10_mean')}

  return {
    **domains[-1],
    **{
      model: domains[-1][model] and summed_up([one[model] for one in domains])
      for model in _MODELS
    },
  }


def domain_frame(domains: Mapping[str, Any]) -> pd.DataFrame:
  """The figures of `domains_over_rounds`, a row for each domain.

  Returns:
    Columns `domain`, `num_test_examples` and, for each model and metric, two
    columns such as `personal/accuracy/last` and
    `personal/accuracy/last_10_mean`. The last rows are minimum, mean and
    maximum over domains and the mean over clients.
  """

  def row(title, count, figure_of):
    return {
      'domain': title,
      'num_test_examples': count,
      **{
        model: {name: figure_of(one) for name, one in domains[model].items()}
        for model in _MODELS
        if domains[model] is not None
      },
    }

  rows = [
    row(name, count, lambda figure, name=name: figure['by_domain'][name])
    for name, count in domains['num_test_examples'].items()
  ]
  for name, title in _OVERALL.items():
    rows.append(row(title, None, operator.itemgetter(name)))
  return summary_lib.frame(rows)


def _domain_table(summary):
  """The `domain_frame` of a summary for the screen, below the method's name."""
  domains = summary['domains']
  recent = recent_title([primary_figures(summary)['personal']['num_last_10']])
  columns = {'domain': 'domain', 'num_test_examples': 'test examples'}
  for metric in _shown(domains) or domains['personal']:
    title = _SHOWN[metric].title if metric in _SHOWN else metric
    columns[f'personal/{metric}/last'] = f'personal {title}'
    columns[f'personal/{metric}/last_10_mean'] = recent
    if domains['global'] is not None:
      columns[f'global/{metric}/last'] = f'global {title}'
  frame = domain_frame(domains).reindex(columns=list(columns))
  table = summary_lib.format_table(
    frame.rename(columns=columns), width=_HEADING_WIDTH
  )
  return f'{summary["algorithm"]}, by domain\n{table}'


def domain_bars(
  domains: Mapping[str, Any], primary: split_model.PrimaryMetric
) -> dict[split_model.PrimaryMetric, pd.DataFrame]:
  """The newest scores of domains that have test examples.

  Args:
    primary: The metric to use if there is neither accuracy nor AUC.

  Returns:
    From each metric with scores to a frame of `model`, `domain` and `value`. If
    both models have the same scores, only the global model is included.
  """
  table = domain_frame(domains).set_index('domain')
  table = table[table['num_test_examples'].fillna(0) > 0]
  frames = {}
  for key in _shown(domains) or [primary.name]:
    columns = {f'{m}/{key}/last': f'{m} model' for m in reversed(_MODELS)}
    values = table.rename(columns=columns).filter(columns.values(), axis=1)
    # Keeps the first of columns that are the same.
    values = values.dropna(axis=1, how='all').T.drop_duplicates().T
    if not values.empty:
      values = values.melt(var_name='model', ignore_index=False)
      frames[_SHOWN.get(key, primary)] = values.reset_index()
  return frames


def _shown(domains):
  """The metrics of `_SHOWN` that the domains have."""
  return [name for name in _SHOWN if name in domains['personal']]
