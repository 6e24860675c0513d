"""The whole of a comparison, its trials made up."""

import functools
import json
import operator
import os
import pathlib
import shutil
import statistics

import pandas as pd
import pytest

from tests.comparisons import made_up_trials
from tff_pfl import errors
from tff_pfl.comparisons import comparison_runner as runner
from tff_pfl.comparisons import (
  execution,
  results,
  trial,
)
from tff_pfl.comparisons import metrics as metrics_lib
from tff_pfl.runs import directory_lock, settings, summary

_INCOMPLETE = 'local_only (1 of 2 runs)'


def _method(found, label):
  (method,) = [m for m in found['methods'] if m['label'] == label]
  return method


def _read(directory, trial_name, file_name):
  folder = execution.trial_folder(directory, trial_name)
  return summary.read_json(os.path.join(folder, file_name))


def test_there_is_a_row_for_each_method_and_variant(found):
  assert [
    (m['label'], m['variant'], m['has_global_model']) for m in found['methods']
  ] == [
    ('fed_avg', 'method', True),
    ('fed_avg + FT (head)', 'head', True),
    (_INCOMPLETE, 'method', False),
    ('local_only + FT (head) (1 of 2 runs)', 'head', False),
  ]
  # A failed trial is told, and the other seed counts.
  assert found['failures'] == [
    {
      'trial': made_up_trials.FAILING,
      'algorithm': 'local_only',
      'seed': 1,
      'reason': 'no memory',
    }
  ]
  accuracy = _method(found, _INCOMPLETE)['metrics']['personal_accuracy']
  assert (accuracy['num_seeds'], accuracy['std']) == (1, None)


def test_the_figures_are_means_over_seeds_of_those_of_the_runs(
  found, directory
):
  summaries = [
    _read(directory, f'fed_avg-seed{seed}', 'summary.json') for seed in (0, 1)
  ]
  metrics = _method(found, 'fed_avg')['metrics']
  # It has neither domains nor two classes, and learns something.
  absent = {'majority_accuracy', 'auc', 'balanced_accuracy', 'f1'}
  assert list(metrics) == [
    name
    for name in metrics_lib.by_name()
    if name not in absent and not name.startswith(('domain_', 'client_auc'))
  ]
  for name, keys in {
    'personal_accuracy_last_10': ('accuracy', 'last_10_mean'),
    'personal_accuracy': ('accuracy', 'last'),
    'global_accuracy': ('global_accuracy', 'last'),
    'weighted_accuracy': ('fairness', 'weighted_mean'),
    'weighted_accuracy_best_10': ('weighted', 'best_10_mean'),
    'worst_10_percent': ('fairness', 'worst_10_percent'),
    'fraction_hurt': ('fairness', 'fraction_hurt'),
    'personal_loss': ('loss',),
    'seconds_per_round': ('seconds_per_round',),
  }.items():
    values = [functools.reduce(operator.getitem, keys, s) for s in summaries]
    assert metrics[name] == {
      'mean': pytest.approx(statistics.fmean(values)),
      'std': pytest.approx(statistics.stdev(values)),
      'num_seeds': 2,
    }, name
  for way, size in (('down', 3), ('up', 2)):
    assert metrics[f'bytes_{way}_per_client']['mean'] == size
    # Of a cohort of two.
    assert metrics[f'bytes_{way}_per_round']['mean'] == 2 * size


def test_what_a_method_lacks_is_none(found):
  fed_avg, fine_tuned, local_only, _ = found['methods']
  curves = fed_avg['curves']
  assert [(c['seed'], c['rounds']) for c in curves] == [
    (0, [1, 2]),
    (1, [1, 2]),
  ]
  assert all(c['global_model'] == c['personal'] for c in curves)
  assert local_only['curves'][0]['global_model'] is None
  assert local_only['metrics']['global_accuracy'] is None
  assert local_only['metrics']['fraction_hurt'] is None
  # The last round's models alone are fine-tuned.
  for name in ('personal_accuracy_last_10', 'weighted_accuracy_best_10'):
    assert fine_tuned['metrics'][name] is None
  assert fine_tuned['metrics']['personal_accuracy']['num_seeds'] == 2
  assert not fine_tuned['curves']


