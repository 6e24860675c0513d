"""Tests of FedFac's experiments on images, at their small sizes."""

import pathlib

import numpy as np
import pytest
from matplotlib.figure import Figure

from binaries.papers import fedfac_images, trials
from tff_pfl.algorithms import registry
from tff_pfl.experiments import execution, trial
from tff_pfl.experiments import paper as experiment
from tff_pfl.simulation import report


def _run(name, directory, **settings):
  (entry,) = [e for e in fedfac_images.EXPERIMENTS if e.name == name]
  return entry.run(
    experiment.Settings(
      directory=str(directory), fast=True, show_progress=False, **settings
    )
  )


def _draw(result):
  figure = Figure(layout='constrained')
  result.draw(figure)
  figure.canvas.draw()
  return figure


def _folder(directory, *parts):
  name = trials.slug('-'.join(map(str, parts)))
  return execution.trial_folder(str(directory / 'runs'), name)


def _accuracy(directory, *parts):
  folder = _folder(directory, *parts)
  return trials.read(folder, report.SUMMARY_NAME)['accuracy']['last_10_mean']


def test_the_ablation_masks_shared_and_personal_neurons(tmp_path):
  # A folder that is for other experiments' data does no harm.
  result = _run('fedfac_ablation', tmp_path, data_dir='elsewhere')
  rows = {row['method']: row['accuracy'] for row in result.rows}
  assert list(rows) == [
    'factor analysis',
    'random split',
    'tau=50%, nothing masked',
    'tau=50%, shared masked',
    'tau=50%, personal masked',
  ]
  for name in ('factor analysis', 'random split'):
    assert rows[name] == _accuracy(tmp_path, 'pi=0.5', name, 0)
  # With nothing masked it is what the run's own evaluation found.
  scores = trials.read(
    _folder(tmp_path, 'pi=0.5', 'tau=50%', 0), trial.SCORES_NAME
  )
  evaluation = scores['variants']['method']['evaluation']
  np.testing.assert_allclose(
    rows['tau=50%, nothing masked'],
    evaluation['personal']['accuracy'],
    rtol=1e-6,
  )
  masked = {value for name, value in rows.items() if 'masked' in name}
  assert len(masked) == 3
  measured = [claim.measured for claim in result.claims]
  np.testing.assert_allclose(
    measured,
    [rows['tau=50%, shared masked'] - rows['tau=50%, personal masked']],
  )
  _draw(result)


@pytest.mark.slow
def test_the_comparison_has_all_methods_and_ratios_to_fed_avg(tmp_path):
  result = _run('fedfac_comparison', tmp_path)
  rows = {row['method']: row for row in result.rows}
  assert list(rows) == [
    'FedAvg',
    'FedAvg, after local training',
    'FedProx',
    'FedProx, after local training',
    'FedPer',
    'LG-FedAvg',
    'FedEM',
    'FedRep',
    'FedFac, static',
    'FedFac, dynamic',
  ]
  for name in ('FedEM', 'FedFac, static'):
    assert rows[name]['accuracy'] == _accuracy(tmp_path, 'pi=0.5', name, 0)
  assert rows['FedAvg']['seconds_of_fed_avg'] == 1
  # The upload: three components, or the sums for 8 neurons on top.
  assert rows['FedEM']['upload_of_fed_avg'] == 3
  update = trials.read(
    _folder(tmp_path, 'pi=0.5', 'FedAvg', 0), trial.SCORES_NAME
  )['bytes_per_round']['up']
  np.testing.assert_allclose(
    rows['FedFac, dynamic']['upload_of_fed_avg'], 1 + 4 * (36 + 8 + 1) / update
  )
  assert all(row['published'] is None for row in result.rows)
  _draw(result)


@pytest.mark.slow
def test_new_clients_have_local_training_and_the_ensemble(tmp_path):
  result = _run('fedfac_new_clients', tmp_path)
  rows = {row['method']: row['accuracy'] for row in result.rows}
  assert list(rows) == [
    'FedAvg',
    'FedAvg, after local training',
    'FedProx',
    'FedProx, after local training',
    'LG-FedAvg, ensemble',
    'FedEM',
    'FedRep',
    'FedFac, local training',
    'FedFac, ensemble',
  ]
  scores = trials.read(
    _folder(tmp_path, 'pi=0.5', 'FedFac', 0), trial.SCORES_NAME
  )['variants']['method']
  for name, key in (
    ('FedFac, local training', 'new_clients'),
    ('FedFac, ensemble', 'new_clients_by_ensemble'),
  ):
    of_clients = [row['after']['accuracy'] for row in scores[key]]
    assert len(of_clients) == 2
    np.testing.assert_allclose(rows[name], np.mean(of_clients))
  _draw(result)


@pytest.mark.slow
def test_tuning_goes_on_from_the_best(tmp_path):
  result = _run('fedfac_tuning', tmp_path)
  found = {}
  for row in result.rows:
    found.setdefault(row['hyperparameter'], {})[row['value']] = row['accuracy']
  for hparam, accuracies in found.items():
    (chosen,) = [
      row['accuracy']
      for row in result.rows
      if row['hyperparameter'] == hparam and row['chosen']
    ]
    assert chosen == max(accuracies.values())
  layer = max(found['layers'], key=found['layers'].get)
  threshold = max(found['threshold'], key=found['threshold'].get)
  # A later sweep has the point that an earlier one chose.
  assert found['threshold'][0.5] == found['layers'][layer]
  assert found['explained_variance'][0.85] == found['threshold'][threshold]
  # The seed is not one of those that the other experiments report.
  folders = pathlib.Path(_folder(tmp_path, 'any')).parent.iterdir()
  assert {path.name[-2:] for path in folders} == {'-1'}
  _draw(result)


@pytest.mark.parametrize('dataset', fedfac_images.FULL)
@pytest.mark.parametrize('fast', [False, True])
def test_every_method_can_be_configured_for_every_dataset(dataset, fast):
  settings = experiment.Settings(directory='.', dataset=dataset, fast=fast)
  sizes = fedfac_images.sizes_of(settings)
  assert set(sizes.thresholds) >= set(sizes.partitions)
  for partition in sizes.partitions:
    for method in (
      *fedfac_images.BASELINES,
      fedfac_images.fed_fac(sizes, partition),
    ):
      made = fedfac_images.make_trial(method, partition, 3, sizes, settings, 2)
      hparams = made.config.hparams
      assert isinstance(
        hparams, registry.get_algorithm(method.algorithm).hparams
      )
      assert (hparams.optimizer, hparams.batch_size) == (
        'adam', sizes.batch_size
      )  # fmt: skip
      assert made.config.num_clients + 2 == sizes.num_clients
      assert bool(made.fine_tune_variants) == bool(method.fine_tuned)


def test_published_accuracies_are_those_of_the_setting():
  figures = fedfac_images.published_accuracies(
    'cifar10', fedfac_images.FULL['cifar10']
  )
  assert figures['pi=0.1', 'FedFac, dynamic'] == 0.8307
  assert figures['pi=1', 'FedFac, static'] == 0.7047
  assert figures['pi=0.5', 'FedAvg'] == 0.7039
