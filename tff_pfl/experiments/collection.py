"""Gathers what the trials of a comparison found, from their folders."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from tff_pfl.algorithms import registry
from tff_pfl.evaluation import two_class_scores
from tff_pfl.experiments import (
  execution,
  plan,
  results,
  trial,
)
from tff_pfl.experiments import metrics as metrics_lib
from tff_pfl.models import split_model
from tff_pfl.simulation import report

# Settings of a run that differ between the runs of a comparison, or tell of
# this machine alone.
_OWN_SETTINGS = ('algorithm', 'hparams', 'seed', 'data_dir')
# Of a domain.
_DOMAIN_SCORES = ('accuracy', two_class_scores.AUC)


def collect(
  comparison: plan.Comparison, directory: str, trials: Sequence[trial.Trial]
) -> tuple[results.MethodResult, ...]:
  """Sums up what trials found: a row for each method and variant.

  Args:
    trials: The comparison's; those that are not finished are left out.

  Raises:
    RunError: If a trial's files cannot be read.
  """
  methods = []
  for algorithm in comparison.algorithms:
    read = [
      _Trial(directory, t)
      for t in trials
      if t.config.algorithm == algorithm
      and execution.is_finished(directory, t.name)
    ]
    if read:
      methods += [
        _method(comparison, read, variant)
        for variant in read[0].scores['variants']
      ]
  return tuple(methods)


class _Trial(trial.FinishedTrial):
  """What a finished trial says of a method."""

  def __init__(self, directory, finished):
    super().__init__(execution.trial_folder(directory, finished.name))
    self.config = finished.config

  def metrics(self, variant):
    """The figures of one row, by the names of `metrics.METRICS`."""
    scores = self.variant(variant)
    evaluation = scores['evaluation']
    fairness = evaluation['fairness'] or {}
    of_last_10 = self.summary['accuracy'] or {}
    global_of_last_10 = self.summary['global_accuracy'] or {}
    shared = evaluation['global'] or {}
    sizes = self.scores['bytes_per_round']
    cohort_size = self.config.cohort_size
    return {
      'personal_accuracy_last_10': of_last_10.get('last_10_mean')
      if variant == trial.OWN_VARIANT
      else None,
      'personal_accuracy': evaluation['personal'].get('accuracy'),
      'global_accuracy_last_10': global_of_last_10.get('last_10_mean'),
      'global_accuracy': shared.get('accuracy'),
      'worst_10_percent': fairness.get('worst_10_percent'),
      'fraction_hurt': fairness.get('fraction_hurt'),
      'fraction_diverged': evaluation['non_finite_clients']
      / len(scores['clients']),
      'new_client_accuracy': _mean_accuracy(scores['new_clients']),
      'new_client_ensemble_accuracy': _mean_accuracy(
        scores.get('new_clients_by_ensemble', [])
      ),
      'personal_loss': evaluation['personal']['loss'],
      'bytes_down_per_client': sizes['down'],
      'bytes_up_per_client': sizes['up'],
      'bytes_down_per_round': sizes['down'] * cohort_size,
      'bytes_up_per_round': sizes['up'] * cohort_size,
      'seconds_per_round': self.summary['seconds_per_round'],
      **self._domain_metrics(variant),
    }

  def _domain_metrics(self, variant):
    """Those of `metrics.DOMAIN_METRICS`; none for data without domains."""
    domains = self._domains(variant)
    if domains is None:
      return {}
    metrics = dict.fromkeys(
      metric.name for metric in metrics_lib.DOMAIN_METRICS
    )
    metrics.update(_over_domains(domains['personal']))
    if variant == trial.OWN_VARIANT:
      of_rounds = self.summary['domains']['personal']
      mean = operator.itemgetter('last_10_mean')
      metrics.update(_over_domains(of_rounds, mean, '_last_10'))
    return metrics

  def _domains(self, variant):
    """The last round's summary by domain; None for data without domains."""
    return self.variant(variant)['evaluation'].get('domains')

  def domains(self, variant):
    """Scores by domain; none for data without domains."""
    domains = self._domains(variant)
    if domains is None:
      return []
    personal = domains['personal']
    return [
      results.DomainScore(
        seed=self.config.seed,
        domain=name,
        num_test_examples=count,
        **{
          score: personal[score]['by_domain'][name]
          if score in personal
          else None
          for score in ('loss', *_DOMAIN_SCORES)
        },
      )
      for name, count in domains['num_test_examples'].items()
    ]

  def curve(self):
    """The accuracies by round; None for regression."""
    series = report.series(self.evaluations, split_model.ACCURACY)
    if 'personal' not in series:
      return None
    rounds, personal = series['personal']
    return results.AccuracyCurve(
      seed=self.config.seed,
      rounds=tuple(rounds),
      personal=tuple(personal),
      global_model=tuple(series['global'][1]) if 'global' in series else None,
    )

  def clients(self, variant, which):
    """Scores of `which`: 'clients' or 'new_clients'."""
    return [
      results.ClientScore(
        seed=self.config.seed,
        client=row['client'],
        num_train_examples=row['num_train_examples'],
        num_test_examples=row['num_test_examples'],
        num_rounds=row['num_rounds'],
        accuracy_before=row['before'].get('accuracy'),
        accuracy_after=row['after'].get('accuracy'),
        loss_before=row['before']['loss'],
        loss_after=row['after']['loss'],
      )
      for row in self.variant(variant)[which]
    ]