def test_new_clients_are_apart(found, directory):
  method = _method(found, 'fed_avg + FT (head)')
  accuracies = [score['accuracy_after'] for score in method['new_clients']]
  assert method['metrics']['new_client_accuracy']['mean'] == pytest.approx(
    statistics.fmean(accuracies)
  )
  for seed in (0, 1):
    trained, new = (
      {score['client'] for score in method[which] if score['seed'] == seed}
      for which in ('clients', 'new_clients')
    )
    assert (len(trained), len(new)) == (4, 1)
    assert not trained & new
  # Methods whose clients have weights also serve them by ensemble.
  by_ensemble, none = (
    _method(found, label)['metrics']['new_client_ensemble_accuracy']
    for label in (_INCOMPLETE, 'fed_avg')
  )
  scores = _read(directory, 'local_only-seed0', trial.SCORES_NAME)
  (row,) = scores['variants']['method']['new_clients_by_ensemble']
  assert by_ensemble['mean'] == pytest.approx(row['after']['accuracy'])
  assert none is None


def test_figures_of_folds_are_means_over_them(monkeypatch, tmp_path):
  monkeypatch.setattr(trial, 'run', made_up_trials.run)
  comparison = made_up_trials.comparison(
    methods=('fed_avg',), seeds=(3,), grid={}, num_folds=2
  )
  found = runner.compare(
    comparison, str(tmp_path), num_processes=0, show_progress=False
  )
  accuracies = [
    _read(tmp_path, f'fed_avg-seed3-fold{fold}of2', 'summary.json')['accuracy']
    for fold in range(2)
  ]
  metrics = _method(found, 'fed_avg')['metrics']
  assert metrics['personal_accuracy'] == results.mean_std(
    [accuracy['last'] for accuracy in accuracies]
  )
  assert metrics['personal_accuracy']['num_seeds'] == 2
  by_fold = found.curves.query("round == 2 and model == 'personal'")
  assert by_fold['fold'].tolist() == [0, 1]
  assert by_fold['value'].tolist() == [one['last'] for one in accuracies]
  assert set(found.client_scores['fold']) == {0, 1}
  page = (tmp_path / 'comparison.html').read_text()
  assert '1 seed, 2 folds of each.' in ' '.join(page.split())


def test_the_sweep_is_told_and_taken_with_what_a_method_refuses(found):
  swept, untried = found['tunings']
  assert (swept['algorithm'], swept['num_rounds']) == ('fed_avg', 2)
  points = swept['points']
  assert [point['accuracy'] for point in points] == [0.05, 1e-9, None, None]
  assert [point['chosen'] for point in points] == [True] + [False] * 3
  assert all('momentum' in point['failure'] for point in points[2:])
  assert _method(found, 'fed_avg')['hparams']['learning_rate'] == 0.05
  # The only point that is allowed is taken untried.
  allowed, refused = untried['points']
  assert (untried['algorithm'], untried['num_rounds']) == ('local_only', 0)
  assert (allowed['hparams'], allowed['chosen']) == ({'momentum': 0.5}, True)
  assert allowed['failure'] is None
  assert (refused['hparams'], refused['chosen']) == ({'momentum': 2.0}, False)
  assert 'momentum' in refused['failure']


def test_a_folder_is_one_processs_at_a_time(tmp_path):
  with directory_lock.DirectoryLock(str(tmp_path)):
    with pytest.raises(errors.RunError, match='in use by a running process'):
      runner.compare(made_up_trials.comparison(), str(tmp_path))
  assert not (tmp_path / 'trials').exists()


