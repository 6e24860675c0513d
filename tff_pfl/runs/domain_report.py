"""A run's report by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tff_pfl.models import split_model
from tff_pfl.runs import summary as summary_lib
from tff_pfl.runs import two_class_scores

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
  two_class_scores.AUC: split_model.PrimaryMetric('AUC', True),
}
_LAST, _LAST_10 = 'last', 'last_10_mean'


def over_rounds(
  evaluations: Sequence[Mapping[str, Any]], final_round: int
) -> dict[str, Any]:
  """Sums up the scores of domains over the rounds of training.

  Args:
    evaluations: At least one of a run: `round`, and `domains` as
      `domain_scores.summarize` gives it.
    final_round: The last round of training.

  Returns:
    As `domain_scores.summarize`, with the newest numbers of test examples, and
    in place of each figure a dict: `last`, its value in the newest evaluation
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


def rows(domains: Mapping[str, Any]) -> list[dict]:
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


def table(domains: Mapping[str, Any], recent: str) -> str:
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


def bars(
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
