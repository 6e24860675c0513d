import dataclasses
import os

import pytest

from tests.experiments import made_up_trials
from tff_pfl.experiments import (
  collection,
  execution,
  plan,
  results,
  trial,
)
from tff_pfl.models import split_model
from tff_pfl.simulation import report, run_config, summary

_NAMES = ('sea', 'hills', 'moon')
_CONFIG = run_config.RunConfig(
  algorithm='fed_avg',
  dataset='synthetic',
  num_clients=2,
  cohort_size=2,
  model='linear',
)


def _domains(sea, hills):
  """As an evaluation has them, the AUC half of the accuracy."""

  def figure(a, b):
    return {
      'by_domain': {'sea': a, 'hills': b, 'moon': None},
      'min': min(a, b),
      'mean': (a + b) / 2,
      'max': max(a, b),
      'client_mean': a,
    }

  return {
    'num_test_examples': {'sea': 4, 'hills': 2, 'moon': 0},
    'without_test_examples': ['moon'],
    'personal': {
      'loss': figure(1.0, 2.0),
      'accuracy': figure(sea, hills),
      'auc': figure(sea / 2, hills / 2),
    },
    'global': None,
  }


def _over_rounds(value):
  """The figures of `report.write_report`; the last rounds' are a tenth."""
  if isinstance(value, dict):
    return {name: _over_rounds(item) for name, item in value.items()}
  return {'last': value, 'last_10_mean': None if value is None else value / 10}


def _evaluation(domains, personal):
  is_loss = 'accuracy' not in personal
  return {
    **({'primary_metric': split_model.LOSS._asdict()} if is_loss else {}),
    'personal': personal,
    'global': None,
    'fairness': None,
    'non_finite_clients': 0,
    'domains': domains,
  }


def _finish(directory, seed, domains, personal):
  """Leaves a finished trial of two variants, and returns it."""
  finished = trial.Trial(
    plan.trial_name('fed_avg', seed),
    dataclasses.replace(_CONFIG, seed=seed),
    fine_tune_variants=('all',),
  )
  folder = execution.trial_folder(directory, finished.name)
  os.makedirs(folder)
  evaluation = _evaluation(domains, personal)
  made_up_trials.store_evaluations(folder, [evaluation])
  found = {
    'accuracy': None,
    'global_accuracy': None,
    'seconds_per_round': 1.0,
    'domains': {**domains, 'personal': _over_rounds(domains['personal'])},
  }
  summary.write_json(os.path.join(folder, report.SUMMARY_NAME), found)
  row = {
    'client': 'a',
    'num_train_examples': 1,
    'num_test_examples': 6,
    'num_rounds': 1,
    'before': {'loss': 1.0},
    'after': {'loss': 1.0},
  }
  variant = {'evaluation': evaluation, 'clients': [row], 'new_clients': []}
  made_up_trials.write_scores(
    folder, {trial.OWN_VARIANT: variant, 'all': variant}
  )
  return finished


def _collect(directory, domains_by_seed, personal=None):
  comparison = plan.Comparison(
    base=_CONFIG,
    algorithms=('fed_avg',),
    seeds=tuple(range(len(domains_by_seed))),
    fine_tune_variants=('all',),
  )
  trials = [
    _finish(
      directory, seed, domains, personal or {'loss': 1.0, 'accuracy': 0.5}
    )
    for seed, domains in enumerate(domains_by_seed)
  ]
  methods, _ = collection.collect(comparison, directory, trials)
  return methods


def test_figures_over_domains_are_means_over_seeds(tmp_path):
  own, fine_tuned = _collect(
    str(tmp_path), [_domains(0.75, 0.25), _domains(0.5, 0.75)]
  )
  metrics = own.metrics
  # Minima of 0.25 and 0.5, of which the sample's deviation is 0.25 / √2.
  assert metrics['domain_accuracy_min'] == results.Spread(
    0.375, pytest.approx(0.25 / 2**0.5), 2
  )
  for name, mean in {
    'domain_accuracy_mean': 0.5625,
    'domain_accuracy_max': 0.75,
    'domain_accuracy_min_last_10': 0.0375,
    'domain_auc_min': 0.1875,
    'domain_auc_max_last_10': 0.0375,
    'client_auc': 0.3125,
    'client_auc_last_10': 0.03125,
  }.items():
    assert metrics[name].mean == pytest.approx(mean), name
  # It is made of the last round's models alone.
  assert fine_tuned.metrics['domain_accuracy_min'].mean == 0.375
  assert fine_tuned.metrics['domain_accuracy_min_last_10'] is None


def test_domains_are_listed_for_each_seed(tmp_path):
  found = _collect(str(tmp_path), [_domains(0.75, 0.25), _domains(0.5, 0.75)])
  for method in found:
    assert [(s.seed, s.domain) for s in method.domains] == [
      (seed, name) for seed in (0, 1) for name in _NAMES
    ]
    assert method.domains[0] == results.DomainScore(
      0, 'sea', 4, 1.0, 0.75, 0.375
    )
    assert method.domains[2] == results.DomainScore(
      0, 'moon', 0, None, None, None
    )


def test_without_an_accuracy_the_loss_is_compared(tmp_path):
  domains = _domains(0.5, 0.5)
  del domains['personal']['accuracy'], domains['personal']['auc']
  method, _ = _collect(str(tmp_path), [domains], {'loss': 0.25})
  assert method.domains[1] == results.DomainScore(0, 'hills', 2, 2.0, 2.0, None)
  assert method.metrics['domain_loss_max'].mean == 2.0
  assert method.metrics['personal_loss'].mean == 0.25
  assert method.curves[0].personal == (0.25,)
  assert method.clients[0].after == 1.0
