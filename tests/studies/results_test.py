import math
import os
import re

import numpy as np
import pandas as pd
import pytest

from tests import html_text
from tests.comparisons import made_up_trials
from tff_pfl import plots
from tff_pfl.comparisons import execution, plan, results
from tff_pfl.runs import settings


def _spread(mean, std=None, num_seeds=1):
  return {'mean': mean, 'std': std, 'num_seeds': num_seeds}


@pytest.fixture(name='make_results')
def _make_results(found):
  def make_results(*metrics, **changes):
    """Of methods with these metrics and no others."""
    own = [m for m in found['methods'] if m['variant'] == 'method']
    methods = [
      {
        **method,
        'label': method['algorithm'],
        'metrics': {**dict.fromkeys(method['metrics']), **of_method},
        'domains': [
          made_up_trials.domain(0, 'sea', 4, 0.5),
          made_up_trials.domain(0, 'moon', 0, None),
        ],
      }
      for method, of_method in zip(own, metrics)
    ]
    return results.Results({**found, 'methods': methods}, **changes)

  return make_results


def test_spread_is_that_of_a_sample_over_the_seeds_that_have_it():
  assert results.mean_std([1.0, None, 3.0]) == _spread(2.0, math.sqrt(2), 2)
  assert results.mean_std([0.25]) == _spread(0.25)
  assert results.mean_std([None]) is None
  assert results.mean_std([1.0, math.nan]) == _spread(1.0)
  assert results.mean_std([math.inf]) is None


def test_scores_are_tidy_and_survive_the_files(make_results, tmp_path):
  made = make_results({}, {'personal_accuracy': _spread(0.5, 0.1, 3)})
  made.write(tmp_path)
  found = results.open_comparison(tmp_path)
  assert found == made
  figures = pd.read_csv(tmp_path / 'comparison.csv')
  assert figures['label'].tolist() == ['fed_avg', 'local_only']
  without, having = figures.filter(regex='personal_accuracy/').to_numpy()
  assert np.isnan(without).all()
  assert having.tolist() == [0.5, 0.1, 3]
  assert '"learning_rate": 0.05' in figures['hparams'][0]
  # Of two seeds.
  rows = pd.read_csv(tmp_path / 'per_client.csv')[: 2 * (4 + 1)]
  assert rows['is_new'].tolist() == [False] * 8 + [True] * 2
  second = found['methods'][0]['clients'][1]
  assert rows['after/accuracy'][1] == second['accuracy_after']
  sea, moon, *_ = pd.read_csv(tmp_path / 'per_domain.csv').to_numpy().tolist()
  assert sea[:-1] == ['fed_avg', 'method', 0, 'sea', 4, 1.0, 0.5]
  assert moon[4] == 0
  assert np.isnan([sea[-1], *moon[-2:]]).all()

  tidy = found.scores
  (row,) = tidy[
    (tidy['client'] == second['client'])
    & (tidy['seed'] == second['seed'])
    & (tidy['method'] == 'fed_avg')
    & ~tidy['is_new']
    & (tidy['when'] == 'after')
    & (tidy['metric'] == 'accuracy')
  ].to_dict('records')
  assert row['value'] == second['accuracy_after']
  assert '0.5' in found._repr_html_()
  for method in found['methods']:
    method['label'] = html_text.IMAGE
  assert html_text.count_images(found._repr_html_()) == 2


def test_the_table_by_domain_has_min_mean_max_and_the_mean_over_clients(
  make_results,
):
  found = make_results(
    {
      'domain_accuracy_min': _spread(0.25, 0.125, 3),
      'domain_accuracy_mean': _spread(0.5, 0.0625, 3),
      'domain_accuracy_max': _spread(0.75, 0.0, 3),
      'domain_accuracy_min_last_10': _spread(0.375, 0.0, 3),
      'personal_accuracy': _spread(0.5, 0.25, 3),
      'client_auc': _spread(0.625, 0.25, 3),
    },
    {'personal_accuracy': _spread(0.5)},
  )
  of_all, of_domains = found.table().split('Over domains')
  *_, first, second = of_domains.strip().splitlines()
  titles = ' '.join(of_domains.split())
  for words in ('min accuracy', 'mean accuracy', 'max accuracy'):
    assert words in titles
  assert re.split(r'  +', first.strip()) == [
    *('fed_avg', '25.0 ± 12.5', '50.0 ± 6.2', '75.0 ± 0.0'),
    *('50.0 ± 25.0', '62.5 ± 25.0'),
  ]
  assert second.split() == ['local_only', '–', '–', '–', '50.0', '–']
  # The table of all data stays as it is.
  assert 'min accuracy' not in of_all


@pytest.mark.parametrize(
  'metrics, changes, lines',
  [
    (
      [
        {
          'personal_accuracy': _spread(0.5, None, 1),
          'worst_10_percent': _spread(0.25, 0.125, 2),
          'bytes_up_per_client': _spread(1500.0, 0.0, 2),
        },
        {'personal_accuracy': _spread(0.25)},
      ],
      {},
      ['fed_avg 50.0 (1 of 2 runs) 25.0 ± 12.5 1.5', 'local_only 25.0 – –'],
    ),
    (
      [{'personal_mae': _spread(1234.5)}],
      {'primary_metric': {'name': 'mae', 'higher_is_better': False}},
      ['fed_avg 1234'],
    ),
  ],
  ids=['columns_and_seeds_that_lack_it', 'another_metric'],
)
def test_the_table_has_the_figures_that_there_are(
  metrics, changes, lines, make_results, tmp_path
):
  found = make_results(*metrics, **changes)
  for method in found['methods']:
    method['domains'] = []
  table = found.table().splitlines()
  assert [' '.join(row.split()) for row in table[-len(lines) :]] == lines
  assert 'hurt' not in table[0]
  assert ('mae' in ''.join(table)) == bool(changes)
  found.write(tmp_path)
  assert not (tmp_path / 'per_domain.csv').exists()


