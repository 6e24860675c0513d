"""What trials found, of data with domains and of another metric."""

import os

import pytest

from tests.comparisons import made_up_trials
from tff_pfl.comparisons import collection, execution, plan
from tff_pfl.runs import run_config


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
  directory, *domains_by_seed, metric='accuracy', told=None, cohort_size=2
):
  comparison = plan.Comparison(
    base=run_config.RunConfig(
      dataset='synthetic',
      num_clients=2,
      cohort_size=cohort_size,
      model='linear',
    ),
    algorithms=('fed_avg',),
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
  methods, primary, reported = collection.collect(
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


@pytest.mark.parametrize(
  'cohort_size, down, up', [(2, 6, 4), ('1,51:2', 4.5, 3)]
)
def test_bytes_of_a_round_are_a_mean_over_the_rounds(
  cohort_size, down, up, tmp_path
):
  # Of 100 rounds; a client gets 3 bytes and sends 2.
  (row, _) = _collect(tmp_path, None, cohort_size=cohort_size)
  assert row['metrics']['bytes_down_per_round']['mean'] == down
  assert row['metrics']['bytes_up_per_round']['mean'] == up


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