def _method(comparison, read, variant):
  """The row of a method and variant, over the seeds."""
  algorithm, first = read[0].config.algorithm, read[0]
  rows = [one.metrics(variant) for one in read]
  curves = [one.curve() for one in read] if variant == trial.OWN_VARIANT else []

  def clients(which):
    return tuple(row for one in read for row in one.clients(variant, which))

  label = _label(algorithm, variant, comparison.base, first.scores)
  if len(read) < len(comparison.seeds):
    label += f' ({len(read)} of {len(comparison.seeds)} seeds)'
  if not any(row['fraction_diverged'] for row in rows):
    # Without a divergence to tell of, the column would say nothing.
    rows = [{**row, 'fraction_diverged': None} for row in rows]
  return results.MethodResult(
    algorithm=algorithm,
    variant=variant,
    label=label,
    summary=registry.get_algorithm(algorithm).summary,
    has_global_model=first.scores['has_global_model'],
    hparams=first.config.settings()['hparams'],
    metrics={
      metric.name: results.spread([row[metric.name] for row in rows])
      for metric in metrics_lib.METRICS_BY_NAME.values()
      if metric.name in rows[0]
    },
    curves=tuple(curve for curve in curves if curve is not None),
    clients=clients('clients'),
    new_clients=clients('new_clients'),
    domains=tuple(score for one in read for score in one.domains(variant)),
  )


def _label(algorithm, variant, base, scores):
  """What a row is called; fine-tuning that the method itself does is not."""
  asked = variant
  if variant == trial.OWN_VARIANT:
    asked = base.personalization.fine_tune
  if asked == 'method' or asked == scores['adaptation'] == 'none':
    return algorithm
  if asked == 'none':
    return f'{algorithm} without FT'
  return f'{algorithm} + FT ({asked})'


def settings(comparison: plan.Comparison) -> list[results.Setting]:
  """The settings that all runs share, then those of the comparison."""
  base = comparison.base.settings()
  shared = {
    **{name: base[name] for name in base if name not in _OWN_SETTINGS},
    'seeds': list(comparison.seeds),
    'num_new_clients': comparison.num_new_clients,
    'fine_tune_variants': list(comparison.fine_tune_variants),
  }
  # Its options say nothing where nothing is fine-tuned.
  fine_tuned = {base['personalization']['fine_tune']}
  if not (fine_tuned | set(comparison.fine_tune_variants)) & {'head', 'all'}:
    shared['personalization'] = {
      'fine_tune': base['personalization']['fine_tune']
    }
  if comparison.tuning_trials():
    shared['validation_fraction'] = comparison.validation_fraction
    shared['tuning_rounds'] = (
      comparison.tuning_rounds or comparison.base.num_rounds
    )
  return [results.Setting(name, value) for name, value in shared.items()]


def _over_domains(scores, value=lambda figure: figure, suffix=''):
  """What scores come to over domains and clients, by names of metrics.

  Args:
    scores: From metric to its figures.
    value: From a figure to its value.
    suffix: What the names end with.
  """
  found = {
    f'domain_{score}_{name}{suffix}': value(scores[score][name])
    for score in _DOMAIN_SCORES
    if score in scores
    for name in ('min', 'mean', 'max')
  }
  # That of the accuracy is `personal_accuracy`.
  if two_class_scores.AUC in scores:
    figure = scores[two_class_scores.AUC]['client_mean']
    found[f'client_auc{suffix}'] = value(figure)
  return found


def _mean_accuracy(rows):
  known = [
    row['after']['accuracy']
    for row in rows
    if row['after'].get('accuracy') is not None
  ]
  return sum(known) / len(known) if known else None
