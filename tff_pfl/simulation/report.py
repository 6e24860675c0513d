"""The report of a run: a table, JSON, CSV and pictures, all from its store."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tff_pfl import datasets
from tff_pfl.simulation import domain_report, plots, run_store, value_codec
from tff_pfl.simulation import summary as summary_lib
from tff_pfl.templates import personalized_process

SUMMARY_NAME = 'summary.json'
PER_CLIENT_NAME = 'per_client.csv'
ACCURACY_PLOT_NAME = 'accuracy_by_round.png'
CLIENTS_PLOT_NAME = 'clients.png'
PER_DOMAIN_NAME = 'per_domain.csv'
DOMAINS_PLOT_NAME = 'domains.png'
PARTITION_PLOT_NAME = 'partition.png'
COMPARISON_PLOT_NAME = 'comparison.png'


def write_report(
  store: run_store.RunStore,
  process: personalized_process.PersonalizedProcess,
  data: datasets.FederatedDataset,
) -> dict:
  """Writes the report of a run into its folder.

  `summary.json`, `per_client.csv` (the newest evaluation),
  `accuracy_by_round.png`, `clients.png` (distribution over clients before and
  after personalization) and `partition.png` (clients by classes); for data with
  domains also `per_domain.csv` and `domains.png`.

  The newest round in the store must have been evaluated.

  Returns:
    The summary: the settings of the run, and `accuracy` of the personal models
    and `global_accuracy` (of the global model alone; None where there is none)
    as `last_10_mean`, `best`, `best_round`, `last`, each a mean over clients;
    `loss` and `global_loss` of the newest evaluation; `fairness` of the newest
    evaluation; `non_finite_clients` in it (personal models that diverged);
    `seconds_per_round` (median, without evaluation) and `peak_rss_mb` (of this
    process and its workers, after any round). What needs an accuracy is None
    for regression. For data with domains also `domains`, see
    `domain_report.over_rounds`.
  """
  evaluations = store.evaluations()
  per_client = store.per_client()
  summary = _summarize(store, evaluations)
  title = f'{process.name} on {data.name}, {summary["num_clients"]} clients'

  def path(name):
    return os.path.join(store.directory, name)

  if 'domains' in summary:
    summary_lib.write_csv(
      path(PER_DOMAIN_NAME), domain_report.rows(summary['domains'])
    )
    panels = domain_report.bars(summary['domains'])
    # None for regression.
    if panels:
      plots.plot_domains(path(DOMAINS_PLOT_NAME), panels, title=title)
  summary_lib.write_csv(
    path(PER_CLIENT_NAME), [value_codec.flatten(row) for row in per_client]
  )
  curves = _curves(evaluations)
  if curves:
    plots.plot_accuracy_by_round(path(ACCURACY_PLOT_NAME), curves, title=title)
    plots.plot_client_distribution(
      path(CLIENTS_PLOT_NAME),
      [row['before']['accuracy'] for row in per_client],
      [row['after']['accuracy'] for row in per_client],
      (
        'global model'
        if process.has_global_model
        else 'global weights, untrained local ones',
        'personal model',
      ),
      title=title,
    )
  datasets.plot_partition(data, path(PARTITION_PLOT_NAME))
  # Last, so that a summary means that the report is complete.
  summary_lib.write_json(path(SUMMARY_NAME), summary)
  return summary


def _summarize(store, evaluations):
  """The summary that `write_report` returns."""
  rounds = store.history()
  series = accuracy_series(evaluations)
  newest = evaluations[-1]

  def accuracy_of(which):
    if which not in series:
      return None
    return summary_lib.accuracy_summary(*series[which], store.last_round)

  def newest_loss(which):
    return newest[which]['loss'] if newest[which] is not None else None

  summary = {
    **store.config,
    'num_rounds': store.last_round,
    'accuracy': accuracy_of('personal'),
    'global_accuracy': accuracy_of('global'),
    'loss': newest_loss('personal'),
    'global_loss': newest_loss('global'),
    'fairness': newest['fairness'],
    'non_finite_clients': newest['non_finite_clients'],
    'seconds_per_round': statistics.median(row['seconds'] for row in rounds),
    'peak_rss_mb': max(row['rss_mb'] for row in rounds),
  }
  if 'domains' in newest:
    summary['domains'] = domain_report.over_rounds(
      evaluations, store.last_round
    )
  return summary


def plot_comparison(path: str, directories: Mapping[str, str]) -> None:
  """Draws the accuracies of several runs into one picture.

  Args:
    directories: Name of each method to the folder of its run.
  """
  series = {}
  for name, directory in directories.items():
    with run_store.RunStore.open_for_reading(directory) as store:
      for label, values in _curves(store.evaluations()).items():
        series[f'{name}, {label}'] = values
  if series:
    plots.plot_accuracy_by_round(path, series)


def accuracy_series(evaluations: Sequence[Mapping[str, Any]]) -> dict:
  """`personal` and `global` accuracy by round: `{name: (rounds, values)}`.

  Left out where there is no accuracy or no global model.
  """
  series = {}
  for which in ('personal', 'global'):
    scores = [evaluation[which] for evaluation in evaluations]
    if scores and scores[0] is not None and 'accuracy' in scores[0]:
      series[which] = (
        [evaluation['round'] for evaluation in evaluations],
        [score['accuracy'] for score in scores],
      )
  return series


def _curves(evaluations):
  """`accuracy_series` with labels; one curve where the two are the same."""
  series = accuracy_series(evaluations)
  if 'global' in series and series['global'] == series['personal']:
    del series['personal']
  return {f'{which} model': values for which, values in series.items()}


def summary_table(summaries: Sequence[Mapping[str, Any]]) -> str:
  """A table for the screen, a row for each summary of `write_report`."""

  def row(summary):
    personal = summary['accuracy'] or {}
    shared = summary['global_accuracy'] or {}
    fairness = summary['fairness'] or {}
    return [
      summary['algorithm'],
      personal.get('last'),
      personal.get('last_10_mean'),
      shared.get('last'),
      fairness.get('std'),
      fairness.get('worst_10_percent'),
      fairness.get('fraction_hurt'),
      summary['loss'],
      summary['seconds_per_round'],
    ]

  return summary_lib.format_table(
    [row(summary) for summary in summaries],
    [
      'method',
      'personal\naccuracy',
      'last 10\nrounds',
      'global\naccuracy',
      'std over\nclients',
      'worst\n10%',
      'fraction\nhurt',
      'personal\nloss',
      'seconds\na round',
    ],
  )


def domain_tables(summaries: Sequence[Mapping[str, Any]]) -> str:
  """Tables by domain for the screen, one for each summary of `write_report`.

  Returns:
    The tables under their methods' names, separated by empty lines; empty for
    data without domains.
  """
  return '\n\n'.join(
    f'{summary["algorithm"]}, by domain\n'
    + domain_report.table(summary['domains'])
    for summary in summaries
    if 'domains' in summary
  )