def test_the_best_methods_that_have_curves_are_drawn(make_results):
  found = make_results({})
  (method,) = found['methods']
  found['methods'] = [
    {
      **method,
      'label': f'number {i}',
      'metrics': {'personal_accuracy': _spread(i / 10)},
      'curves': [] if i == 8 else method['curves'],
    }
    for i in range(10)
  ]
  labels = found.plot(plots.new_axes()).get_legend().get_texts()
  assert {label.get_text() for label in labels} == {
    f'number {i}' for i in (9, 7, 6, 5, 4, 3, 2)
  }


def _domains(sea, hills, metric='accuracy'):
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
      metric: figure(sea, hills),
      'auc': figure(sea / 2, hills / 2),
    },
    'global': None,
  }


def _collect(
  directory, *domains_by_seed, metric='accuracy', told=None, dropout_rate=0.0
):
  comparison = plan.Comparison(
    base=settings.Settings(
      dataset='synthetic',
      num_clients=2,
      cohort_size=2,
      dropout_rate=dropout_rate,
      model='linear',
    ),
    methods=('fed_avg',),
    seeds=tuple(range(len(domains_by_seed))),
    fine_tune_variants=('all',),
  )
  trials = comparison.trials()
  for one, domains in zip(trials, domains_by_seed):
    folder = execution.trial_folder(directory, one.name)
    os.makedirs(folder)
    made_up_trials.run(
      one, folder, metric=metric, domains=domains, reported=told
    )
  methods, primary, reported = results.collect(
    comparison, str(directory), trials
  )
  assert primary.name == metric
  assert [metric.name for metric in reported] == list(told or ())
  return methods


def test_figures_over_domains_are_means_over_seeds(tmp_path):
  own, fine_tuned = _collect(
    tmp_path, _domains(0.75, 0.25), _domains(0.5, 0.75)
  )
  metrics = own['metrics']
  # Minima of 0.25 and 0.5, of which the sample's deviation is 0.25 / √2.
  assert metrics['domain_accuracy_min'] == {
    'mean': 0.375,
    'std': pytest.approx(0.25 / 2**0.5),
    'num_seeds': 2,
  }
  for name, mean in {
    'domain_accuracy_mean': 0.5625,
    'domain_accuracy_max': 0.75,
    'domain_accuracy_min_last_10': 0.0375,
    'domain_auc_min': 0.1875,
    'domain_auc_max_last_10': 0.0375,
    'client_auc': 0.3125,
    'client_auc_last_10': 0.03125,
  }.items():
    assert metrics[name]['mean'] == pytest.approx(mean), name
  # It is made of the last round's models alone.
  metrics = fine_tuned['metrics']
  assert metrics['domain_accuracy_min']['mean'] == 0.375
  assert metrics['domain_accuracy_min_last_10'] is None
  for method in (own, fine_tuned):
    assert [tuple(row.values()) for row in method['domains']] == [
      (0, 'sea', 4, 1.0, 0.75, 0.375),
      (0, 'hills', 2, 2.0, 0.25, 0.125),
      (0, 'moon', 0, None, None, None),
      (1, 'sea', 4, 1.0, 0.5, 0.25),
      (1, 'hills', 2, 2.0, 0.75, 0.375),
      (1, 'moon', 0, None, None, None),
    ]


def test_bytes_of_a_round_are_a_mean_over_the_rounds(tmp_path):
  # A client gets 3 bytes and sends 2; one or both of two clients report.
  (row, _) = _collect(tmp_path, None, dropout_rate=0.5)
  down = row['metrics']['bytes_down_per_round']['mean']
  assert 3 < down < 6
  assert row['metrics']['bytes_up_per_round']['mean'] == down * 2 / 3


def test_another_metric_than_the_accuracy_is_compared(tmp_path):
  method, _ = _collect(tmp_path, _domains(0.5, 0.75, 'mae'), metric='mae')
  assert method['domains'][1]['mae'] == 0.75
  assert method['metrics']['domain_mae_max']['mean'] == 0.75
  last = method['curves'][0]['personal'][-1]
  assert method['metrics']['personal_mae']['mean'] == last
  assert 0 < method['clients'][0]['mae_after'] < 1


def test_further_metrics_are_collected(tmp_path):
  told = {
    name: {'higher_is_better': True, 'num_clients': number, 'num_scored': 2}
    for name, number in (('auc', 1), ('f1_macro', 2))
  }
  method, _ = _collect(tmp_path, None, None, told=told)
  metrics = method['metrics']
  for name in ('personal_auc', 'global_auc', 'personal_f1_macro'):
    assert metrics[name]['mean'] == 0.5
  assert metrics['clients_auc']['mean'] == 1
  # All clients have it.
  assert metrics['clients_f1_macro'] is None
  assert {'auc_before', 'auc_after', 'f1_macro_after'} <= set(
    method['clients'][0]
  )