def test_divergence_is_a_column_where_there_is_any(found, directory, tmp_path):
  for method in found['methods']:
    assert method['metrics']['fraction_diverged'] is None
  shutil.copytree(directory, tmp_path / 'copy')
  path = tmp_path / 'copy' / 'trials' / 'fed_avg-seed1' / 'scores.json'
  scores = json.loads(path.read_text())
  evaluation = scores['variants']['method']['evaluation']
  evaluation['non_finite_clients'] = 2
  evaluation['personal']['loss'] = None
  path.write_text(json.dumps(scores))
  comparison = made_up_trials.comparison()
  points = {'fed_avg': comparison.points('fed_avg')[0]}
  methods, _, _ = results.collect(
    comparison, str(tmp_path / 'copy'), comparison.trials(points)
  )
  again = results.Results({**found, 'methods': methods})
  metrics = _method(again, 'fed_avg')['metrics']
  assert metrics['fraction_diverged']['mean'] == statistics.fmean([0, 2 / 4])
  assert metrics['personal_loss']['num_seeds'] == 1
  assert metrics['personal_accuracy']['num_seeds'] == 2
  (row,) = [r for r in again.table().splitlines() if r.startswith('fed_avg  ')]
  assert ' 25.0 ± 35.4 ' in row
  other = _method(again, 'fed_avg + FT (head)')['metrics']
  assert other['fraction_diverged'] is None


def test_partition_and_settings_are_those_that_the_runs_share(found):
  partition = found['partition']
  # With new clients, of the first seed.
  assert (partition['seed'], partition['num_new_clients']) == (0, 1)
  assert len(partition['client_ids']) == len(partition['class_counts']) == 5
  sizes = [sum(row) for row in partition['class_counts']]
  assert sizes == partition['num_train_examples']
  # The synthetic clients have the two classes that were asked for.
  assert {sum(n > 0 for n in row) for row in partition['class_counts']} == {2}
  shared = {one['name']: one['value'] for one in found['settings']}
  expected = {
    'seeds': [0, 1],
    'num_new_clients': 1,
    'tuning_rounds': 2,
    # As the data say.
    'num_clients': 4,
    'partition': 'shards:2',
    'cohort_size': 2,
  }
  assert {name: shared[name] for name in expected} == expected
  assert not {'method', 'seed', 'data_dir'} & set(shared)
  assert found['title'] == 'synthetic, 4 clients, shards:2, 2 rounds'


def test_everything_is_on_file(found, directory):
  directory = pathlib.Path(directory)
  assert results.open_comparison(directory) == found
  assert len(pd.read_csv(directory / 'comparison.csv')) == 4
  # Of fed_avg two seeds, of local_only one, each in two variants.
  assert len(pd.read_csv(directory / 'per_client.csv')) == (2 + 1) * 2 * 5
  assert 'fed_avg + FT (head)' in (directory / 'comparison.html').read_text()
  picture = (directory / 'accuracy.png').read_bytes()
  assert picture.startswith(b'\x89PNG\r\n\x1a\n')


def test_an_earlier_comparison_is_not_overwritten(found, directory):
  with pytest.raises(errors.RunError, match='resume'):
    runner.compare(made_up_trials.comparison(), directory, show_progress=False)
  with pytest.raises(errors.RunError, match='num_rounds=2, not 1'):
    runner.compare(
      made_up_trials.comparison(tuning_rounds=1),
      directory,
      resume=True,
      show_progress=False,
    )


def test_impossible_data_are_refused_before_anything_runs(tmp_path):
  base = settings.Settings(
    dataset='synthetic', partition='dirichlet:0.1', model='linear'
  )
  with pytest.raises(ValueError, match='partition'):
    runner.compare(made_up_trials.comparison(base=base), str(tmp_path / 'out'))
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
  'variant,asked,adaptation,label',
  [
    ('method', 'method', 'head', 'fed_avg'),
    ('method', 'none', 'none', 'fed_avg'),
    ('method', 'none', 'head', 'fed_avg without FT'),
    ('method', 'all', 'none', 'fed_avg + FT (all)'),
    ('none', 'method', 'head', 'fed_avg without FT'),
    ('head', 'method', 'head', 'fed_avg + FT (head)'),
    ('trained', 'method', 'none', 'fed_avg, trained'),
  ],
)
def test_labels_tell_fine_tuning_that_the_method_does_not_do(
  variant, asked, adaptation, label
):
  base = settings.Settings(fine_tune=asked)
  scores = {'adaptation': adaptation}
  assert results._label('fed_avg', variant, base, scores) == label
