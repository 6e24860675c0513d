"""Gathers the results of a comparison's trials from their folders."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from typing import Any

from tff_pfl.comparisons import execution, plan, results, trial
from tff_pfl.comparisons import metrics as metrics_lib
from tff_pfl.methods import registry
from tff_pfl.models import split_model
from tff_pfl.runs import report, two_class_scores

# Settings of a run that differ between the runs of a comparison, or tell of
# this machine alone.
_OWN_SETTINGS = ('algorithm', 'hparams', 'seed', 'data_dir')


def collect(
  comparison: plan.Comparison, directory: str, trials: Sequence[trial.Trial]
) -> tuple[
  list[results.Method],
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
    sampler = self.config.sampler()
    cohort_size = statistics.mean(
      len(sampler.sample(round_number))
      for round_number in range(1, self.config.num_rounds + 1)
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
          for score in ('loss', name, two_class_scores.AUC)
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
    'hparams': first.config.settings()['hparams'],
    'metrics': {
      name: results.mean_std([row.get(name) for row in rows])
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
    asked = base.personalization.fine_tune
  if asked == 'method' or asked == scores['adaptation'] == 'none':
    return algorithm
  if asked == 'none':
    return f'{algorithm} without FT'
  if asked == 'trained':
    return f'{algorithm}, trained'
  return f'{algorithm} + FT ({asked})'


def settings(comparison: plan.Comparison) -> dict[str, Any]:
  """The settings that all runs share, then those of the comparison."""
  base = comparison.base.settings()
  shared = {
    **{name: base[name] for name in base if name not in _OWN_SETTINGS},
    'seeds': list(comparison.seeds),
    'num_new_clients': comparison.num_new_clients,
    'fine_tune_variants': list(comparison.fine_tune_variants),
  }
  if comparison.num_folds is not None:
    shared['num_folds'] = comparison.num_folds
  # Its options say nothing where nothing is fine-tuned.
  fine_tuned = {base['personalization']['fine_tune']}
  if not (fine_tuned | set(comparison.fine_tune_variants)) & {'head', 'all'}:
    shared['personalization'] = {
      'fine_tune': base['personalization']['fine_tune']
    }
  if comparison.num_search_trials is not None:
    shared['num_search_trials'] = comparison.num_search_trials
  if any(map(comparison.is_tuned, comparison.algorithms)):
    shared['validation_fraction'] = comparison.validation_fraction
    shared['tuning_rounds'] = (
      comparison.tuning_rounds or comparison.base.num_rounds
    )
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
    for score in (primary_name, two_class_scores.AUC)
    if score in scores
    for name in ('min', 'mean', 'max')
  }
  # That of the primary metric is that of any data.
  if two_class_scores.AUC in scores:
    figure = scores[two_class_scores.AUC]['client_mean']
    found[f'client_auc{suffix}'] = value(figure)
  return found


def _mean(rows, name):
  values = [row['after'].get(name) for row in rows]
  # That of a client whose model diverged is not known, nor is the mean then.
  return None if not values or None in values else sum(values) / len(values)
